"""Reads the past of one sensor from the log: its values with their bounds, and what came late for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tsunagi.console.values import READINGS
from tsunagi.runtime.columns import Bytes, Floats, floats, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import LATE, RECOVERED, RESULTS, Log, Reader, Record
from tsunagi.runtime.messages import QUALITY_NAMES, Late
from tsunagi.runtime.outputs import Outputs
from tsunagi.runtime.results import ResultsReader
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.system.topics import offset_of_last, range_of, records_between

MOST_RECORDS = 2_000_000
"""Records that one question reads at most; what is older is left out, and it is said."""
HOUR_US = 3_600_000_000
"""An hour, in microseconds."""


@dataclass(slots=True)
class SensorHistory:
    """The past of a sensor, as lists in the order of time.

    Attributes:
        time_us: event times, microseconds since 1970.
        value, sd, bound: in the sensor's unit; NaN = nothing is known.
        quality: the numbers of `Quality`.
        late: (event time, value) of readings that came when their steps had closed.
        whole: whether all of the wanted time was read.
    """

    time_us: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    sd: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    quality: list[int] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)
    whole: bool = True

    def as_json(self, points: int) -> dict[str, Any]:
        """Return at most so many points, in the columns that the page draws; NaN becomes null."""
        places = thinned(np.array(self.value), np.array(self.quality, dtype=np.uint8), points)
        return {
            "time_s": [self.time_us[place] / 1e6 for place in places],
            "value": [number(self.value[place]) for place in places],
            "sd": [number(self.sd[place]) for place in places],
            "bound": [number(self.bound[place]) for place in places],
            "quality": [QUALITY_NAMES[self.quality[place]] for place in places],
            "late": [[at / 1e6, number(value)] for at, value in self.late],
            "values": len(self.value),
            "whole": self.whole,
        }


def number(value: float) -> float | None:
    """Return a value that JSON has: None instead of NaN and infinity."""
    return value if np.isfinite(value) else None


def thinned(values: Floats, quality: Bytes, points: int) -> list[int]:
    """Return which points are drawn: of each bucket the least and the greatest value, and every change of quality."""
    count = len(values)
    if count <= points:
        return list(range(count))
    kept: set[int] = {0, count - 1}
    edges = np.linspace(0, count, max(2, points // 2) + 1).astype(int)
    filled = np.where(np.isfinite(values), values, 0.0)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if low < high:
            part = filled[low:high]
            kept |= {low + int(part.argmin()), low + int(part.argmax())}
    changes = np.flatnonzero(quality[1:] != quality[:-1]) + 1
    kept |= set(changes[: points // 2].tolist())
    return sorted(kept)


def read_history(log: Log, settings: Settings, table: SensorTable, sensor: Sensor, hours: float) -> SensorHistory:
    """Return the last hours of a sensor.

    Raises:
        LogError: the log does not answer.
    """
    found = SensorHistory()
    reader = log.reader()
    try:
        at, found.whole = _begin(reader, log, settings, int(hours * HOUR_US))
        rows = _rows(log, settings, table, sensor, at)
        for time_us, value, sd, bound, quality in sorted(rows):
            found.time_us.append(time_us)
            found.value.append(value)
            found.sd.append(sd)
            found.bound.append(bound)
            found.quality.append(min(quality, len(QUALITY_NAMES) - 1))
        if rows:
            found.late = sorted(_late(reader, sensor.id, found.time_us[0]))
    finally:
        reader.close()
    return found


def _begin(reader: Reader, log: Log, settings: Settings, span_us: int) -> tuple[dict[int, int], bool]:
    """Return the offset at which each partition is begun, and whether that is all of the wanted time."""
    topic = RECOVERED if settings.query.mode == "tuples" else RESULTS
    partitions = log.partitions(topic)
    at, whole = {}, True
    for partition in range(partitions):
        first, end = range_of(reader, topic, partition)
        at[partition] = first if first == end else offset_of_last(reader, topic, partition, (first, end), span_us)
        if end - at[partition] > MOST_RECORDS // partitions:
            at[partition], whole = end - MOST_RECORDS // partitions, False
    return at, whole


def _rows(
    log: Log, settings: Settings, table: SensorTable, sensor: Sensor, at: dict[int, int]
) -> list[tuple[int, float, float, float, int]]:
    prefix = f"readings/{sensor.group or settings.spark.unknown_group}/".encode()

    def wanted(record: Record) -> bool:
        return record.key is not None and record.key.startswith(prefix)

    found = []
    results = (
        Outputs(log, settings, table, at=at)
        if settings.query.mode == "tuples"
        else ResultsReader(log, settings, table, at=at, wanted=wanted)
    )
    with results:
        for block in results.blocks():
            places = np.flatnonzero(block.sensor == sensor.id) if block.query in READINGS else ()
            for place in map(int, places):
                numbers = float(block.mean[place]), float(block.sd[place]), float(block.bound[place])
                found.append((block.event_time_us, *numbers, int(block.quality[place])))
    return found


def _late(reader: Reader, sensor: int, from_us: int) -> Iterator[tuple[int, float]]:
    """Yield what came late for a sensor, from this event time on."""
    first, end = range_of(reader, LATE, 0)
    for records in records_between(reader, LATE, 0, max(first, end - MOST_RECORDS // 10), end):
        for record in records:
            try:
                late = decode(Late, record.value)
            except UnusableError:
                continue
            said = late.batch if late.HasField("batch") else late.recovered
            if said.event_time_us >= from_us:
                values = floats(late.batch.value if late.HasField("batch") else late.recovered.mean)
                for place in np.flatnonzero(sensors(said.sensor) == sensor).tolist():
                    yield said.event_time_us, float(values[place])
