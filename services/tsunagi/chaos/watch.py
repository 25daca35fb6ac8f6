"""The reader behind the ledger: one group-less reader over all topics, from shortly before their present ends."""

from __future__ import annotations

import time

from tsunagi.audit.evidence import read_placement
from tsunagi.audit.ledger import Ledger
from tsunagi.runtime.log import (
    DEAD_LETTERS,
    HEARTBEATS,
    LATE,
    PLAN,
    RECOVERED,
    RESULTS,
    TUPLES,
    Log,
    LogError,
    Position,
)
from tsunagi.system.topics import read_partition

_READ_RECORDS = 2000
_MOST_READS = 50
# How far back each topic is begun: batches of steps that are still open, and what was set aside of them.
_BACK = {TUPLES: 500, RECOVERED: 3, RESULTS: 100, LATE: 2000, DEAD_LETTERS: 2000, HEARTBEATS: 100, PLAN: 0}


class Watch:
    """Reads on when told to.

    Args:
        values, grace_s, delta: see `Ledger`.

    Raises:
        LogError: the broker does not answer, has no topics of ours, or no placement on `plan`.
    """

    def __init__(self, log: Log, *, values: bool = True, grace_s: float = 0.5, delta: float = 0.9) -> None:
        self.slots = log.partitions(TUPLES)
        if self.slots == 0:
            raise LogError(
                f"no topic {TUPLES} on this broker; does the system run, and is [kafka] servers its address?"
            )
        placement = read_placement(read_partition(log, PLAN, 0))
        self.ledger = Ledger(self.slots, placement, values=values, grace_s=grace_s, delta=delta)
        self._reader = log.reader()
        ends = log.reader()
        positions = []
        for topic, back in _BACK.items():
            for partition in range(log.partitions(topic)):
                first, end = ends.range(topic, partition)
                positions.append(Position(topic, partition, max(first, end - back)))
        ends.close()
        self._reader.assign(positions)

    def pump(self, timeout_s: float = 0.05) -> None:
        """Take in what is there; wait up to `timeout_s` for the first of it.

        Raises:
            OffsetLostError: retention passed the reader, or the log lost its end.
        """
        records = self._reader.read(_READ_RECORDS, timeout_s)
        for _ in range(_MOST_READS):
            for record in records:
                self.ledger.take(record)
            if len(records) < _READ_RECORDS:
                break
            records = self._reader.read(_READ_RECORDS, 0.0)
        self.ledger.advance()

    def pump_for(self, seconds: float) -> None:
        """Read for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.pump(min(0.05, left))

    def close(self) -> None:
        """Let go of the connection."""
        self._reader.close()
