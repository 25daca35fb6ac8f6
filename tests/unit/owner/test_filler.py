"""Queries over tuples that are filled with the past of a slot's log, while the log goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SENSORS, SLOT, Encoded, Writer, load, owned
from tests.unit.slot.test_stream import ALL, LAST, STREAM, columns, queries
from tests.unit.slot.test_tuples import play_runs
from tsunagi.owner import filler
from tsunagi.owner.filler import Filler
from tsunagi.query.typed import rows_of
from tsunagi.replay.compare import compare
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED, LogError, OffsetLostError, Position, Reader, Record
from tsunagi.runtime.messages import Context, LogRecord, Recovered, TupleBatch
from tsunagi.runtime.names import pack_key
from tsunagi.slot import filled
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.deciding import OwnerView
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish

MANY = 300
"""Batches that the log has before the query is added."""
RAIN = "CREATE QUERY rain AS ISTREAM (SELECT symbol, note FROM trades WHERE note LIKE 'r%')"
OVER = "CREATE QUERY over AS SELECT symbol, n FROM total WHERE n > 3"


@dataclass
class MemoryReader:
    """Reads the records of a log in memory, some of which retention has deleted."""

    records: list[Record]
    first: int = 0
    at: int = 0
    lag: Callable[[], int] = lambda: 1 << 30
    answers: bool = True

    def assign(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self.at = position.offset

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        assert (timeout_s, gather_s) == (0.0, None)
        self.range("", 0)
        if self.at < self.first:
            raise OffsetLostError("gone")
        found = self.records[self.at : self.at + min(max_records, self.lag())]
        self.at += len(found)
        return found

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        if not self.answers:
            raise LogError("away")
        return self.first, len(self.records)


@dataclass
class Owned:
    """A slot whose owner fills queries, while edges go on."""

    config: SlotConfig
    draw: random.Random
    writer: Writer = field(init=False)
    slot: Slot = field(init=False)
    reader: MemoryReader = field(init=False)
    made: Encoded = field(default_factory=list)
    step: int = FIRST
    now: float = 0.0
    free: bool = True
    filler: Filler = field(init=False)

    def __post_init__(self) -> None:
        self.writer, self.slot = owned(self.config), Slot(SLOT, load)
        self.writer.now_us = FIRST
        self.reader = MemoryReader(self.writer.records, lag=lambda: self.draw.choice((0, 3, 500, 500)))
        self.filler = Filler(self)
        self.follow()

    def take(self, slot: int) -> Reader | None:
        assert slot == SLOT
        return cast("Reader", self.reader) if self.free else None

    def give_back(self, slot: int) -> None:
        assert slot == SLOT

    def tuples(self, count: int) -> None:
        """Let edges send batches, of which some come twice."""
        for _ in range(count):
            self.step += self.draw.randint(1, 3)
            edge = self.draw.choice(EDGES)
            mine = [sensor for sensor in SENSORS[edge] if self.draw.random() < 0.8]
            batch = TupleBatch(edge=edge, incarnation=1, step=self.step, event_time_us=self.step)
            batch.sensor = np.array(mine, "<u4").tobytes()
            batch.value = np.array([self.draw.gauss(0, 1) for _ in mine], "<f8").tobytes()
            batch.column.extend(columns(len(mine), self.draw))
            self.writer.now_us = self.step + 5
            self.writer.add(batch=batch)
            if self.draw.random() < 0.1:
                self.writer.records.append(replace(self.writer.records[-1], offset=len(self.writer.records)))

    def settings(self, config: SlotConfig) -> None:
        self.writer.settings(config)
        self.config = config

    def follow(self) -> None:
        self.made += play_runs(self.slot, self.writer.records[self.slot.position :], self.step)

    def turn(self, repeats: int = 1) -> None:
        """Let the owner decide once, and append what it decides as often."""
        self.follow()
        for decision in self.filler.decide(OwnerView(self.slot, Wish(self.config), self.now)):
            assert isinstance(decision, LogRecord)
            for _ in range(repeats):
                self.writer.raw(decision.SerializeToString())
        self.now += 0.01

    def fill(self, turns: int = 3000) -> None:
        """Go on until no query is being filled."""
        for _ in range(turns):
            if not self.being_filled:
                return
            self.turn(self.draw.choice((1,) * 18 + (0, 2)))
            self.tuples(self.draw.choice((0,) * 7 + (1, 1, 3)))
        pytest.fail(f"not filled after {turns} turns: {[vars(item) for item in self.being_filled]}")

    @property
    def being_filled(self) -> list[filled.FilledQuery]:
        self.follow()
        assert self.slot.chain is not None
        assert self.slot.chain.stream is not None
        return [item for item in self.slot.chain.stream.filled if not item.done]


def rows(made: Encoded, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, with the numbers and the times of their batches."""
    found = []
    for topic, _, value in made:
        message = Recovered.FromString(value) if topic == RECOVERED else Recovered()
        if message.query == query:
            table = [item.to_list() for item in rows_of(message).columns.values()]
            found += [(message.step, message.event_time_us, *cells) for cells in zip(*table, strict=True)]
    return found


