"""Reads `results` during the demo, and notes when each record could be read."""

from __future__ import annotations

import threading
import time

from tsunagi.audit.evidence import Read
from tsunagi.query.catalog import READINGS
from tsunagi.runtime.log import RESULTS, Log, Position

_READ_RECORDS = 500
"""Most records that are read at once. They all get the same time, so the number is small."""
_READ_S = 0.05
"""Longest wait of a read, in seconds. It is short, so that the thread ends soon when it is closed."""


class LiveReader:
    """Reads `results` from its beginning in a thread of its own, until it is closed.

    Attributes:
        reads: the records that were read, and when.
        last_step: the newest step of readings of each group, from the records' keys ("query/group/step"). Queries in
            CQL may have groups of their own, without a row for a long time.
        error: the error by which the thread ended; None if there was none.
    """

    def __init__(self, log: Log) -> None:
        self.reads: list[Read] = []
        self.last_step: dict[str, int] = {}
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._reader = log.reader()
        partitions = range(log.partitions(RESULTS))
        self._reader.assign([Position(RESULTS, p, self._reader.range(RESULTS, p)[0]) for p in partitions])
        self._thread = threading.Thread(target=self._run, name="live-reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                records = self._reader.read(_READ_RECORDS, _READ_S)
                read_us = time.time_ns() // 1000
                for record in records:
                    self.reads.append(Read(record.partition, record.offset, read_us))
                    query, group, step = _parts((record.key or b"").decode("utf-8", "replace"))
                    if query != READINGS:
                        continue
                    self.last_step[group] = max(step, self.last_step.get(group, step))
        except Exception as error:  # noqa: BLE001 - `tsunagi.demo.stream` raises it while it waits
            self.error = error

    def newest(self) -> int:
        """Return the step up to which every group that has results has them; -1 if there are no results yet."""
        return min(self.last_step.copy().values(), default=-1)

    def close(self) -> None:
        """Stop reading, and close the connection."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._reader.close()


def _parts(key: str) -> tuple[str, str, int]:
    query, _, rest = key.partition("/")
    group, _, step = rest.rpartition("/")
    return query, group, int(step) if step.lstrip("-").isdigit() else -1
