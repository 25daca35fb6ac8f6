"""Successive batches of a slot's log without lock-step, which are processed together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats, Sensors, floats, sensors
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord, TupleBatch
from tsunagi.slot.parsing import ParsedMany
from tsunagi.slot.plain import PlainBatches

MAX_BYTES = 320_000
"""The most bytes of a run, the records that are processed at once; a tuple has 16. The run's columns stay in a core's
cache, and a run is short even if a tuple suddenly costs a hundred times more."""


class Batches:
    """Successive batches of a slot's log, by field, so that each field of a message is read only once."""

    __slots__ = ("counts", "edges", "event_times", "incarnations", "messages", "sensors", "steps", "values")

    def __init__(self, batches: Sequence[TupleBatch]) -> None:
        self.messages = batches
        self.edges = [batch.edge for batch in batches]
        self.incarnations = [batch.incarnation for batch in batches]
        self.steps = [batch.step for batch in batches]
        self.event_times = [batch.event_time_us for batch in batches]
        self.sensors = [batch.sensor for batch in batches]
        self.values = [batch.value for batch in batches]
        self.counts = [batch.count for batch in batches]

    def __len__(self) -> int:
        return len(self.edges)


class PlainRun:
    """Successive batches of the usual form: `count` of them, from the place `begin` among all.

    Attributes:
        edge, incarnation: those of all batches.
        rows: how many tuples each batch has.
        steps, event_times: int64[n].
    """

    __slots__ = ("_all", "_begin", "edge", "event_times", "incarnation", "rows", "steps")

    def __init__(self, batches: PlainBatches, begin: int, count: int) -> None:
        self._all, self._begin = batches, begin
        self.edge, self.incarnation, self.rows = batches.edge, batches.incarnation, batches.rows
        self.steps = batches.steps[begin : begin + count]
        self.event_times = batches.event_times[begin : begin + count]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each batch's record, int64[n]."""
        return np.arange(len(self)) + (self._all.first + self._begin)

    @property
    def ids(self) -> Sensors:
        """The sensor of each tuple, uint32[n * rows]."""
        begin = self._begin * self.rows
        return sensors(self._all.sensors)[begin : begin + len(self) * self.rows]

    @property
    def values(self) -> Floats:
        """The value of each tuple, float64[n * rows]."""
        begin = self._begin * self.rows
        return floats(self._all.values)[begin : begin + len(self) * self.rows]

    @property
    def origin(self) -> npt.NDArray[np.int64]:
        """The place of each tuple's batch, int64[n * rows]."""
        return np.repeat(np.arange(len(self)), self.rows)

    def messages(self) -> list[TupleBatch]:
        """Return the batches as messages."""
        return [self._all.batch(self._begin + place) for place in range(len(self))]


def gather(
    first: tuple[Record, ParsedMany],
    following: Iterable[tuple[Record, ParsedMany]],
    most: int,
    quarantined: Collection[int],
) -> tuple[list[Record], Sequence[TupleBatch] | PlainRun]:
    """Return the records that can be processed together, from the first on, and their batches; none if it is no batch.

    Args:
        most: at most so many.
        quarantined: the offsets of records that are not to be processed.
    """
    record, (message, _, _) = first
    if isinstance(message, PlainBatches):
        most = min(most, -(-MAX_BYTES // len(record.value or b"")))
        records = [record, *[item for item, parsed in islice(following, most - 1) if parsed[0] is message]]
        if quarantined:
            upto = next((place for place, item in enumerate(records) if item.offset in quarantined), len(records))
            records = records[:upto]
        return records, PlainRun(message, record.offset - message.first, len(records))
    records, batches, size = [], [], 0
    for record, (message, _, kind) in islice(chain((first,), following), most):
        if not isinstance(message, LogRecord) or kind != "batch" or size >= MAX_BYTES or record.offset in quarantined:
            break
        size += len(record.value or b"")
        batches.append(message.batch)
        records.append(record)
    return records, batches


def bare(batch: TupleBatch) -> TupleBatch:
    """Return a batch without its values: it says how far its edge has come."""
    return TupleBatch(
        edge=batch.edge, incarnation=batch.incarnation, step=batch.step, event_time_us=batch.event_time_us
    )
