"""A batch is bounded in bytes: `[spark] max_bytes`.

Spark's source counts records alone, and it logs a batch's offsets before anybody knows how large its records are. So
the tasks that read a batch count its bytes, and give it up before anything of it is sent. The driver then cuts it anew,
with fewer records.
"""

from __future__ import annotations

import re

_LEAST = 16
"""Records of a task that are never too large: less than that is not asked of Spark."""

_FOUND = re.compile(r"(\d+) records of (\d+) bytes")


class BatchTooLargeError(RuntimeError):
    """A task has read more bytes of a batch than its share; nothing of the batch was sent."""

    def records(self, max_bytes: int, asked: int) -> int:
        """Return how many records to ask for instead.

        Args:
            asked: how many were asked for; less than that is returned, so that it comes to an end.
        """
        found = _FOUND.search(str(self))
        if found is None:
            return max(1, asked // 2)
        count, size = map(int, found.groups())
        # Half of what the mean allows: records differ.
        return max(1, min(asked // 2, max_bytes * count // size // 2))


class ByteCount:
    """Counts the bytes of the records that a task reads of one batch.

    Args:
        limit: bytes at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records = 0
        self._bytes = 0

    def add(self, size: int, slots: int) -> None:
        """Take in a record.

        Args:
            slots: those that the task reads; Spark asks for one record of each at least.

        Raises:
            BatchTooLargeError: it is one too many.
        """
        self._records += 1
        self._bytes += size
        if self._bytes > self._limit and self._records > max(_LEAST, 2 * slots):
            raise BatchTooLargeError(f"found {self._records} records of {self._bytes} bytes, expected {self._limit}")
