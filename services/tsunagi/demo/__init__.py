"""The demo: real readings, real kills, and a report of what the judge found, who starts from the CSV."""
