"""The error of everything around recovery models."""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be made, read or used. The message names file or argument, what was found and expected."""
