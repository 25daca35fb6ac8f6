"""Encodes the rows of a step, or of one record of a run, as the message `Recovered`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.messages import VERSION, Recovered
from tsunagi.runtime.names import Name
from tsunagi.slot.frames import Frame


class PackedColumns:
    """The columns of a frame as bytes. Each output is a slice of them.

    Attributes:
        exact: all rows are measured, so that `quality`, `sd` and `bound` are all 0.
    """

    def __init__(self, frame: Frame) -> None:
        self.sensor = pack_sensors(frame.sensor)
        self.mean = pack_floats(frame.mean)
        self.exact = not (frame.quality.any() or frame.sd.any() or frame.bound.any())
        self.quality = pack_octets(frame.quality)
        self.sd = b"" if self.exact else pack_floats(frame.sd)
        self.bound = b"" if self.exact else pack_floats(frame.bound)


@dataclass(slots=True)
class Packed:
    """The rows of one output: the rows [begin, end) of a frame.

    Attributes:
        step, event_time_us: the step and its end, or those of the record that the rows follow from.
    """

    step: int
    event_time_us: int
    columns: PackedColumns
    begin: int
    end: int

    @classmethod
    def of(cls, frame: Frame) -> Packed:
        """Return all rows of a frame."""
        return cls(frame.step, frame.event_time_us, PackedColumns(frame), 0, len(frame.mean))

    @property
    def mean(self) -> bytes:
        """The values as bytes, float64[n]."""
        return self.columns.mean[8 * self.begin : 8 * self.end]

    @property
    def quality(self) -> bytes:
        """The qualities as bytes, uint8[n]."""
        return self.columns.quality[self.begin : self.end]

    def encode(self, slot: int, generation: int, name: Name, epoch: int, appended_us: int) -> bytes:
        """Return the message `Recovered`.

        A serialised message is the concatenation of its fields. So the first fields, which are equal for all outputs of
        a slot, and the columns of measured rows, which are all 0, are serialised once and kept.
        """
        columns, begin, end = self.columns, self.begin, self.end
        middle = _kept.middle
        middle.offset, middle.index = name
        middle.epoch = epoch
        middle.step = self.step
        middle.event_time_us = self.event_time_us
        middle.appended_us = appended_us
        middle.sensor = columns.sensor[4 * begin : 4 * end]
        middle.mean = columns.mean[8 * begin : 8 * end]
        if columns.exact:
            return head(slot, generation) + middle.SerializeToString() + measured(end - begin)
        last = Recovered(
            sd=columns.sd[8 * begin : 8 * end],
            quality=columns.quality[begin:end],
            bound=columns.bound[8 * begin : 8 * end],
        )
        return head(slot, generation) + middle.SerializeToString() + last.SerializeToString()


@dataclass(slots=True)
class PackedRows:
    """The rows of a query in one output.

    Attributes:
        step, event_time_us: those of the record that the rows follow from.
        rows: how many there are.
        columns: the encoded field `column` of the message `Recovered`.
    """

    query: str
    step: int
    event_time_us: int
    rows: int
    columns: bytes

    def encode(self, slot: int, generation: int, name: Name, epoch: int, appended_us: int) -> bytes:
        """Return the message `Recovered`."""
        head = Recovered(
            version=VERSION,
            slot=slot,
            generation=generation,
            offset=name.offset,
            index=name.index,
            epoch=epoch,
            step=self.step,
            event_time_us=self.event_time_us,
            appended_us=appended_us,
            query=self.query,
            rows=self.rows,
        )
        return head.SerializeToString() + self.columns


class _Kept(threading.local):
    """A message that is used again for each output, with all fields set anew. That costs half of making a new one."""

    def __init__(self) -> None:
        self.middle = Recovered()


_kept = _Kept()


@lru_cache(maxsize=64)
def head(slot: int, generation: int) -> bytes:
    """Return the first fields of the message `Recovered`, which are equal for all outputs of a slot."""
    return Recovered(version=VERSION, slot=slot, generation=generation).SerializeToString()


@lru_cache(maxsize=256)
def measured(count: int) -> bytes:
    """Return the last fields of so many measured rows, which are all 0."""
    zeros = bytes(8 * count)
    return Recovered(sd=zeros, quality=bytes(count), bound=zeros).SerializeToString()
