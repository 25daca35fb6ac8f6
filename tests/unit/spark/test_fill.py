"""A query that is filled from the log gives what it would have given, had it been there from its begin on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from tests.spark.answers import Truth, plain
from tests.spark.world import FIRST_STEP, World, write_table
from tests.unit.spark.small_job import SmallJob, layout_of
from tsunagi.query.definitions import definitions_of
from tsunagi.query.encoding import EncodedBlock
from tsunagi.query.readings import Readings
from tsunagi.query.results import to_rows
from tsunagi.query.typed import rows_of
from tsunagi.query.windows import Stored
from tsunagi.runtime.log import OffsetLostError, Position, Reader, Record
from tsunagi.runtime.messages import Recovered, ResultBlock
from tsunagi.runtime.settings import make
from tsunagi_spark import fill as filling
from tsunagi_spark.complete_rows import CompleteRows
from tsunagi_spark.decode import Arrived
from tsunagi_spark.fill import Past, fill
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram

TEXT = """
CREATE VIEW means AS SELECT group, AVG(value) AS mean FROM readings [RANGE 8 SECONDS] GROUP BY group;
CREATE QUERY q AS SELECT r.sensor, r.value - m.mean AS off, COUNT(*) AS n
    FROM readings r [RANGE 6 SECONDS], means m WHERE r.group = m.group GROUP BY r.sensor, r.value, m.mean
"""


@dataclass
class PartLog:
    """The records of slots, from a first offset on, which a reader gives a few at a time."""

    records: dict[int, list[Record]]
    first: int = 0
    _next: dict[int, int] = field(default_factory=dict)

    def assign(self, positions: Iterable[Position]) -> None:
        self._next = {item.partition: item.offset for item in positions}

    def range(self, _topic: str, slot: int) -> tuple[int, int]:
        return self.first, len(self.records[slot])

    def read(self, most: int, _timeout_s: float) -> list[Record]:
        found: list[Record] = []
        for slot, offset in self._next.items():
            if offset < self.first:
                raise OffsetLostError("deleted")
            some = self.records[slot][offset : offset + most - len(found)]
            self._next[slot] += len(some)
            found += some
        return found


@dataclass
class Filled:
    """A job that runs while a query is filled."""

    choice: random.Random
    directory: Path
    repeats: float
    steps: int = 60

    def __post_init__(self) -> None:
        settings = make({"slots": {"count": 2}, "steps": {"interval_s": 1.0, "window": 2, "slide": 2}}, "test")
        table = write_table(self.directory / "sensors.csv")
        world = self.world = World(settings, table, seed=self.choice.randrange(1000))
        self.layout = layout_of(world)
        self.job = SmallJob(settings, self.layout)
        self.slide_us = settings.steps.slide_us
        records: dict[int, list[Record]] = {0: [], 1: []}
        for step in range(self.steps):
            for slot, written in records.items():
                key, value = world.record(slot, FIRST_STEP + step)
                for _ in range(1 + (self.choice.random() < self.repeats)):  # a new owner writes some outputs again
                    written.append(Record("recovered", slot, len(written), 1, key, value))
        self.log = PartLog(records)
        self._read = {0: 0, 1: 0}
        self.program = self._program(FIRST_STEP + self.choice.randrange(self.steps // 2))
        self.core = self._core()
        self.core.filling = {}
        self.blocks: list[EncodedBlock] = []
        self._panes: dict[int, bytes] = {}

    def _program(self, begin: int) -> QueryProgram:
        items = definitions_of(TEXT, "test")
        items = [replace(item, from_us=begin * self.slide_us if item.name == "q" else 0) for item in items]
        return QueryProgram(1, tuple(items), {}, self.slide_us)

    def _core(self) -> QueryCore:
        return QueryCore(self.program, frozenset({"q"}), begin=self.program.fills["q"])

    def batch(self, *, with_query: bool) -> None:
        """Run the job on some records of each slot, and the query core as a task of Spark would."""
        came = []
        for slot, records in self.log.records.items():
            count = self.choice.randrange(6)
            came += [
                Arrived(slot, item.offset, item.key, item.value, 1)
                for item in records[self._read[slot] : self._read[slot] + count]
            ]
            self._read[slot] = min(len(records), self._read[slot] + count)
        delivered = list(self.job.delivered().values()) if self.job.batch else [NEVER] * len(self.layout.groups)
        past = Past(self.layout, dict(self.job.marks), np.array(delivered), self.slide_us)
        self.job.run(came)
        if not with_query:
            return
        table = Readings(self.world.table, self.slide_us, {})
        if self.core.filling is not None:
            until_s = time.monotonic() + self.choice.choice([-1.0, -1.0, 0.002])
            self.blocks += fill(self.core, past, cast(Reader, self.log), until_s, table)
        if self.core.filling is None:
            complete = CompleteRows.of([CompleteRows.from_ordered(item) for item in self.job.complete])
            first = int(complete.rows["step"].min()) if len(complete.rows["step"]) else NEVER
            self.blocks += self.core.advance(complete, first, self.job.upto, table)
        if self.choice.random() < 0.3:  # in another process
            state, self._panes[self.job.batch] = self.core.dump(self.job.batch, 1 << 40)
            self.core = self._core()
            self.core.load(state, self.directory, self._pane)

    def _pane(self, where: Stored) -> bytes:
        return self._panes[where.file][where.offset : where.offset + where.length]

    @property
    def is_over(self) -> bool:
        return all(self._read[slot] == len(records) for slot, records in self.log.records.items())

    @property
    def has_read_what_is_lost(self) -> bool:
        return all(count >= self.log.first for count in self._read.values())

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of the query, as `Truth.answers` does."""
        found = []
        for item in self.blocks:
            block = ResultBlock.FromString(item.value)
            assert block.run == self.program.runs["q"]
            if not block.definition:
                found += [plain(row) for row in to_rows(block, rows_of(block), block.group)]
        return found

    def first_step(self, slot: int) -> int:
        """Return the first step that the log holds of a slot."""
        return Recovered.FromString(self.log.records[slot][self.log.first].value or b"").step

    def since(self) -> list[int]:
        blocks = [ResultBlock.FromString(item.value) for item in self.blocks]
        return [block.step for block in blocks if block.definition]


