"""Checks a user's sink against the laws of docs/howto/sinks.md, in the sink's own tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tsunagi.runtime.log import RESULTS
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Sink
from tsunagi.sink.feed import READING_SCHEMA
from tsunagi.sink.make import own_sink
from tsunagi.sink.rows import Advance, RowOrigin, SinkBatch, SinkPosition, SinkRows
from tsunagi.slot.testkit import LawError

Read = Callable[[], Iterable[Mapping[str, Any]]]
"""Returns what the target has of `readings`, as mappings that have `time`, `sensor` and `value` at least."""
SENSORS = 5
"""Sensors of the made-up readings."""
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the first reading."""


def check_own_sink(use: str, options: Mapping[str, Any], read: Read, count: int, seed: int) -> None:
    """Write made-up readings as the service does: straight on, again, and after a restart.

    Args:
        use: module:Class.
        options: as `[sinks.options]`.
        read: reads the target, which must be empty at first.
        count: how many steps of readings are written.
        seed: seed of the values.

    Raises:
        LawError: the sink breaks a law; the message says which one, and where.
        SinkError: the sink cannot be made from its options.
        OSError: the target is away.
    """
    wanted = SinkSettings.model_validate({"name": "checked", "kind": "own", "use": use, "options": dict(options)})
    batches = list(_batches(count, seed))
    sink = own_sink(wanted)
    sink.close()  # as the service does if `open` fails
    sink.open()
    for number, batch in enumerate(batches):
        _write(sink, batch)
        _compare(read, batches[: number + 1], "after `write`")
    _write(sink, SinkBatch(batches[-1].parts))
    _compare(read, batches, "after a batch was written again by the same object")
    sink.close()
    sink.close()
    other = own_sink(wanted)
    other.open()
    for batch in batches[len(batches) // 2 :]:
        for half in batch.halves():
            _write(other, half)
    _compare(read, batches, "after batches were written again by another object, in halves")
    other.close()


def _write(sink: Sink, batch: SinkBatch) -> None:
    if refused := sink.write(batch):
        raise LawError(f"it refuses a row of plain readings: {refused[0]}")


def _compare(read: Read, batches: Iterable[SinkBatch], when: str) -> None:
    wanted = {READING_SCHEMA.key_of(row): row for batch in batches for part in batch.parts for row in part.rows}
    found = list(read())
    seen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    newest: dict[Any, Any] = {}
    place = READING_SCHEMA.place("value")
    for row in found:
        key = tuple(row[name] for name in READING_SCHEMA.key)
        if key in seen:
            raise LawError(f"not idempotent by name: {when}, the target has {key} twice")
        if newest.get(row["sensor"], key[0]) > key[0]:
            raise LawError(f"not ordered: {when}, the target has {key} behind {newest[row['sensor']]} of its sensor")
        newest[row["sensor"]] = key[0]
        seen[key] = row
    for key, values in wanted.items():
        if key not in seen:
            raise LawError(f"not kept: {when}, the target lacks {key}")
        if seen[key]["value"] != values[place]:
            raise LawError(f"{when}, the target has {seen[key]['value']!r} for {key}, expected {values[place]!r}")
    if extra := sorted(seen.keys() - wanted.keys()):
        raise LawError(f"{when}, the target has {extra[0]}, which was never written")


def _batches(count: int, seed: int) -> Iterable[SinkBatch]:
    """Yield batches of some steps, each with its position."""
    values = random.Random(seed)
    before = None
    for first in range(0, count, 3):
        parts = [_step(step, values) for step in range(first, min(first + 3, count))]
        after = SinkPosition(first + len(parts), "topic")
        yield SinkBatch(tuple(parts), {(RESULTS, 0): Advance(before, after)})
        before = after


def _step(step: int, values: random.Random) -> SinkRows:
    rows = []
    for sensor in range(SENSORS):
        estimated = values.random() < 0.2
        bound = values.uniform(0.1, 1.0) if estimated else 0.0
        place = (_BEGIN + timedelta(seconds=step), f"sensor {sensor}", "group", "K")
        known = (values.gauss(), bound / 2, bound, "bounded" if estimated else "exact")
        rows.append((*place, *known, 60, 0, 0.0, step))
    return SinkRows(READING_SCHEMA, rows, origin=RowOrigin(RESULTS, 0, step))
