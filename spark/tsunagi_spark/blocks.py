"""What the decoding stage sends to the cores: one Arrow row for each (slot, P-SORT core), with columns as bytes.

So Spark shuffles a few blocks a batch and never a single row of readings; the numbers pass through it unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tsunagi.runtime.columns import Bytes, Floats, Sensors
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.layout import Ints


@dataclass(slots=True)
class RecoveredRows:
    """Recovered values as columns of one length.

    Attributes:
        sensor: uint32[n].
        step: int64[n].
        mean, sd, bound: float64[n].
        quality: uint8[n].
    """

    sensor: Sensors
    step: Ints
    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats

    NAMES: ClassVar[tuple[str, ...]] = ("sensor", "step", "mean", "sd", "quality", "bound")
    TYPES: ClassVar[dict[str, str]] = {
        "sensor": "<u4",
        "step": "<i8",
        "mean": "<f8",
        "sd": "<f8",
        "quality": "u1",
        "bound": "<f8",
    }

    def __len__(self) -> int:
        return len(self.sensor)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def take(self, which: npt.NDArray[Any] | slice) -> RecoveredRows:
        """Return some of the rows: by a mask, by positions or by a slice."""
        return RecoveredRows(**{name: column[which] for name, column in self.columns().items()})

    @staticmethod
    def empty() -> RecoveredRows:
        """Return no rows."""
        return RecoveredRows(**{name: np.zeros(0, dtype=kind) for name, kind in RecoveredRows.TYPES.items()})

    @staticmethod
    def concatenate(parts: Iterable[RecoveredRows]) -> RecoveredRows:
        """Return the rows of all parts, one after the other."""
        found = [part for part in parts if len(part)]
        if not found:
            return RecoveredRows.empty()
        if len(found) == 1:
            return found[0]
        return RecoveredRows(
            **{name: np.concatenate([getattr(part, name) for part in found]) for name in RecoveredRows.NAMES}
        )


@dataclass(slots=True)
class Counters:
    """What the decoding of one slot's records found.

    Attributes:
        placed: number of records that were kept and whose append time is known; the next two are sums over them.
        gateway_us: time from the append of an output's last input to the output's own, both by the broker's clock.
        waited_us: time from then until the output was read.
    """

    records: int = 0
    rows: int = 0
    repeats: int = 0
    late_records: int = 0
    late_rows: int = 0
    dead_records: int = 0
    nan_rows: int = 0
    placed: int = 0
    gateway_us: int = 0
    waited_us: int = 0

    def add(self, other: Counters) -> None:
        """Add the counts of another object to this one."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(slots=True)
class SlotBlock:
    """The rows of one slot in a batch that belong to one core.

    Attributes:
        mark: how far the slot has been read, with this batch.
        counters: counts of the whole slot, the same in the block of every core.
        steps: int64[records], the steps of the records, ascending.
        appended_us: int64[records], when the inputs of the records were appended.
        events: the events of the slot (`events.packed`), in the block of the core that hands them on; b"" = none.
    """

    core: int
    slot: int
    mark: SlotMark
    counters: Counters
    steps: Ints
    appended_us: Ints
    rows: RecoveredRows
    events: bytes = b""


SCHEMA = pa.schema(
    [
        ("core", pa.int32()),
        ("slot", pa.int32()),
        ("head", pa.binary()),
        ("steps", pa.binary()),
        ("appended_us", pa.binary()),
        ("events", pa.binary()),
        *((name, pa.binary()) for name in RecoveredRows.NAMES),
    ]
)
"""Arrow schema of the rows between the stages."""

BATCH_BYTES = 16_000_000
"""A record batch with at least this many bytes is full."""

SQL = "core int, slot int, head binary, steps binary, appended_us binary, events binary, " + ", ".join(
    f"`{name}` binary" for name in RecoveredRows.NAMES
)
"""The same schema in Spark's notation."""


def to_arrow(blocks: Iterable[SlotBlock]) -> Iterator[pa.RecordBatch]:
    """Write blocks: small ones share a record batch, which costs 0.1 ms; none exceeds what Arrow holds (2 GiB)."""
    gathered: list[list[Any]] = []
    size = 0
    for block in blocks:
        head = json.dumps({"mark": block.mark, "counters": block.counters.as_dict()}).encode()
        cells: list[Any] = [head, block.steps.tobytes(), block.appended_us.tobytes(), block.events]
        cells += [
            np.ascontiguousarray(getattr(block.rows, name), dtype=kind).tobytes()
            for name, kind in RecoveredRows.TYPES.items()
        ]
        gathered.append([block.core, block.slot, *cells])
        size += sum(map(len, cells))
        if size >= BATCH_BYTES:
            yield _record_batch(gathered)
            gathered, size = [], 0
    if gathered:
        yield _record_batch(gathered)


def _record_batch(rows: list[list[Any]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), SCHEMA, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(cells, type=field.type) for cells, field in columns], schema=SCHEMA)


def from_arrow(batches: Iterable[pa.RecordBatch]) -> list[SlotBlock]:
    """Read blocks and sort them by slot and position: after a shuffle they come in any order."""
    blocks = []
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for number in range(batch.num_rows):
            head = json.loads(columns["head"][number].as_py())
            rows = RecoveredRows(
                **{
                    name: np.frombuffer(columns[name][number].as_buffer(), dtype=kind)
                    for name, kind in RecoveredRows.TYPES.items()
                }
            )
            blocks.append(
                SlotBlock(
                    core=columns["core"][number].as_py(),
                    slot=columns["slot"][number].as_py(),
                    mark=SlotMark.of(head["mark"]),
                    counters=Counters(**head["counters"]),
                    steps=np.frombuffer(columns["steps"][number].as_buffer(), dtype="<i8"),
                    appended_us=np.frombuffer(columns["appended_us"][number].as_buffer(), dtype="<i8"),
                    rows=rows,
                    events=columns["events"][number].as_py(),
                )
            )
    return sorted(blocks, key=lambda block: (block.slot, block.mark.read_to))