@pytest.mark.parametrize("seed", range(12))
def test_a_query_that_is_filled_has_all_rows_since_its_begin(seed: int, tmp_path: Path) -> None:
    """However far the job has come, however much is read at once, and in whichever process."""
    choice = random.Random(seed)
    shortened = seed % 3 == 2
    place = Filled(choice, tmp_path, repeats=0.0 if shortened else 0.1)
    begin = place.program.fills["q"]
    if shortened:  # the log does not hold all that is asked for
        place.log.first = choice.randrange(place.steps // 2)
        held = {slot: place.first_step(slot) for slot in (0, 1)}
        begin = max(begin, min(held.values()))
        rows = place.world.rows
        place.world.rows = [row for row in rows if row.step >= held[int(place.world.slot_of[row.sensor])]]
    with mock.patch.multiple(filling, _RECORDS=choice.choice([2, 5, 30]), _AHEAD_STEPS=choice.choice([1, 4, 1000])):
        for _ in range(choice.randrange(12)):
            place.batch(with_query=False)
        while not place.has_read_what_is_lost:
            place.batch(with_query=False)
        while not (place.is_over and place.core.filling is None):
            place.batch(with_query=True)
    assert place.since() == [begin - 1]
    last = min(max(place.world.steps[slot]) for slot in (0, 1))
    wanted = Truth.of_world(place.world).answers(TEXT, "q", begin - 1, last)
    assert place.rows() == wanted
    assert place.core.figures["q"].late == 0
