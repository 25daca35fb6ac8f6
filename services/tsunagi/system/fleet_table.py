"""The sensors table that is in force: the newest one of `plan`, or the file's if the fleet has none there yet."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

from tsunagi.runtime.fleet_table import KEY, unpack_or_none, unpack_table
from tsunagi.runtime.log import PLAN, Log, Position, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import FleetTable, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorsError, SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import range_of, read_partition, records_between

_RECORDS = 1000
"""Most records of `plan` that a follower reads at once."""


def table_record(source: Log) -> FleetTable | None:
    """Return the record of the table in force; None = `plan` has none yet.

    Raises:
        LogError: the log does not answer.
    """
    words, logger, found = Words(), structlog.get_logger("tsunagi.plan"), None
    if source.partitions(PLAN) == 0:
        return None
    for record in read_partition(source, PLAN, 0):
        plan = read_message(Plan, record, logger)
        if plan is not None and plan.WhichOneof("body") == KEY and words.take(plan, record.offset):
            found = plan.table
    return found


def sensors_in_force(source: Log, settings: Settings) -> SensorTable:
    """Return the sensors table that is in force.

    Raises:
        SensorsError: there is none in `plan`, and the file cannot be used.
        LogError: the log does not answer.
    """
    record = table_record(source)
    return read_sensors(settings.sensors) if record is None else unpack_table(record)


class SensorsFile:
    """The user's sensors table, which is read again when its file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: tuple[float, SensorTable] | None = None

    def read(self) -> SensorTable:
        """Return the table.

        Raises:
            SensorsError: the file cannot be used.
        """
        changed_s = self._path.stat().st_mtime if self._path.exists() else 0.0
        if self._found is None or self._found[0] != changed_s:
            self._found = changed_s, read_sensors(self._path)
        return self._found[1]


class TableFollower:
    """Follows the table in force, for what runs for long.

    Attributes:
        table: the table in force, as far as `poll` has read.

    Raises:
        SensorsError: there is none in `plan`, and the file cannot be used.
        LogError: the log does not answer.
    """

    def __init__(self, log: Log, settings: Settings) -> None:
        self._words = Words()
        self._logger: structlog.stdlib.BoundLogger = structlog.get_logger("tsunagi.plan")
        self._file = SensorsFile(settings.sensors)
        self._newest: SensorTable | None = None  # of `plan`
        self._reader = log.reader()
        if log.partitions(PLAN):
            low, high = range_of(self._reader, PLAN, 0)
            for records in records_between(self._reader, PLAN, 0, low, high):
                for record in records:
                    self._take(record)
            self._reader.assign([Position(PLAN, 0, high)])
        self.table = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> SensorTable:
        """Read what has come, without a wait; return the table in force.

        A file that is gone, or cannot be used any more, changes nothing: a user may be about to write it.

        Raises:
            LogError: the log cannot be read.
        """
        for record in self._reader.read(_RECORDS, 0.0):
            self._take(record)
        with suppress(SensorsError):
            self.table = self._read()
        return self.table

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _read(self) -> SensorTable:
        return self._newest or self._file.read()

    def _take(self, record: Record) -> None:
        plan = read_message(Plan, record, self._logger)
        if plan is not None and plan.WhichOneof("body") == KEY and self._words.take(plan, record.offset):
            self._newest = unpack_or_none(plan.table, self._logger) or self._newest
