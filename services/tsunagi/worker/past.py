"""The worker's reader of the past of slots' logs."""

from __future__ import annotations

from tsunagi.runtime.log import Log, Reader


class OnePast:
    """A reader that one slot of the worker has at a time, so that filling queries costs one client (`PastReader`)."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._reader: Reader | None = None
        self._holder = -1

    def take(self, slot: int) -> Reader | None:
        """Return the reader, which this slot has until it gives it back; None = another slot has it."""
        if self._holder not in (-1, slot):
            return None
        if self._reader is None:
            self._reader = self._log.reader()
        self._holder = slot
        return self._reader

    def give_back(self, slot: int) -> None:
        """Take in that this slot does not need the reader any more."""
        if self._holder == slot and self._reader is not None:
            self._reader.assign([])
            self._holder = -1

    def close(self) -> None:
        """Close the client."""
        if self._reader is not None:
            self._reader.close()
