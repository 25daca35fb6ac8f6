"""The times of live messages, which have the same forms as those of tables."""

from tsunagi.runtime.time_form import BadTimeError, TimeForm

__all__ = ["BadTimeError", "TimeForm"]
