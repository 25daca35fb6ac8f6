"""What an edge could not send yet: in memory, and on disk once it has waited, so that it outlives the process.

While the log answers nothing is written. Once the oldest record has waited for `SPILL_S`, or the edge stops, all that
waits goes to a file, and whatever comes after it as well until everything has been delivered. The next incarnation
sends that first, in the same order. What had been delivered shortly before is sent again then: slots drop repeats by
(edge, step).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from services.edge.source import SourceError

SPILL_S = 1.0

_FRAME = struct.Struct("<III")  # CRC-32 of the rest, slot, length
_MAGIC = b"tsunagi-spool-1\n"


@dataclass(slots=True, eq=False)
class Item:
    """A record on its way.

    Attributes:
        delivered: the log has it.
        written: it stands in the file.
    """

    slot: int
    value: bytes
    at_s: float
    delivered: bool = False
    written: bool = False


class Spool:
    """Records that the log does not have yet, oldest first.

    Args:
        max_bytes: what may wait at most; beyond that the oldest that nobody is sending is given up.

    Attributes:
        dropped: records given up.
        left: records that an earlier incarnation had left.

    Raises:
        SourceError: the file cannot be read or written.
    """

    def __init__(self, path: Path, max_bytes: int, logger: structlog.stdlib.BoundLogger, now_s: float) -> None:
        self.path = path
        self.dropped = 0
        self._max_bytes = max_bytes
        self._logger = logger
        self._items: deque[Item] = deque()
        self._taken = 0  # the first so many of them are being sent
        self._waiting = 0
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        for slot, value in self._read():
            self._put(Item(slot, value, now_s, written=True))
        self.left = len(self._items)
        if self.left:
            self._logger.info("records of an earlier run wait to be sent", records=self.left, path=str(path))

    def __len__(self) -> int:
        """Return how many records the log does not have."""
        return self._waiting

    @property
    def disk_bytes(self) -> int:
        """Size of the file, 0 = there is none."""
        return self._file_bytes

    def put(self, slot: int, value: bytes, now_s: float) -> None:
        """Keep a record until it is delivered."""
        item = Item(slot, value, now_s)
        self._put(item)
        while self._bytes > self._max_bytes and self._taken < len(self._items):
            self._give_up(now_s)
        if self._file is not None and self._items and self._items[-1] is item:
            self._write([item])

    def take(self) -> Item | None:
        """Return the oldest record that is not being sent yet; None = there is none. `untake` gives it back."""
        if self._taken == len(self._items):
            return None
        item = self._items[self._taken]
        self._taken += 1
        return item

    def untake(self) -> None:
        """The record that was taken last could not be sent."""
        self._taken -= 1

    def delivered(self, item: Item) -> None:
        """The log has a record."""
        item.delivered = True
        self._waiting -= 1

    def tidy(self, now_s: float) -> None:
        """Forget what was delivered; bring what has waited to disk."""
        while self._items and self._items[0].delivered:
            self._bytes -= len(self._items.popleft().value)
            self._taken -= 1
        if not self._items:
            self._discard()
        elif self._file is None and now_s - self._items[0].at_s > SPILL_S:
            self.spill()
        elif self._file_bytes > 2 * self._max_bytes:
            self._discard()
            for item in self._items:
                item.written = False
            self.spill()

    def spill(self) -> None:
        """Bring all that waits to disk."""
        self._write([item for item in self._items if not item.delivered and not item.written])

    def close(self) -> None:
        """Let go of the file; it stays if anything is in it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._waiting += 1
        self._bytes += len(item.value)

    def _give_up(self, now_s: float) -> None:
        item = self._items[self._taken]
        del self._items[self._taken]
        self._bytes -= len(item.value)
        self._waiting -= 1
        self.dropped += 1
        if self.dropped == 1 or self.dropped % 1000 == 0:
            waited_s = round(now_s - item.at_s, 1)
            self._logger.error(
                "the spool is full: the oldest records are given up",
                dropped=self.dropped,
                waited_s=waited_s,
                spool_bytes=self._max_bytes,
            )

    def _write(self, items: list[Item]) -> None:
        if not items:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab")
                if self._file.tell() == 0:
                    self._file.write(_MAGIC)
            for item in items:
                body = struct.pack("<II", item.slot, len(item.value)) + item.value
                self._file.write(struct.pack("<I", zlib.crc32(body)) + body)
                item.written = True
            self._file.flush()
            self._file_bytes = self._file.tell()
        except OSError as error:
            raise SourceError(f"{self.path}: the spool cannot be written: {error.strerror}") from None

    def _discard(self) -> None:
        self.close()
        if self._file_bytes:
            self.path.unlink(missing_ok=True)
            self._file_bytes = 0

    def _read(self) -> list[tuple[int, bytes]]:
        """Return what the file holds; what stands behind a damaged place, as after a power cut, is given up."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SourceError(f"{self.path}: the spool cannot be read: {error.strerror}") from None
        if not content.startswith(_MAGIC):
            raise SourceError(f"{self.path}: found {content[:20]!r}, expected a spool of version 1")
        found = []
        at = len(_MAGIC)
        while at < len(content):
            crc, slot, length = _FRAME.unpack_from(content, at) if at + _FRAME.size <= len(content) else (0, 0, 0)
            end = at + _FRAME.size + length
            if end > len(content) or zlib.crc32(content[at + 4 : end]) != crc:
                self._logger.error("the spool is damaged", path=str(self.path), offset=at, lost_bytes=len(content) - at)
                os.truncate(self.path, at)
                content = content[:at]
                break
            found.append((slot, content[at + _FRAME.size : end]))
            at = end
        self._file_bytes = len(content)
        return found
