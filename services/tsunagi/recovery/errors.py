"""What everything around models raises."""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be made, read or used; the message names the file or argument, what was found and expected."""
