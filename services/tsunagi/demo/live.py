"""A reader of `results` that runs beside the demo and notes when each record could be read."""

from __future__ import annotations

import threading
import time

from tsunagi.audit.evidence import Read
from tsunagi.runtime.log import RESULTS, Log, Position

_READ_RECORDS = 500
_READ_S = 0.05


class LiveReader:
    """Reads `results` from its beginning in a thread of its own, until closed.

    Attributes:
        reads: what was read, and when.
        last_step: the newest step by group, from the records' keys ("query/group/step").
        error: why the thread ended before it was told to; None = it did not.
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
                    _, group, step = _parts((record.key or b"").decode("utf-8", "replace"))
                    self.last_step[group] = max(step, self.last_step.get(group, step))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for results
            self.error = error

    def newest(self) -> int:
        """Return the step up to which every group that has results has them; -1 = no results yet."""
        return min(self.last_step.copy().values(), default=-1)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        self._reader.close()


def _parts(key: str) -> tuple[str, str, int]:
    query, _, rest = key.partition("/")
    group, _, step = rest.rpartition("/")
    return query, group, int(step) if step.lstrip("-").isdigit() else -1
