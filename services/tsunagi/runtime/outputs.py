"""Reads the outputs of a system with `[query] mode = "tuples"`, and drops repeats by name.

The outputs of one slot come in the order of its log. Between slots there is no order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.door import decode
from tsunagi.runtime.log import RECOVERED, Log, Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import NO_NAME, Name, unpack_key
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.results import Block, ResultsReader
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

QUERY = "tuples"
"""The name of the query in blocks that are made of such outputs."""


class Outputs(ResultsReader):
    """A `ResultsReader` of `recovered`. Each output gives a block for each group; q1 to q3 are not counted."""

    topic = RECOVERED

    def __init__(
        self,
        log: Log,
        settings: Settings,
        table: SensorTable,
        *,
        start: Literal["beginning", "end"] = "beginning",
        at: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(log, settings, table, start=start, at=at)
        self._names: dict[tuple[int, int], Name] = {}  # the last name of each (slot, generation)
        self._unknown = settings.spark.unknown_group

    def _blocks(self, records: Sequence[Record], read_us: int) -> list[Block]:
        return [block for record in records for block in self._from_run(record, read_us)]

    def _from_run(self, record: Record, read_us: int) -> Iterator[Block]:
        try:
            generation, _, last = unpack_key(record.key)
            messages = outputs_of(decode(Recovered, record.value))
        except ValueError as error:
            self._note(record, str(error))
            return
        before = self._names.get((record.partition, generation), NO_NAME)
        self._names[record.partition, generation] = max(before, last)
        for message in messages:
            if Name(message.offset, message.index) <= before:
                self._repeat(f"slot {record.partition}")
            else:
                yield from self._from_output(record, message, read_us)

    def _from_output(self, record: Record, message: Recovered, read_us: int) -> Iterator[Block]:
        ids, mean, sd = sensors(message.sensor), floats(message.mean), floats(message.sd)
        quality, bound = octets(message.quality), floats(message.bound)
        table = () if self.table is None else self.table.sensors
        named = (table[sensor].group if sensor < len(table) else "" for sensor in ids.tolist())
        groups = np.array([group or self._unknown for group in named])
        for group in sorted(set(groups.tolist())):
            here = groups == group
            count = int(here.sum())
            none = np.zeros(count, dtype=np.uint32)
            yield Block(
                query=QUERY,
                group=group,
                step=message.step,
                event_time_us=message.event_time_us,
                appended_us=message.appended_us,
                read_us=read_us,
                partition=record.partition,
                offset=record.offset,
                sensor=ids[here],
                mean=mean[here],
                sd=sd[here],
                quality=quality[here],
                bound=bound[here],
                q1=none,
                q2=none,
                q3=np.full(count, np.nan),
            )


def open_results(log: Log, settings: Settings, table: SensorTable, *, from_now: bool) -> ResultsReader:
    """Return a reader of the system's results, for the mode of its query.

    Args:
        log: the log.
        settings: the settings of the system.
        table: the sensors.
        from_now: whether to skip the results that are there already.

    Raises:
        LogError: the topic is missing or the log does not answer.
    """
    start: Literal["beginning", "end"] = "end" if from_now else "beginning"
    if settings.query.mode == "tuples":
        return Outputs(log, settings, table, start=start)
    return ResultsReader(log, settings, table, start=start)
