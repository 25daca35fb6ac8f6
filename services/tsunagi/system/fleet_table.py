"""Reads the sensors table that is in force from `plan`, or from the file if the fleet has none there yet."""

from __future__ import annotations

import structlog

from tsunagi.runtime.fleet_table import KEY, unpack_table
from tsunagi.runtime.log import PLAN, Log
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import FleetTable, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import read_partition


def table_record(source: Log) -> FleetTable | None:
    """Return the record of the table in force; None = `plan` has none yet.

    Raises:
        LogError: the log does not answer.
    """
    words, logger, found = Words(), structlog.get_logger("tsunagi.plan"), None
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
