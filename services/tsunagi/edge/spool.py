"""What an edge could not send yet: in memory, and on disk once it has waited, so that it outlives the process.

While the log answers, nothing is written. Once the oldest record has waited for `SPILL_S`, or the edge stops, all
waiting records go to a file, and so does each later record until everything has been delivered. The next incarnation
sends the file's records first, in the same order. Some of them may have been delivered shortly before; the slots drop
such repeats by (edge, step).

A disk that takes nothing does not end the edge: the records are kept in memory, within the same bound, and the disk is
tried again every `RETRY_S`. The directory belongs to one process at a time (tsunagi.edge.directory_lock).
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from tsunagi.edge.directory_lock import DirectoryLock
from tsunagi.edge.source import SourceError

SPILL_S = 1.0
"""Once the oldest record has waited this many seconds for the log's acknowledgement, the waiting records are written to
the spool's file. A shorter time would write to disk at each hiccup of the broker; what waits for less is lost when the
process is killed."""
RETRY_S = 5.0
"""A disk that failed is tried again after this many seconds."""

_FRAME = struct.Struct("<III")
"""Head of a record in the file: the CRC-32 of all that follows it, the slot, the length of the value in bytes."""
_MAGIC = b"tsunagi-spool-1\n"
"""First bytes of the file: its format and version."""


@dataclass(slots=True, eq=False)
class SpooledRecord:
    """A record that waits for the log's acknowledgement.

    Attributes:
        delivered: whether the log has acknowledged it.
        written: whether it stands in the file.
    """

    slot: int
    value: bytes
    at_s: float
    delivered: bool = False
    written: bool = False


class Spool:
    """Records that the log has not acknowledged, oldest first.

    Args:
        max_bytes: most bytes that may wait. Beyond that the oldest records that are not being sent are given up.

    Attributes:
        dropped: how many records were given up.
        left: how many records an earlier incarnation had left.
        fault: why records cannot be kept on disk at present; "" while they can.
        owner: this process's hold on the file's directory.

    Raises:
        SourceError: the file is not a spool.
        ReplacedError: raised by `tidy`: a newer process has taken the directory over.
    """

    def __init__(self, path: Path, max_bytes: int, logger: structlog.stdlib.BoundLogger, now_s: float) -> None:
        self.path = path
        self.dropped = 0
        self._max_bytes = max_bytes
        self._logger = logger
        self._items: deque[SpooledRecord] = deque()
        self._taken = 0  # how many items, from the first, are being sent
        self._waiting = 0
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._file_bytes = 0  # length of the whole records in the file; behind them may be the rest of a failed write
        self.fault = ""
        self._retry_s = now_s
        self.left = 0
        self._loaded = False
        self.lock = DirectoryLock(path.parent, logger)
        try:
            self._load(now_s)
        except SourceError:
            self.lock.close()
            raise

    def __len__(self) -> int:
        """Return how many records the log has not acknowledged."""
        return self._waiting

    @property
    def disk_bytes(self) -> int:
        """Size of the file in bytes; 0 if there is none."""
        return self._file_bytes

    def put(self, slot: int, value: bytes, now_s: float) -> None:
        """Keep a record until it is delivered."""
        item = SpooledRecord(slot, value, now_s)
        self._put(item)
        while self._bytes > self._max_bytes and self._taken < len(self._items):
            self._give_up(now_s)
        if self._file is not None and self._items and self._items[-1] is item:
            self._write([item], now_s)

    def take(self) -> SpooledRecord | None:
        """Return the oldest record that is not being sent yet, or None; `untake` gives it back."""
        if self._taken == len(self._items):
            return None
        item = self._items[self._taken]
        self._taken += 1
        return item

    def untake(self) -> None:
        """Give back the record that was taken last: it could not be sent."""
        self._taken -= 1

    def delivered(self, item: SpooledRecord) -> None:
        """Take note that the log has acknowledged a record."""
        item.delivered = True
        self._waiting -= 1

    def tidy(self, now_s: float) -> None:
        """Forget the delivered records, and write those that have waited for `SPILL_S` to disk."""
        self.lock.check()
        self._forget()
        if now_s < self._retry_s:
            return
        if not self._loaded:
            self._load(now_s)
        elif not self._items:
            self._discard(now_s)
        elif self._file is None and now_s - self._items[0].at_s > SPILL_S:
            self.spill(now_s)
        elif self._file_bytes > 2 * self._max_bytes and self._discard(now_s):
            for item in self._items:
                item.written = False
            self.spill(now_s)

    def spill(self, now_s: float) -> None:
        """Write all waiting records to disk."""
        self._write([item for item in self._items if not item.delivered and not item.written], now_s)

    def keep(self, now_s: float) -> int:
        """Leave the waiting records on disk for the next start; return how many are lost because the disk failed."""
        self._forget()
        if self._items:
            self.spill(now_s)
        elif self._loaded and self.lock.may_write():
            self._discard(now_s)
        lost = sum(not item.delivered and not item.written for item in self._items)
        self.dropped += lost
        return lost

    def close(self) -> None:
        """Release the file, which stays if it holds records, and its directory."""
        self._close_file()
        self.lock.close()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _forget(self) -> None:
        while self._items and self._items[0].delivered:
            self._bytes -= len(self._items.popleft().value)
            self._taken -= 1

    def _put(self, item: SpooledRecord) -> None:
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

    def _write(self, items: list[SpooledRecord], now_s: float) -> None:
        if not items or not self._loaded or not self.lock.may_write():
            return
        try:
            if self._file is None:
                self._file = self._open()
            for item in items:
                body = struct.pack("<II", item.slot, len(item.value)) + item.value
                self._append(self._file, struct.pack("<I", zlib.crc32(body)) + body)
                item.written = True
        except OSError as error:
            self._failed(error, now_s)
        else:
            self._recovered()

    def _open(self) -> BinaryIO:
        """Open the file for appending behind its whole records."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab", buffering=0)
        try:
            file.truncate(self._file_bytes)
            if self._file_bytes == 0:
                self._append(file, _MAGIC)
        except OSError:
            file.close()
            raise
        return file

    def _append(self, file: BinaryIO, record: bytes) -> None:
        left = memoryview(record)
        while left:  # a disk that is almost full may take only a part
            left = left[file.write(left) :]
        self._file_bytes += len(record)

    def _discard(self, now_s: float) -> bool:
        """Remove the file; return whether it is gone."""
        self._close_file()
        try:
            if self._file_bytes:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error, now_s)
            return False
        self._file_bytes = 0
        self._recovered()
        return True

    def _failed(self, error: OSError, now_s: float) -> None:
        if not self.fault:
            self._logger.error(
                "the disk does not take what waits: it is kept in memory alone",
                path=str(self.path),
                detail=error.strerror or str(error),
                spool_bytes=self._max_bytes,
            )
        self.fault = f"{self.path}: the spool is kept in memory alone: {error.strerror or error}"
        self._retry_s = now_s + RETRY_S
        self._close_file()

    def _recovered(self) -> None:
        if self.fault:
            self._logger.info("the disk takes what waits again", path=str(self.path))
        self.fault = ""

    def _load(self, now_s: float) -> None:
        """Load the records of the file; if it cannot be read now, leave it as it is and try again later."""
        try:
            found = self._read()
        except OSError as error:
            self._failed(error, now_s)
            return
        self._loaded = True
        self._recovered()
        for slot, value in found:
            self._put(SpooledRecord(slot, value, now_s, written=True))
        self.left += len(found)
        if found:
            self._logger.info("records of an earlier run wait to be sent", records=len(found), path=str(self.path))

    def _read(self) -> list[tuple[int, bytes]]:
        """Return the records of the file; those behind a damaged place, as after a power cut, are given up."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        if _MAGIC.startswith(content):  # a full disk took only this much
            return []
        if not content.startswith(_MAGIC):
            raise SourceError(f"{self.path}: found {content[:20]!r}, expected a spool of version 1")
        found = []
        at = len(_MAGIC)
        while at < len(content):
            crc, slot, length = _FRAME.unpack_from(content, at) if at + _FRAME.size <= len(content) else (0, 0, 0)
            end = at + _FRAME.size + length
            if end > len(content) or zlib.crc32(content[at + 4 : end]) != crc:
                self._logger.error("the spool is damaged", path=str(self.path), offset=at, lost_bytes=len(content) - at)
                break
            found.append((slot, content[at + _FRAME.size : end]))
            at = end
        self._file_bytes = at
        return found
