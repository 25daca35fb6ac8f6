"""Reads the history of a running system from its log: what edges have sent, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import IN_MEMORY_BYTES
from tsunagi.recovery.logged_steps import LoggedSteps
from tsunagi.recovery.step_history import StepHistory
from tsunagi.runtime.log import TUPLES, Reader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.topics import offset_of_last, range_of, records_between, tool_log

_TELL_S = 3.0
"""Seconds between two lines of progress."""


def read_logged(
    settings: Settings, last_us: int | None, tell: Callable[[str], None]
) -> tuple[StepHistory, SensorTable]:
    """Return what edges have sent, as the log holds it, and the sensors table in force.

    Estimates of lost readings, and sensors that were removed, are not among it.

    Args:
        last_us: how long before the newest record of each slot it begins, in microseconds; None = all there is.
        tell: called with lines of progress.

    Raises:
        LogError: the log does not answer.
        SensorsError: as in `sensors_in_force`.
        ModelError: the system has no steps, or the log no readings.
    """
    if settings.query.mode == "tuples":
        raise ModelError('--from-log: found [query] mode = "tuples", expected steps, in which a value can be missing')
    source = tool_log(settings, "fit")
    table = sensors_in_force(source, settings)
    logged = LoggedSteps(settings, table, f"the log of {settings.kafka.servers}", IN_MEMORY_BYTES)
    reader = source.reader()
    try:
        for slot in range(source.partitions(TUPLES)):
            _read_slot(reader, slot, last_us, logged, tell)
    finally:
        reader.close()
    history, left_out = logged.history(), logged.collector.left_out
    if left_out:
        room = f"{len(history.values)} steps are {IN_MEMORY_BYTES // 2**20} MiB, which is what is fitted in memory"
        tell(f"note: {left_out} older steps are left out: {room}")
    return history, table


def _read_slot(
    reader: Reader, slot: int, last_us: int | None, logged: LoggedSteps, tell: Callable[[str], None]
) -> None:
    low, high = range_of(reader, TUPLES, slot)
    if low >= high:
        return
    begin = low if last_us is None else offset_of_last(reader, TUPLES, slot, (low, high), last_us)
    told_s = time.monotonic()
    for records in records_between(reader, TUPLES, slot, begin, high):
        for record in records:
            logged.take(record)
        if time.monotonic() - told_s > _TELL_S:
            told_s = time.monotonic()
            tell(f"reading the log: slot {slot}, {records[-1].offset + 1 - begin:,} of {high - begin:,} records")
