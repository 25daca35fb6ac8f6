"""The loop of a sink on a log in memory: what it reads, writes, repeats and gives up, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import structlog

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE, PLAN, RESULTS
from tsunagi.runtime.messages import DeadLetter, ResultBlock
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.sink.base import FencedError, Refusal, RefusedError, Sink
from tsunagi.sink.feed import feeds_for
from tsunagi.sink.rows import Place, SinkBatch, SinkPosition
from tsunagi.sink.runner import LOOK_BACK, SinkRunner

TABLE = SensorTable(tuple(Sensor(number, f"s{number}", "edge", group="g") for number in range(3)))


class Shared:
    """A group of one, whose partitions a test changes."""

    def __init__(self) -> None:
        self.places: frozenset[Place] = frozenset({(RESULTS, 0), (LATE, 0)})
        self.changes = 1
        self.kept: dict[Place, SinkPosition] = {}

    def poll(self, timeout_s: float = 0.0) -> None:
        pass

    def committed(self, places: Collection[Place]) -> dict[Place, SinkPosition]:
        return {place: self.kept[place] for place in places if place in self.kept}

    def commit(self, positions: Mapping[Place, SinkPosition]) -> None:
        self.kept |= positions


class Target(Sink):
    """Keeps rows in the order in which they were written; `fails` is called before each write."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.batches: list[int] = []
        self.opened = self.closed = 0
        self.fails: Callable[[SinkBatch], Sequence[Refusal] | None] = lambda _: None

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def write(self, batch: SinkBatch) -> Sequence[Refusal] | None:
        refused = self.fails(batch)
        left = {(item.part, item.row) for item in refused or ()}
        for part_number, part in enumerate(batch.parts):
            self.rows += [row for number, row in enumerate(part.rows) if (part_number, number) not in left]
        self.batches.append(len(batch))
        return refused


class Fixture:
    def __init__(self, *, target: Target | None = None, batch_rows: int = 100, shared: Shared | None = None) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, {RESULTS: 2, LATE: 1, DEAD_LETTERS: 1, PLAN: 1})
        self.shared = shared or Shared()
        self.target = target or Target()
        self.stopping = False
        self.batch_rows = batch_rows
        self.runner = self.make()

    def make(self) -> SinkRunner:
        return SinkRunner(
            "history",
            self.log,
            self.shared,
            self.target,
            lambda: feeds_for("readings", Settings(), lambda: TABLE),
            structlog.get_logger(),
            batch_rows=self.batch_rows,
            stopping=lambda: self.stopping,
            wait=self.clock.advance,
            clock=self.clock.monotonic,
        )

    def append(self, *steps: int, partition: int = 0) -> None:
        for step in steps:
            block = ResultBlock(
                version=1,
                query="readings",
                group=f"g{partition}",
                step=step,
                event_time_us=step * 1_000_000,
                appended_us=step * 1_000_000,
                sensor=pack_sensors(np.arange(3)),
                mean=pack_floats(np.arange(3.0) + step),
                sd=pack_floats(np.zeros(3)),
                quality=pack_octets([0, 1, 2]),
                bound=pack_floats(np.ones(3)),
                q1=pack_sensors(np.arange(3)),
                q2=pack_sensors(np.arange(3)),
                q3=pack_floats(np.ones(3)),
            )
            self.log.append(RESULTS, partition, f"readings/g/{step}".encode(), block.SerializeToString())

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.runner.turn()

    def steps(self) -> list[int]:
        return [row[-1] for row in self.target.rows[::3]]

    def letters(self) -> list[DeadLetter]:
        return [DeadLetter.FromString(record.value or b"") for record in self.log.records(DEAD_LETTERS, 0)]


def test_rows_are_written_in_order_and_the_position_behind_them() -> None:
    fixture = Fixture()
    fixture.append(1, 2, 3)
    fixture.turns()
    assert fixture.steps() == [1, 2, 3]
    assert fixture.shared.kept[RESULTS, 0].offset == 3
    assert (fixture.runner.rows, fixture.runner.fault) == (9, "")


