"""Reads all topics for the ledger, from shortly before their present ends."""

from __future__ import annotations

import time

from tsunagi.audit.evidence import read_placement
from tsunagi.audit.ledger import AuditLedger
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
"""Most records that are read at once."""
_MOST_READS = 50
"""Most reads before the ledger compares the topics. Otherwise a reader that lags would not compare for long."""
# How many records before its end each topic is read from. Among them are the batches of steps that are still open, and
# those of them that were set aside.
_BACK = {TUPLES: 500, RECOVERED: 3, RESULTS: 100, LATE: 2000, DEAD_LETTERS: 2000, HEARTBEATS: 100, PLAN: 0}


class ChaosWatch:
    """Reads the topics on each call of `pump`, and gives the records to a ledger.

    Args:
        log: the log of the system that is disturbed.
        values, grace_s, delta: as for `AuditLedger`.

    Attributes:
        slots: the number of slots.
        ledger: the ledger that judges the records.

    Raises:
        LogError: the broker does not answer, or does not have Tsunagi's topics, or `plan` has no placement.
    """

    def __init__(self, log: Log, *, values: bool = True, grace_s: float = 0.5, delta: float = 0.9) -> None:
        self.slots = log.partitions(TUPLES)
        if self.slots == 0:
            raise LogError(
                f"no topic {TUPLES} on this broker; does the system run, and is [kafka] servers its address?"
            )
        placement = read_placement(read_partition(log, PLAN, 0))
        self.ledger = AuditLedger(self.slots, placement, values=values, grace_s=grace_s, delta=delta)
        self._reader = log.reader()
        ends = log.reader()
        positions = []
        for topic, back in _BACK.items():
            for partition in range(1 if topic == HEARTBEATS else log.partitions(topic)):  # of those, the summary
                first, end = ends.range(topic, partition)
                positions.append(Position(topic, partition, max(first, end - back)))
        ends.close()
        self._reader.assign(positions)

    def pump(self, timeout_s: float = 0.05) -> None:
        """Read the records that are there. Wait up to `timeout_s` seconds for the first one.

        Raises:
            OffsetLostError: the next records were deleted, or the log has lost its end.
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
        """Read for this long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.pump(min(0.05, left))

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
