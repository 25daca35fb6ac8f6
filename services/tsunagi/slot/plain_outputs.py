"""Outputs that are alike, kept as columns: one for each of several batches in a row, with equally many measured rows.

They are a sequence of `Output`, each of which is made when somebody asks for it. Whoever takes them as a whole spares
that: they are counted, written and acknowledged together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.varints import MAX_LENGTH, Matrix, lengths_of, write_varints
from tsunagi.runtime.wire import rows_of_bytes, tag
from tsunagi.slot.frames import Integers
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import Packed, PackedColumns, head, measured

_VARINTS = ("offset", "step", "event_time_us", "appended_us")
"""The numbers in which such outputs differ, in the order of a message's fields."""
_TAGS = [bytes([Recovered.DESCRIPTOR.fields_by_name[name].number << 3]) for name in _VARINTS]
"""What stands before each of them: its number with wire type 0."""
_PLACE = slice(12, 20)
"""Where the offset stands in a key (`pack_key`)."""

Pairs = list[tuple[bytes, bytes]]
"""Keys and values of records."""


class PlainOutputs(Sequence[Output]):
    """Outputs for `recovered`, in the order of their names. Each is the only one of its input, so its index is 0.

    Args:
        numbers: int64[4, n], of each output: the offset of its input, the number and the event time of that batch, and
            when the log appended it (both microseconds).
        columns: the rows of all outputs, all measured, one output behind the other.
        rows: how many rows each output has.
        epoch: the epoch (number of the ownership) as of the inputs.
    """

    __slots__ = ("_columns", "_numbers", "epoch", "rows")

    def __init__(self, numbers: Integers, columns: PackedColumns, rows: int, epoch: int) -> None:
        self._numbers, self._columns, self.rows, self.epoch = numbers, columns, rows, epoch

    def __len__(self) -> int:
        return len(self._numbers[0])

    @overload
    def __getitem__(self, place: int) -> Output: ...
    @overload
    def __getitem__(self, place: slice) -> list[Output]: ...
    def __getitem__(self, place: int | slice) -> Output | list[Output]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        return next(self._between(place, place + 1))

    def __iter__(self) -> Iterator[Output]:
        return self._between(0, len(self))

    def _between(self, begin: int, end: int) -> Iterator[Output]:
        """Yield the outputs of these places."""
        columns, rows = self._columns, self.rows
        for place, numbers in enumerate(self._numbers[:, begin:end].T.tolist(), begin):
            offset, step, event_time_us, appended_us = numbers
            body = Packed(step, event_time_us, columns, place * rows, (place + 1) * rows)
            yield Output(Name(offset, 0), RECOVERED, self.epoch, appended_us, body)

    @property
    def first(self) -> Name:
        """The name of the first output."""
        return Name(int(self._numbers[0, 0]), 0)

    @property
    def last(self) -> Name:
        """The name of the last output."""
        return Name(int(self._numbers[0, -1]), 0)

    def encode(self, slot: int, generation: int) -> Pairs:
        """Return the key and the value of each output, as `Output.encode` does.

        Args:
            generation: the number of the slot's log.
        """
        lengths = lengths_of(self._numbers)
        changes = np.flatnonzero((lengths[:, 1:] != lengths[:, :-1]).any(axis=0)) + 1
        bounds = [0, *changes.tolist(), len(self)]
        pairs: Pairs = []
        for begin, end in pairwise(bounds):
            numbers, sizes = self._numbers[:, begin:end], lengths[:, begin].tolist()
            if max(sizes) > MAX_LENGTH or not numbers.all():  # protobuf leaves out a number that is 0
                pairs += [output.encode(slot, generation) for output in self[begin:end]]
            else:
                pairs += self._encode(slot, generation, begin, numbers, sizes)
        return pairs

    def _encode(self, slot: int, generation: int, begin: int, numbers: Integers, sizes: Sequence[int]) -> Pairs:
        """Return keys and values of the outputs from `begin` on, whose `numbers` have varints of these sizes."""
        rows, columns, count = self.rows, self._columns, numbers.shape[1]
        parts: list[bytes | Matrix] = [head(slot, generation)]
        for before, column, size in zip(_TAGS, numbers, sizes, strict=True):
            parts += [before, write_varints(column, size)]
            if before is _TAGS[0]:
                parts.append(Recovered(epoch=self.epoch).SerializeToString())  # stands behind the offset
        for name, width, data in (("sensor", 4 * rows, columns.sensor), ("mean", 8 * rows, columns.mean)):
            part = np.frombuffer(data, np.uint8, count * width, begin * width)
            parts += [tag(Recovered, name, width), part.reshape(count, width)]
        key = pack_key(generation, slot, self.first)
        offsets = numbers[0].astype(">i8").view(np.uint8).reshape(count, 8)
        keys = rows_of_bytes([key[: _PLACE.start], offsets, key[_PLACE.stop :]], count)
        return list(zip(keys, rows_of_bytes([*parts, measured(rows)], count), strict=True))


def plain_outputs(numbers: Integers, columns: PackedColumns, origin: Integers, epoch: int) -> PlainOutputs | None:
    """Return the outputs of batches in a row; None = they are not alike.

    Args:
        numbers: int64[4, n], as for `PlainOutputs`, of each batch.
        columns: all rows that follow from the batches.
        origin: int64[m], ascending: the place of each row's batch.
    """
    if not columns.exact or not len(origin):
        return None
    changed: npt.NDArray[np.bool_] = origin[1:] != origin[:-1]
    begins = np.concatenate([[0], np.flatnonzero(changed) + 1])
    rows, uneven = divmod(len(origin), len(begins))
    if uneven or (rows > 1 and (begins != np.arange(len(begins)) * rows).any()):
        return None
    places = origin[begins]
    return PlainOutputs(numbers if len(places) == numbers.shape[1] else numbers[:, places], columns, rows, epoch)
