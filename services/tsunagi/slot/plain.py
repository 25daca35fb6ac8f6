"""Batches of the usual form, read as columns.

Most records of a busy log are batches of one edge that differ in their numbers alone: they have the same length, and
the same bytes but in a few places. The first of them is parsed and checked like any record. It says where the numbers
stand. Those of the others are then taken out of the bytes of all of them at once. Whatever differs elsewhere is parsed
by itself, so the result is always that of `tsunagi.slot.parsing.parse`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tsunagi.runtime.columns import Bytes
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import VERSION, LogRecord, TupleBatch
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.varints import MAX_LENGTH, are_varints, read_varints

_BATCH = LogRecord.DESCRIPTOR.fields_by_name["batch"].number << 3 | 2
"""What stands before a batch: its number with wire type 2."""
_MAC = LogRecord.DESCRIPTOR.fields_by_name["mac"].number << 3 | 2
"""What stands before a keyed hash."""
_VARINT, _FIXED64, _BYTES = 0, 1, 2
"""Wire types of protobuf."""
_FORMS = tuple(
    tuple(
        TupleBatch.DESCRIPTOR.fields_by_name[name].number << 3 | wire
        for name, wire in (
            ("edge", _BYTES),
            ("incarnation", _FIXED64),
            ("step", _VARINT),
            ("event_time_us", _VARINT),
            ("sensor", _BYTES),
            ("value", _BYTES),
            *count,
        )
    )
    for count in ((("count", _BYTES),), ())
)
"""The fields of a batch of the usual form, in this order: with counts and without."""


class Span(NamedTuple):
    """Where a field's value stands in a record: at the bytes [begin, end)."""

    begin: int
    end: int

    def of(self, rows: Bytes) -> Bytes:
        """Return the field's bytes, uint8[n, end - begin], of records uint8[n, length]."""
        return rows[:, self.begin : self.end]


class PlainBatches:
    """Successive records that are batches of one edge with equally many tuples each.

    Attributes:
        edge, incarnation: those of all batches.
        first: offset of the first record; each of the others has the next offset.
        steps, event_times: int64[n].
        rows: how many tuples each batch has.
        sensors, values, counts: the columns of all batches, one batch behind the other; `counts` may be empty.
    """

    __slots__ = ("counts", "edge", "event_times", "first", "incarnation", "rows", "sensors", "steps", "values")

    def __init__(self, first: int, like: TupleBatch, rows: Bytes, spans: Sequence[Span]) -> None:
        step, event_time, sensor, value, *count = spans
        self.edge, self.incarnation, self.first = like.edge, like.incarnation, first
        self.steps, self.event_times = read_varints(step.of(rows)), read_varints(event_time.of(rows))
        self.rows = len(like.sensor) >> 2
        self.sensors, self.values = sensor.of(rows).tobytes(), value.of(rows).tobytes()
        self.counts = count[0].of(rows).tobytes() if count else b""

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, place: int) -> TupleBatch:
        """Return the batch at a place as a message."""
        narrow, wide = (slice(size * self.rows * place, size * self.rows * (place + 1)) for size in (4, 8))
        return TupleBatch(
            edge=self.edge,
            incarnation=self.incarnation,
            step=int(self.steps[place]),
            event_time_us=int(self.event_times[place]),
            sensor=self.sensors[narrow],
            value=self.values[wide],
            count=self.counts[narrow],
        )

    def message(self, offset: int) -> LogRecord:
        """Return the record at an offset as a message, without its keyed hash, which has been checked."""
        return LogRecord(version=VERSION, batch=self.batch(offset - self.first))


def plain_batches(records: Sequence[Record], like: LogRecord) -> PlainBatches | None:
    """Return the first records as columns, as many as are like the first one; None = that one has no usual form.

    Args:
        records: their values are equally long.
        like: the message of the first record, which is a batch and was found to be usable.
    """
    first = records[0]
    value = first.value or b""
    found = _spans(value, like)
    if found is None:
        return None
    spans, mac = found
    rows = np.frombuffer(b"".join([record.value or b"" for record in records]), dtype=np.uint8)
    rows = rows.reshape(len(records), len(value))
    same = rows == rows[0]
    for begin, end in (*spans, *mac):
        same[:, begin:end] = True
    alike = same.all(axis=1)
    step, event_time = spans[:2]
    for span in (step, event_time):
        column = span.of(rows)
        alike &= are_varints(column) & (read_varints(column) <= MAX_TIME_US)
    alike &= np.array([record.signer == first.signer for record in records])
    alike &= np.array([record.offset for record in records]) == np.arange(first.offset, first.offset + len(records))
    count = len(records) if alike.all() else int(alike.argmin())
    return PlainBatches(first.offset, like.batch, rows[:count], spans)


def _spans(value: bytes, like: LogRecord) -> tuple[list[Span], list[Span]] | None:
    """Return where step, time, sensors, values and counts stand, and where the keyed hash; None = no usual form."""
    envelope = list(_fields(value, 0, len(value)))
    batch = [span for tag, span in envelope if tag == _BATCH]
    if like.version != VERSION or [tag for tag, _ in envelope if tag != _MAC][1:] != [_BATCH]:
        return None
    within = list(_fields(value, *batch[0]))
    if tuple(tag for tag, _ in within) not in _FORMS:
        return None
    spans = [span for _, span in within[2:]]
    step, event_time, sensor, values, *count = spans
    width = sensor.end - sensor.begin
    if max(step.end - step.begin, event_time.end - event_time.begin) > MAX_LENGTH:
        return None
    if not width or width & 3 or values.end - values.begin != 2 * width:
        return None
    if any(span.end - span.begin != width for span in count):
        return None
    return spans, [span for tag, span in envelope if tag == _MAC]


def _fields(value: bytes, at: int, end: int) -> Iterator[tuple[int, Span]]:
    """Yield (number and wire type, where the value stands) of the fields of a message that protobuf has parsed.

    A field of another wire type than those of a batch ends it, with a tag that no form has.
    """
    while at < end:
        tag, at = _number(value, at)
        wire = tag & 7
        if wire == _VARINT:
            _, upto = _number(value, at)
        elif wire == _FIXED64:
            upto = at + 8
        elif wire == _BYTES:
            size, at = _number(value, at)
            upto = at + size
        else:
            yield -1, Span(at, end)
            return
        yield tag, Span(at, upto)
        at = upto


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Return the varint at this place, and the place behind it."""
    number = shift = 0
    while True:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
