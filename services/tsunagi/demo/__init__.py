"""The demo: real readings, real kills, and a checker that starts from the CSV."""
