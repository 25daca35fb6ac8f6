"""The commands of `tsunagi`, one thin module a group. They are the top layer: nothing below imports them.

A module here is imported by every command line, so a command imports what it needs when it runs.
"""