def from_the_start(
    records: Iterable[Record], statements: SlotConfig, from_us: int, query: str
) -> list[tuple[Any, ...]]:
    """Return the rows of a query that was there before the first batch of an event time."""
    writer = owned(replace(statements, fills=()))
    for record in records:
        message = parse(record)[0]
        if message is not None and message.WhichOneof("body") == "batch" and message.batch.event_time_us >= from_us:
            writer.now_us = record.appended_us
            writer.raw(record.value)
    return rows(play_runs(Slot(SLOT, load), writer.records, 0), query)


def filled_with(config: SlotConfig, *fills: tuple[str, int]) -> SlotConfig:
    return replace(config, fills=tuple(sorted(fills)))


@pytest.fixture(params=range(2))
def owner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Owned:
    monkeypatch.setattr(filler, "MOST_BYTES", 6_000)
    monkeypatch.setattr(filled, "NEAR_RECORDS", 20)
    found = Owned(queries(STREAM, LAST), random.Random(request.param))
    found.tuples(MANY)
    return found


def test_a_query_gets_the_rows_that_it_would_have_had_from_the_start(owner: Owned) -> None:
    middle = FIRST + 300
    everything = queries(STREAM, LAST, ALL, RAIN, OVER)
    owner.settings(filled_with(everything, ("total", 1), ("rain", middle), ("over", 1)))
    owner.fill()
    owner.tuples(30)
    owner.follow()
    for query, from_us in (("last", 1), ("total", 1), ("rain", middle), ("over", 1)):
        wanted = from_the_start(owner.writer.records, everything, from_us, query)
        assert rows(owner.made, query) == wanted, query
        assert len(wanted) > 60
    assert not owner.filler.decide(OwnerView(owner.slot, Wish(owner.config), owner.now))


def test_cut_anyhow_and_resumed_anywhere_the_same_follows_and_a_replay_agrees(owner: Owned) -> None:
    owner.settings(filled_with(queries(STREAM, LAST, ALL), ("total", 1)))
    owner.fill()
    owner.tuples(30)
    owner.follow()
    records = owner.writer.records
    for seed in range(3):
        assert play_runs(Slot(SLOT, load), records, seed) == owner.made
    source = Slot(SLOT, load)
    for place, record in enumerate(records):
        if place > MANY and place % 17 == 0:
            message = Context.FromString(source.context().SerializeToString())
            other = Slot(SLOT, load)
            other.restore(message)
            assert other.context() == message
            assert play_runs(other, records[place:], place) == [item for item in owner.made if item[1].offset >= place]
        source.apply(record)
    generation = source.register.generation
    written = [
        Record(RECOVERED, SLOT, place, 0, pack_key(generation, SLOT, name), value)
        for place, (topic, name, value) in enumerate(owner.made)
        if topic == RECOVERED
    ]
    found = compare(list(recompute(records, load)), written)
    assert (found.differing, found.compared) == (0, len(written))


def test_it_goes_on_under_another_owner_and_other_settings_and_is_not_filled_twice(owner: Owned) -> None:
    wanted = filled_with(queries(STREAM, LAST, ALL), ("total", 1))
    owner.settings(wanted)
    for number in range(18):
        owner.turn()
        owner.tuples(1)
        if number % 6 == 5:
            owner.filler = Filler(owner)
        if number == 8:
            owner.settings(filled_with(queries(STREAM, LAST, ALL, RAIN), ("total", 1)))
    assert owner.being_filled
    owner.fill()
    owner.settings(wanted)
    owner.tuples(20)
    owner.turn()
    assert not owner.being_filled
    assert rows(owner.made, "total") == from_the_start(owner.writer.records, wanted, 1, "total")


