"""Tsunagi's services; services/README.md says what each folder is."""

__version__ = "0.1.0"
