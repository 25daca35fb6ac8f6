"""Decodes records of `recovered` into blocks of columns, one for each (slot, P-SORT core).

Repeats are dropped by name, since a takeover may write outputs again under the same names. A record that cannot be used
goes to `dead-letters` with its reason; rows that come after their group's step was delivered go to `late`. Nothing else
is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tsunagi.query.relations import Rows
from tsunagi.query.typed import rows_of
from tsunagi.runtime.columns import F64, U8, U32, sensors
from tsunagi.runtime.door import UnusableError
from tsunagi.runtime.door import decode as decode_message
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, Record
from tsunagi.runtime.marks import digest_of
from tsunagi.runtime.messages import VERSION, DeadLetter, Late, Recovered
from tsunagi.runtime.names import Name, pack_key, unpack_key
from tsunagi_spark.blocks import Counters, RecoveredRows, SlotBlock
from tsunagi_spark.events import packed
from tsunagi_spark.frontier import NEVER, SlotMark
from tsunagi_spark.layout import Flags, Ints, Layout

CUT_BYTES = 65_536
"""Bytes of a record that its dead letter keeps."""


class Arrived(NamedTuple):
    """One record of `recovered`; `slot` is its partition, `appended_us` its append time (0 = not known)."""

    slot: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_us: int = 0


class Sidelined(NamedTuple):
    """A record that is to be written to `late` or `dead-letters`."""

    topic: str
    key: bytes
    value: bytes


class SlotDecoder:
    """Decodes the records of one slot, in log order.

    Args:
        mark: how far the slot had been read before.
        delivered: int64[groups], the last step that was sent for each group; NEVER if none.
        slide_us: length of a step in microseconds.
        events: whether events are kept, since a query may read them.
    """

    def __init__(
        self, slot: int, mark: SlotMark, layout: Layout, delivered: Ints, slide_us: int, *, events: bool = True
    ) -> None:
        self.slot = slot
        self.mark = mark
        self.counters = Counters()
        self.sidelined: list[Sidelined] = []
        self._layout = layout
        self._slide_us = slide_us
        self._delivered = np.full(len(layout.groups), NEVER, dtype=np.int64)
        self._delivered[: len(delivered)] = delivered
        held = layout.held[:, slot] if slot < layout.slots else np.zeros(len(layout.groups), dtype=np.bool_)
        self._newest_delivered = int(self._delivered[held].max(initial=NEVER))
        self._kept: list[Recovered] = []
        self._keeps_events = events
        self._events: list[tuple[str, Rows]] = []
        self._now_us = time.time_ns() // 1000
        self._newest: Arrived | None = None
        self.bytes = 0

    def add(self, record: Arrived) -> None:
        """Decode one record and keep its rows."""
        self.counters.records += 1
        if record.offset < self.mark.read_to:
            self.counters.repeats += 1
            return
        self.mark = self.mark._replace(read_to=record.offset + 1)
        self._newest = record
        try:
            message = self._read(record)
            if message is None:
                return
            if not message.query:
                self._place(message, record)
            elif self._keeps_events:
                self._events.append((message.query, rows_of(message)))
                self.bytes += len(record.value or b"")
        except UnusableError as error:
            self._bury(record, error.reason, str(error))

    def blocks(self) -> list[SlotBlock]:
        """Return what was kept since the last call, as one block for every core, since each core needs the mark."""
        kept, self._kept, self.bytes = self._kept, [], 0
        if self._newest is not None:
            _, offset, key, value, at_us = self._newest
            digest = digest_of(Record(RECOVERED, self.slot, offset, at_us, key, value))
            self.mark = self.mark._replace(digest=digest, read_us=at_us)
        lengths = [len(message.quality) for message in kept]
        steps = np.array([message.step for message in kept], dtype=np.int64)
        rows = RecoveredRows(
            sensor=np.frombuffer(b"".join(message.sensor for message in kept), dtype=U32),
            step=np.repeat(steps, lengths),
            mean=np.frombuffer(b"".join(message.mean for message in kept), dtype=F64),
            sd=np.frombuffer(b"".join(message.sd for message in kept), dtype=F64),
            quality=np.frombuffer(b"".join(message.quality for message in kept), dtype=U8),
            bound=np.frombuffer(b"".join(message.bound for message in kept), dtype=F64),
        )
        appended_us = np.array([message.appended_us for message in kept], dtype=np.int64)
        self.counters.rows += len(rows)
        self.counters.nan_rows += int(np.isnan(rows.mean).sum())
        counters, self.counters = self.counters, Counters()
        core_of = self._layout.sensor_core[rows.sensor]
        found = [
            SlotBlock(core, self.slot, self.mark, counters, steps, appended_us, rows.take(core_of == core))
            for core in range(self._layout.cores)
        ]
        found[-1].events, self._events = packed(self.slot, self._events), []
        return found

    def _read(self, record: Arrived) -> Recovered | None:
        """Return the message of a record; None if it is a repeat."""
        try:
            generation, slot, name = unpack_key(record.key)
        except ValueError as error:
            raise UnusableError("unreadable", str(error)) from None
        if slot != self.slot:
            raise UnusableError("foreign-slot", f"found slot {slot} in partition {self.slot}")
        current = generation == self.mark.generation
        if generation in self.mark.past or (current and name <= (self.mark.last_offset, self.mark.last_index)):
            self.counters.repeats += 1
            return None
        message = _parse(record.value)
        if (message.generation, message.slot, message.offset, message.index) != (generation, slot, *name):
            raise UnusableError("unreadable", "the name in the value is not the one in the key")
        if message.event_time_us != message.step * self._slide_us:
            found = f"found event time {message.event_time_us} us for step {message.step}"
            raise UnusableError("unreadable", f"{found}, expected {message.step * self._slide_us}")
        # This holds also if the log was made anew: a step that was read is not read again from another log.
        if message.step <= self.mark.step:
            raise UnusableError("out-of-order", f"found step {message.step} after step {self.mark.step}")
        past = self.mark.past
        if not current and self.mark.generation:
            past = (*past, self.mark.generation)
        self.mark = self.mark._replace(
            generation=generation,
            last_offset=name.offset,
            last_index=name.index,
            step=self.mark.step if message.query else message.step,  # values come behind all events of their step
            epoch=max(message.epoch, self.mark.epoch) if current else message.epoch,
            past=past,
        )
        return message

    def _place(self, message: Recovered, record: Arrived) -> None:
        """Keep the rows that can be used, and set the others aside."""
        sensor = sensors(message.sensor)
        if len(sensor):
            known = sensor < len(self._layout)
            if not known.all():
                names = ", ".join(str(number) for number in sensor[~known][:10])
                self._bury(record, "unknown-sensor", f"sensors {names} are not placed")
                message, sensor = _select(message, known), sensor[known]
            mine = self._layout.of_slot(sensor, self.slot)
            if not mine.all():
                names = ", ".join(self._layout.names[number] for number in sensor[~mine][:10])
                self._bury(record, "foreign-slot", f"sensors {names} are placed in another slot")
                message, sensor = _select(message, mine), sensor[mine]
        if message.step <= self._newest_delivered:
            in_time = self._delivered[self._layout.group_of[sensor]] < message.step
            if not in_time.all():
                cursor = int(self._delivered[self._layout.group_of[sensor[~in_time]]].max()) + 1
                self._send_late(_select(message, ~in_time), cursor)
                message = _select(message, in_time)
        self._kept.append(message)
        if record.appended_us and message.appended_us:
            self.counters.placed += 1
            self.counters.gateway_us += max(0, record.appended_us - message.appended_us)
            self.counters.waited_us += max(0, self._now_us - record.appended_us)
        self.bytes += len(message.sensor) * 9

    def _send_late(self, rows: Recovered, cursor: int) -> None:
        self.counters.late_records += 1
        self.counters.late_rows += len(rows.quality)
        late = Late(
            version=VERSION, slot=self.slot, offset=rows.offset, reason="frontier", cursor=cursor, recovered=rows
        )
        key = pack_key(rows.generation, self.slot, Name(rows.offset, rows.index))
        self.sidelined.append(Sidelined(LATE, key, late.SerializeToString(deterministic=True)))

    def _bury(self, record: Arrived, reason: str, detail: str) -> None:
        self.counters.dead_records += 1
        letter = DeadLetter(
            version=VERSION,
            topic=RECOVERED,
            partition=self.slot,
            offset=record.offset,
            reason=reason,
            detail=detail,
            key=record.key or b"",
            value=(record.value or b"")[:CUT_BYTES],
        )
        # The record's own name may be what is wrong with it, but its place in `recovered` always identifies it.
        key = pack_key(self.mark.generation, self.slot, Name(record.offset, 0))
        self.sidelined.append(Sidelined(DEAD_LETTERS, key, letter.SerializeToString(deterministic=True)))


def decode(
    records: Iterable[Arrived], marks: Mapping[int, SlotMark], layout: Layout, delivered: Ints, slide_us: int
) -> dict[int, SlotDecoder]:
    """Decode records of any slots (those of one slot in log order); return the decoders by slot."""
    decoders: dict[int, SlotDecoder] = {}
    for record in records:
        decoder = decoders.get(record.slot)
        if decoder is None:
            mark = marks.get(record.slot, SlotMark())
            decoder = decoders[record.slot] = SlotDecoder(record.slot, mark, layout, delivered, slide_us)
        decoder.add(record)
    return decoders


def _parse(value: bytes | None) -> Recovered:
    if value is None:
        raise UnusableError("unreadable", "no value")
    message = decode_message(Recovered, value)
    if message.version == 0:
        raise UnusableError("unreadable", "no version")
    sensor = sensors(message.sensor)
    if not (sensor[1:] > sensor[:-1]).all():
        raise UnusableError("unreadable", "column sensor: not ascending")
    return message


def _select(message: Recovered, which: Flags) -> Recovered:
    """Return the message with some of its rows only."""
    found = Recovered()
    found.CopyFrom(message)
    for name, kind in (("sensor", U32), ("mean", F64), ("sd", F64), ("quality", U8), ("bound", F64)):
        setattr(found, name, np.frombuffer(getattr(message, name), dtype=kind)[which].tobytes())
    return found