def test_too_much_that_is_kept_is_dropped_and_comes_again(owner: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = filled_with(queries(STREAM, LAST, ALL), ("total", 1))
    owner.settings(wanted)
    monkeypatch.setattr(filled, "MOST_KEPT", 1_000)
    while owner.being_filled[0].kept_from < 0:
        owner.turn()
    owner.tuples(50)
    assert owner.being_filled[0].kept_from < 0
    monkeypatch.setattr(filled, "MOST_KEPT", 1_000_000)
    owner.fill()
    assert rows(owner.made, "total") == from_the_start(owner.writer.records, wanted, 1, "total")


def test_a_record_that_kills_is_left_out_and_the_past_goes_on_behind_it(owner: Owned) -> None:
    owner.settings(filled_with(queries(STREAM, LAST, ALL), ("total", 1)))
    while owner.being_filled[0].upto < MANY // 2:
        owner.turn()
    owner.turn()
    while owner.slot.position == len(owner.writer.records):
        owner.turn()
    last = owner.writer.records[-1]  # the owners that died on it have written nothing of it
    owner.writer.quarantine(last.offset)
    owner.slot.register.quarantined.add(last.offset)  # as whoever follows has read it before
    owner.fill()
    owner.tuples(20)
    owner.follow()
    assert {name.offset for topic, name, _ in owner.made if topic == DEAD_LETTERS} >= {last.offset}
    skipped = parse(last)[0]
    assert skipped is not None
    assert skipped.past.batch
    begin, upto = skipped.past.begin, skipped.past.upto
    others = [*owner.writer.records[:begin], *owner.writer.records[upto:]]
    sent_again = {message.batch.step for item in others if (message := parse(item)[0]) is not None}
    left_out = {batch.step for batch in skipped.past.batch} - sent_again
    steps = [step for step, *_ in rows(owner.made, "total")]
    assert not left_out.intersection(steps)
    assert steps == sorted(steps)
    assert {step for step, *_ in rows(owner.made, "last")} - left_out <= set(steps)


def test_what_retention_has_deleted_is_left_out(owner: Owned) -> None:
    wanted = filled_with(queries(STREAM, LAST, ALL), ("total", 1))
    owner.reader.first = 150
    owner.settings(wanted)
    while owner.being_filled[0].upto < 200:
        owner.turn()
    owner.reader.first = 260
    owner.fill()
    steps = [step for step, *_ in rows(owner.made, "total")]
    batches = [message.batch.step for item in owner.writer.records if (message := parse(item)[0]) is not None]
    assert not set(batches[:150]).difference(batches[150:]).intersection(steps)
    assert steps == sorted(steps)
    assert {step for step, *_ in rows(owner.made, "last") if step > batches[260]} <= set(steps)


def test_while_the_broker_is_away_the_owner_goes_on_with_all_else(owner: Owned) -> None:
    wanted = filled_with(queries(STREAM, LAST, ALL), ("total", 1))
    owner.settings(wanted)
    for turn in range(60):
        owner.reader.answers = turn % 10 > 5
        owner.turn()
    owner.reader.answers = True
    owner.fill()
    assert rows(owner.made, "total") == from_the_start(owner.writer.records, wanted, 1, "total")


def test_many_small_records_are_no_less_than_a_few_large_ones(owner: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(filler, "MOST_RECORDS", 20)
    wanted = filled_with(queries(STREAM, LAST, ALL), ("total", 1))
    owner.settings(wanted)
    owner.fill()
    assert rows(owner.made, "total") == from_the_start(owner.writer.records, wanted, 1, "total")


def test_a_slot_waits_while_another_one_of_the_worker_reads(owner: Owned) -> None:
    owner.settings(filled_with(queries(STREAM, LAST, ALL), ("total", 1)))
    owner.free = False
    for _ in range(20):
        owner.turn()
    assert owner.being_filled[0].upto < 0
    owner.free = True
    owner.fill()


def test_one_record_is_on_its_way_at_a_time() -> None:
    owner = Owned(queries(STREAM, LAST), random.Random(9))
    owner.tuples(3000)
    owner.settings(filled_with(queries(STREAM, LAST, ALL), ("total", 1)))
    while owner.being_filled and owner.being_filled[0].upto < 500:
        owner.turn()
    sent = 0
    for _ in range(90):  # nothing is read back for 0.9 s
        sent += len(owner.filler.decide(OwnerView(owner.slot, Wish(owner.config), owner.now)))
        owner.now += 0.01
    assert sent <= 1
    owner.fill()