def test_a_write_has_no_more_rows_than_it_may() -> None:
    fixture = Fixture(batch_rows=7)
    fixture.append(*range(1, 8))
    fixture.turns(6)
    assert fixture.target.batches == [9, 9, 3]


def test_a_new_process_goes_on_where_the_last_one_was_and_knows_repeats_by_name() -> None:
    fixture = Fixture()
    fixture.append(1, 2, 3)
    fixture.turns()
    fixture.append(2, 3, 4)  # Spark was restarted
    fixture.runner.close()
    fixture.runner = fixture.make()
    fixture.turns()
    assert fixture.steps() == [1, 2, 3, 4]


def test_repeats_far_behind_are_written_again_under_their_names() -> None:
    fixture = Fixture()
    fixture.append(*range(1, LOOK_BACK + 2))
    fixture.turns(40)
    fixture.runner = fixture.make()
    fixture.append(1)
    fixture.turns(10)
    assert fixture.steps()[-1] == LOOK_BACK + 1


def test_while_the_target_is_away_nothing_is_read_and_the_same_rows_come_again() -> None:
    fixture = Fixture(batch_rows=3)
    left = 5

    def away(_: SinkBatch) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ConnectionError("gone fishing")

    fixture.target.fails = away
    fixture.append(1, 2)
    began = fixture.clock.monotonic()
    fixture.turns(4)
    assert fixture.steps() == [1, 2]
    assert 5 < fixture.clock.monotonic() - began < 10  # .2 + .4 + .8 + 1.6 + 3.2
    assert fixture.target.opened == 6
    assert fixture.target.closed == 5


def test_a_target_that_stays_away_costs_lag_and_says_why() -> None:
    fixture = Fixture()

    def away(_: SinkBatch) -> None:
        fixture.append(len(fixture.log.records(RESULTS, 0)) + 1)
        fixture.stopping = fixture.clock.monotonic() - began > 60
        raise ConnectionError("gone fishing")

    began = fixture.clock.monotonic()
    fixture.target.fails = away
    fixture.append(1)
    fixture.turns(1)
    assert fixture.runner.fault == "gone fishing"
    assert fixture.runner.lag > 10
    assert not fixture.shared.kept
    assert not fixture.target.rows


