"""The commands of `tsunagi`, one thin module for each group. They are the top layer: no lower layer imports them.

Every command line imports all modules here. So a command imports what it needs only when it runs.
"""
