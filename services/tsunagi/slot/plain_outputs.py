"""Outputs that are alike, kept as columns: one for each of several batches in a row, with equally many measured rows.

They are a sequence of `Output`, each of which is made when somebody asks for it. Whoever takes them as a whole spares
that: they are counted, written and acknowledged together, and share records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.messages import VERSION, Recovered
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.output_runs import NUMBERS
from tsunagi.runtime.ranges import I64
from tsunagi.slot.frames import Integers
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import Packed, PackedColumns

RUN = 512
"""The most outputs of a record: a reader gets the first of them with the last."""

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

    @property
    def records(self) -> int:
        """How many records hold these outputs."""
        return -(-len(self) // RUN)

    def encode(self, slot: int, generation: int) -> Pairs:
        """Return the keys and the values of the records that hold these outputs (`tsunagi.runtime.output_runs`).

        Args:
            generation: the number of the slot's log.
        """
        return [self._record(slot, generation, begin, begin + RUN) for begin in range(0, len(self), RUN)]

    def _record(self, slot: int, generation: int, begin: int, end: int) -> tuple[bytes, bytes]:
        """Return key and value of the record of the outputs [begin, end), as far as there are so many."""
        numbers, rows, columns = self._numbers[:, begin:end], self.rows, self._columns
        if numbers.shape[1] == 1:
            return self[begin].encode(slot, generation)
        offset, step, event_time_us, appended_us = numbers[:, -1].tolist()
        message = Recovered(
            version=VERSION,
            slot=slot,
            generation=generation,
            offset=offset,
            epoch=self.epoch,
            step=step,
            event_time_us=event_time_us,
            appended_us=appended_us,
        )
        for name, column in zip(NUMBERS, numbers, strict=True):
            setattr(message.run, name, column.astype(I64).tobytes())
        message.run.sensor = columns.sensor[4 * rows * begin : 4 * rows * end]
        message.run.mean = columns.mean[8 * rows * begin : 8 * rows * end]
        return pack_key(generation, slot, Name(offset, 0)), message.SerializeToString()


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
