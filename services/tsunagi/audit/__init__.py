"""Judges the output of a run: what was lost, repeated, out of order, late or out of bounds, and which owner changed.

`tsunagi demo` judges whole topics after the run, against the CSV (`check`). `tsunagi chaos` judges records as they
come, against each other (`ledger`). Both share the rules of each topic, and the sentences that report a finding.
"""
