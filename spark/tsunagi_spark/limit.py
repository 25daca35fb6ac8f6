"""Limits the bytes of a batch: `[spark] max_bytes`.

Spark's source only counts records, and it logs the offsets of a batch before anybody knows how large the records are.
So the tasks that read a batch count its bytes, and give it up before anything of it is sent. The driver then cuts the
batch anew, with fewer records.
"""

from __future__ import annotations

import re

_LEAST = 16
"""A task with up to this many records is never too large: Spark is not asked for smaller batches than that."""

_FOUND = re.compile(r"(\d+) records of (\d+) bytes")
"""Finds the numbers in the message of a `BatchTooLargeError`, which comes back from a task as text."""


class BatchTooLargeError(RuntimeError):
    """A task has read more bytes than its share of a batch; nothing of the batch was sent."""

    def records(self, max_bytes: int, asked: int) -> int:
        """Return how many records to ask for instead.

        Args:
            asked: number of records that was asked for; the result is smaller, so that the attempts end.
        """
        found = _FOUND.search(str(self))
        if found is None:
            return max(1, asked // 2)
        count, size = map(int, found.groups())
        # Only half of what the mean size allows is asked for, since sizes differ.
        return max(1, min(asked // 2, max_bytes * count // size // 2))


class ByteCount:
    """Counts the bytes of the records that a task reads in one batch.

    Args:
        limit: most bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records = 0
        self._bytes = 0

    def add(self, size: int, slots: int) -> None:
        """Count a record.

        Args:
            slots: number of slots that the task reads; Spark asks for at least one record of each.

        Raises:
            BatchTooLargeError: the limit is exceeded.
        """
        self._records += 1
        self._bytes += size
        if self._bytes > self._limit and self._records > max(_LEAST, 2 * slots):
            raise BatchTooLargeError(f"found {self._records} records of {self._bytes} bytes, expected {self._limit}")
