"""Writes to the topic `plan` what a user's commands ask of a running system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from tsunagi.runtime.log import PLAN, Log, LogError
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import read_partition, tool_log

_SEND_S = 10.0
"""Longest wait until the broker has acknowledged the records, in seconds."""
_TRIES = 5
"""Number of attempts to write a record while others write the same key at the same moment."""
Write = Callable[[Settings, Mapping[str, Plan]], None]
"""Writes records to `plan` as `write_plan` does. One that writes nothing shows what would be done."""


def write_plan(settings: Settings, records: Mapping[str, Plan]) -> None:
    """Append records to `plan`, each under its key and with a serial above the last one's, so that they are in force.

    Raises:
        LogError: the broker does not take a record, or others keep writing the same key at the same moment.
    """
    append_plan(tool_log(settings, "plan"), records)


def append_plan(source: Log, records: Mapping[str, Plan]) -> None:
    """Do the same as `write_plan`, with a log that the caller has opened."""
    left = dict(records)
    words = _words(source)
    for _ in range(_TRIES):
        serials = {key: words.in_force(key)[0] + 1 for key in left}
        for key, plan in left.items():
            (plan.placement if plan.HasField("placement") else plan).serial = serials[key]
        places = _append(source, left)
        words = _words(source)
        # Of two records with the same serial the first is in force. One with a greater serial is a later request, and
        # stays.
        found = {key: words.in_force(key) for key in left}
        left = {
            key: plan
            for key, plan in left.items()
            if found[key][0] <= serials[key] and found[key] != (serials[key], places[key])
        }
        if not left:
            return
    raise LogError(f"plan: others write {', '.join(left)} at the same time, {_TRIES} times in a row")


def _words(source: Log) -> Words:
    words, logger = Words(), structlog.get_logger("tsunagi.plan")
    for record in read_partition(source, PLAN, 0):
        plan = read_message(Plan, record, logger)
        if plan is not None:
            words.take(plan, record.offset)
    return words


def _append(source: Log, records: Mapping[str, Plan]) -> dict[str, int]:
    """Append records; return the offset of each."""
    producer = source.producer()
    failed: list[LogError] = []
    places: dict[str, int] = {}

    def delivered(key: str, error: LogError | None, offset: int) -> None:
        places[key] = offset
        if error is not None:
            failed.append(error)

    try:
        for key, plan in records.items():
            producer.send(PLAN, 0, key.encode(), plan.SerializeToString(), partial(delivered, key))
        left = producer.flush(_SEND_S)
    except LogError:
        if failed:  # the broker's answer tells more than that the producer has ended
            raise failed[0] from None
        raise
    finally:
        producer.close()
    if failed:
        raise failed[0]
    if left:
        raise LogError(f"plan: the broker did not take {left} of {len(records)} records within {_SEND_S:g} s")
    return places
