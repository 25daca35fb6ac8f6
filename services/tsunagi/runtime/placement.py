"""Reads `plan` for the Spark job: the sensors table, the placement of sensors, and the statements in CQL."""

from __future__ import annotations

import time

import structlog

from tsunagi.runtime.fleet_table import KEY, unpack_or_none
from tsunagi.runtime.log import PLAN, Log, LogError, Position, Reader, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import Placement, Plan, QueryChange
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable

_READ_S = 0.1
"""Longest wait of one read, in seconds."""
_CATCH_UP_S = 10.0
"""Longest time in which the records of `plan` must come, in seconds. Then the log counts as not answering."""


class PlacementReader:
    """Follows the sensors tables, the placements and the statements on `plan`, by the rule of `tsunagi.runtime.plan`.

    Args:
        log: the log.

    Attributes:
        table: the sensors table in force, as far as `latest` has read; None = `plan` has none.
        table_serial: the serial number of its record; 0 = `plan` has none.
        statements: the statements in CQL that are in force, by name, as far as `latest` has read.
    """

    def __init__(self, log: Log) -> None:
        # There are two readers, because one that waits for records tells the end of the log only after its wait.
        self._ends: Reader = log.reader()
        self._reader: Reader = log.reader()
        self._next = self._ends.range(PLAN, 0)[0]
        self._words = Words()
        self._newest: Placement | None = None
        self.table: SensorTable | None = None
        self.table_serial = 0
        self.statements: dict[str, QueryChange] = {}
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger("tsunagi.placement")

    def latest(self) -> Placement | None:
        """Read to the present end of `plan`, and return the newest placement; None if there is none yet.

        Raises:
            LogError: the log does not answer, or its records do not come within `_CATCH_UP_S`.
        """
        end = self._ends.range(PLAN, 0)[1]
        if self._next >= end:
            return self._newest
        deadline = time.monotonic() + _CATCH_UP_S
        self._reader.assign([Position(PLAN, 0, self._next)])
        while self._next < end:
            for record in self._reader.read(1000, _READ_S):
                self._next = record.offset + 1
                self._take(record)
            if self._next < end and time.monotonic() > deadline:
                raise LogError(f"plan/0: records {self._next}..{end} did not come within {_CATCH_UP_S:g} s")
        self._reader.assign([])
        return self._newest

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._ends.close()

    def _take(self, record: Record) -> None:
        plan = None if record.value is None else read_message(Plan, record, self._logger)
        kind = None if plan is None else plan.WhichOneof("body")
        if plan is None or kind not in ("placement", "query", KEY) or not self._words.take(plan, record.offset):
            return
        if kind == "placement":
            self._newest = plan.placement
        elif kind == KEY:
            table = unpack_or_none(plan.table, self._logger)
            if table is not None:
                self.table, self.table_serial = table, plan.serial
        elif plan.query.text:
            self.statements[plan.query.name] = plan.query
        else:
            self.statements.pop(plan.query.name, None)


def read_placement(log: Log) -> Placement | None:
    """Return the placement in force; None if the scaler has not written one yet."""
    reader = PlacementReader(log)
    try:
        return reader.latest()
    finally:
        reader.close()
