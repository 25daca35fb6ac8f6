"""Reads the history of a running system from its log: what edges have sent, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import IN_MEMORY_BYTES
from tsunagi.recovery.step_history import StepCollector, StepHistory
from tsunagi.replay.generations import message_of
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.log import TUPLES, Log, LogError, Position, Reader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import tool_log

_READ_RECORDS = 2000
"""The most records of one read."""
_READ_S = 0.5
"""Longest wait of one read, in seconds."""
_PATIENCE_S = 30.0
"""A slot's log counts as unreadable if no record comes for so long, in seconds."""
_TELL_S = 3.0
"""Seconds between two lines of progress."""


def read_logged(
    settings: Settings, table: SensorTable, last_us: int | None, tell: Callable[[str], None], log: Log | None = None
) -> StepHistory:
    """Return what edges have sent, as the log holds it; estimates of lost readings are not among it.

    Args:
        last_us: how long before the newest record of each slot it begins, in microseconds; None = all there is.
        tell: called with lines of progress.
        log: another log than the configured one.

    Raises:
        LogError: the log does not answer.
        ModelError: the system has no steps, or the log no readings.
    """
    if settings.query.mode == "tuples":
        raise ModelError('--from-log: found [query] mode = "tuples", expected steps, in which a value can be missing')
    source = log or tool_log(settings, "fit")
    names = [sensor.name for sensor in table.sensors]
    collector = StepCollector(f"the log of {settings.kafka.servers}", names, IN_MEMORY_BYTES)
    reader = source.reader()
    try:
        for slot in range(source.partitions(TUPLES)):
            _read_slot(reader, slot, last_us, collector, tell)
    finally:
        reader.close()
    history = collector.history()
    if collector.left_out:
        room = f"{len(history.values)} steps are {IN_MEMORY_BYTES // 2**20} MiB, which is what is fitted in memory"
        tell(f"note: {collector.left_out} older steps are left out: {room}")
    return history


def _read_slot(
    reader: Reader, slot: int, last_us: int | None, collector: StepCollector, tell: Callable[[str], None]
) -> None:
    low, high = reader.range(TUPLES, slot)
    if low >= high:
        return
    begin = low if last_us is None else _beginning(reader, slot, low, high, last_us)
    reader.assign([Position(TUPLES, slot, begin)])
    at, told_s = begin, time.monotonic()
    deadline_s = told_s + _PATIENCE_S
    while at < high:
        now_s = time.monotonic()
        for record in reader.read(_READ_RECORDS, _READ_S):
            at, deadline_s = record.offset + 1, now_s + _PATIENCE_S
            message = message_of(record) if record.offset < high else None
            if message is not None and message.HasField("batch") and message.batch.sensor:
                batch = message.batch
                collector.add(batch.step, sensors(batch.sensor), floats(batch.value))
        if now_s > deadline_s:
            raise LogError(f"{TUPLES}/{slot}: read up to {at} only, expected {high}")
        if now_s - told_s > _TELL_S:
            told_s = now_s
            tell(f"reading the log: slot {slot}, {at - begin:,} of {high - begin:,} records")


def _beginning(reader: Reader, slot: int, low: int, high: int, last_us: int) -> int:
    """Return the offset of the first record that was appended at most so long before the last one, by bisection."""
    newest_us = _appended_us(reader, slot, high - 1)
    while low < high - 1:
        middle = (low + high) // 2
        if _appended_us(reader, slot, middle) < newest_us - last_us:
            low = middle
        else:
            high = middle
    return low


def _appended_us(reader: Reader, slot: int, offset: int) -> int:
    """Return when the record at an offset, or the next one that is there, was appended, in microseconds since 1970."""
    reader.assign([Position(TUPLES, slot, offset)])
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        for record in reader.read(1, _READ_S):
            return record.appended_us
    raise LogError(f"{TUPLES}/{slot}: offset {offset} cannot be read")
