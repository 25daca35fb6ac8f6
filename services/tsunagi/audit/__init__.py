"""The judge of what came out of a run: what was lost, repeated, reordered, late, out of bounds, or changed its owner.

`tsunagi demo` judges whole topics afterwards, against the CSV (`check`). `tsunagi chaos` judges records as they come,
against each other (`ledger`). Both share the laws of each topic, and the words in which a finding is told.
"""
