"""The demo: it streams real readings through real kills, and checks every row of the results against the CSV."""