@pytest.mark.parametrize("bad", [0, 4, 8])
def test_of_a_batch_that_is_refused_only_the_row_at_fault_is_left_out(bad: int) -> None:
    fixture = Fixture()

    def refuse(batch: SinkBatch) -> None:
        for part in batch.parts:
            if any(row[4] == 1 + bad // 3 + bad % 3 and row[-1] == 1 + bad // 3 for row in part.rows):
                raise RefusedError("too odd")

    fixture.target.fails = refuse
    fixture.append(1, 2, 3)
    fixture.turns()
    assert len(fixture.target.rows) == 8
    (letter,) = fixture.letters()
    assert (letter.topic, letter.offset, letter.reason) == (RESULTS, bad // 3, "refused")
    assert letter.detail == "sink history: too odd"
    assert f'"sensor": "s{bad % 3}"'.encode() in letter.value
    assert (fixture.runner.refused, fixture.shared.kept[RESULTS, 0].offset) == (1, 3)


def test_rows_that_a_target_names_stand_in_dead_letters() -> None:
    fixture = Fixture()
    fixture.target.fails = lambda batch: [Refusal(1, 2, "no")] if len(batch) else None
    fixture.append(1, 2)
    fixture.turns()
    assert [(letter.offset, letter.detail) for letter in fixture.letters()] == [(1, "sink history: no")]
    assert len(fixture.target.rows) == 5


def test_a_record_that_is_no_result_stands_in_dead_letters() -> None:
    fixture = Fixture()
    fixture.append(1)
    fixture.log.append(RESULTS, 0, b"key", b"\xff\xff")
    fixture.append(2)
    fixture.turns()
    assert fixture.steps() == [1, 2]
    assert [(letter.offset, letter.reason) for letter in fixture.letters()] == [(1, "unreadable")]


def test_partitions_that_come_and_go_are_read_from_their_positions() -> None:
    fixture = Fixture()
    fixture.append(1, 2)
    fixture.append(5, 6, partition=1)
    fixture.turns()
    assert fixture.steps() == [1, 2]
    fixture.shared.places, fixture.shared.changes = frozenset({(RESULTS, 1)}), 2
    fixture.append(3)
    fixture.turns()
    assert fixture.steps() == [1, 2, 5, 6]
    fixture.shared.places, fixture.shared.changes = frozenset({(RESULTS, 0)}), 3
    fixture.turns()
    assert fixture.steps() == [1, 2, 5, 6, 3]


def test_an_instance_that_was_taken_for_dead_takes_the_positions_of_the_others() -> None:
    fixture = Fixture()
    fenced = True

    def fence(_: SinkBatch) -> None:
        nonlocal fenced
        if fenced:
            fenced = False
            fixture.shared.kept[RESULTS, 0] = SinkPosition(2, "")
            raise FencedError("another one")

    fixture.target.fails = fence
    fixture.append(1, 2, 3)
    fixture.turns()
    assert fixture.steps() == [3]


@pytest.mark.parametrize(
    ("kept", "steps", "said"),
    [
        (SinkPosition(9, ""), [1, 2, 3], "read from its first record again"),
        (SinkPosition(1, "another"), [1, 2, 3], "read from its first record again"),
        (SinkPosition(1, ""), [2, 3], ""),
    ],
    ids=["the log lost its end", "the topic was made anew", "nothing happened"],
)
def test_a_position_in_another_log_does_not_count(
    kept: SinkPosition, steps: list[int], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    fixture = Fixture()
    fixture.append(1, 2, 3)
    fixture.shared.kept[RESULTS, 0] = kept
    with structlog.testing.capture_logs() as logged:
        fixture.turns()
    assert fixture.steps() == steps
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ([said] if said else [])


def test_records_that_retention_took_are_counted() -> None:
    fixture = Fixture()
    fixture.append(*range(1, 11))
    fixture.shared.kept[RESULTS, 0] = SinkPosition(2, "")
    fixture.log.truncate(RESULTS, 0, 6)
    with structlog.testing.capture_logs() as logged:
        fixture.turns()
    assert fixture.steps() == [7, 8, 9, 10]
    assert [line["records"] for line in logged if line["log_level"] == "error"] == [4]


def test_while_the_log_does_not_answer_the_sink_waits_and_says_so() -> None:
    fixture = Fixture()
    fixture.append(1, 2)
    fixture.log.stop()
    fixture.turns()
    assert fixture.runner.fault.startswith("the log does not answer: ")
    fixture.log.start()
    fixture.turns()
    assert (fixture.steps(), fixture.runner.fault) == ([1, 2], "")


def test_an_instance_that_has_no_partitions_yet_is_not_ready() -> None:
    shared = Shared()
    shared.changes = 0
    fixture = Fixture(shared=shared)
    fixture.append(1)
    fixture.turns()
    assert (fixture.steps(), fixture.runner.fault) == ([], "waits for its partitions")
    shared.changes = 1
    fixture.turns()
    assert (fixture.steps(), fixture.runner.fault) == ([1], "")


def test_an_instance_that_is_ready_knows_how_far_behind_it_is() -> None:
    fixture = Fixture(batch_rows=1)
    fixture.append(1, 2, 3)
    fixture.turns(1)
    assert (fixture.runner.lag, fixture.runner.fault) == (3, "")


def test_a_target_that_refuses_a_batch_without_rows_ends_the_sink() -> None:
    fixture = Fixture()

    def refuse(batch: SinkBatch) -> None:
        if not len(batch):
            raise RefusedError("nothing at all")

    fixture.target.fails = refuse
    fixture.log.append(RESULTS, 0, b"key", b"")
    with pytest.raises(RefusedError, match="nothing at all"):
        fixture.turns()
