"""A live source on messages that the test puts in, under a clock that it moves; and a whole edge on it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import structlog

from tsunagi.edge.decode import Decoder
from tsunagi.edge.inbox import Begun, CaughtUp, Inbox, Message
from tsunagi.edge.live import LiveRules, LiveSource
from tsunagi.edge.service import Edge
from tsunagi.edge.source import LiveProgress, Offsets, Row
from tsunagi.edge.sources import LiveOpener
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.log import DEAD_LETTERS, PLAN, TUPLES
from tsunagi.runtime.marks import Mark
from tsunagi.runtime.messages import VERSION, DeadLetter, LogRecord, Placement, Plan, TupleBatch
from tsunagi.runtime.sensors import Sensor, SensorTable, place, read_sensors
from tsunagi.runtime.settings import Settings, Source, Steps
from tsunagi.runtime.testing import MemoryLog

STEPS = Steps(interval_s=0.1, window=10, slide=2)
SLIDE_US, WINDOW_US = STEPS.slide_us, STEPS.window_us
START_US = 1_700_000_000_000_000
DISORDER_US = 500_000
TABLE = SensorTable((Sensor(0, "s0", "a"), Sensor(1, "s1", "b"), Sensor(2, "s2", "a", max_age_s=60.0)))
TURN_US = 50_000


class FakeFeed:
    def __init__(self, scheme: str = "mqtt") -> None:
        self.scheme = scheme
        self.has_positions = scheme.startswith("kafka")
        self.may_repeat = scheme == "mqtt"
        self.trouble = ""
        self.ended = False
        self.inbox = Inbox(1)
        self.resume: LiveProgress | None = None
        self.numbers = 0

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        self.inbox, self.resume = inbox, resume

    def close(self) -> None:
        self.ended = True

    def say(self, sensor: str, time_us: int, value: float = 1.0, **more: Any) -> None:
        body = json.dumps({"sensor": sensor, "time": time_us, "value": value}).encode()
        self.raw(body, time_us, **more)

    def raw(self, body: bytes, arrived_us: int, *, offset: int | None = None, **more: Any) -> None:
        number = self.numbers if offset is None else offset
        self.numbers = number + 1
        self.inbox.put(Message(body, "here", arrived_us, offset=number, **more))


class Rig:
    """A source and its feed; the clock goes on in turns, as a loop would."""

    def __init__(
        self, scheme: str = "mqtt", resume: LiveProgress | None = None, until_us: int = 0, **more: Any
    ) -> None:
        settings = Source(time_unit="us", **more)
        self.feed = FakeFeed(scheme)
        self.now_us = START_US
        self.source = LiveSource(
            self.feed,
            Inbox(settings.queue),
            Decoder(TABLE, TABLE.of_edge("a"), settings, key_first=True),
            LiveRules.of(settings),
            STEPS,
            TABLE.of_edge("a"),
            self.now_us,
            resume=resume,
            until_us=until_us,
            run=77,
        )

    def turn(self, most: int = 100) -> list[Row]:
        return self.source.due(self.now_us, most)

    def go(self, seconds: float) -> list[Row]:
        rows = []
        end_us = self.now_us + round(seconds * 1e6)
        while self.now_us < end_us:
            self.now_us = min(end_us, self.now_us + TURN_US)
            rows += self.turn()
        return rows

    def complete_us(self) -> int:
        return self.source.complete_until_us(self.now_us) - START_US

    def reasons(self) -> list[str]:
        return [item.reason for item in self.source.unusable()]


def test_the_clock_closes_steps_whether_or_not_anything_comes():
    rig = Rig()
    assert rig.source.observed_us == START_US
    rig.go(3)
    assert rig.complete_us() == 3_000_000 - DISORDER_US
    assert rig.source.delay_us == DISORDER_US
    assert not rig.source.finished


def test_readings_are_handed_out_in_any_order_with_their_own_times():
    rig = Rig()
    rig.feed.say("s0", START_US + 40_000, 2.0)
    rig.feed.say("s2", START_US - 30_000, 3.0)
    rows = rig.go(0.1)
    assert [(row.time_us - START_US, row.places.tolist(), row.values.tolist()) for row in rows] == [
        (40_000, [0], [2.0]),
        (-30_000, [1], [3.0]),
    ]
    assert rows[0].origin is not None
    assert [row.origin.name for row in rows if row.origin] == ["mqtt/77/0", "mqtt/77/1"]
    assert rig.reasons() == []


def test_what_is_too_far_ahead_or_older_than_the_first_window_is_unusable():
    rig = Rig()
    rig.feed.say("s0", START_US + 5_000_001)
    rig.feed.say("s0", START_US + 5_000_000)
    rig.feed.say("s0", START_US - 20_000_000)
    assert len(rig.turn()) == 1
    first, second = rig.source.unusable()
    assert (first.reason, first.sensor, first.detail) == (
        "ahead",
        "s0",
        "its time is 5.000 s ahead of the edge's clock",
    )
    assert (second.reason, second.number) == ("reading-late", 2)
    assert "20.000 s behind" in second.detail
    assert rig.source.skipped_rows == 0


def test_a_reading_that_still_holds_is_taken_however_old():
    rig = Rig()
    rig.feed.say("s2", START_US - 59_000_000)
    rig.feed.say("s2", START_US - 61_000_000)
    assert [row.time_us for row in rig.turn()] == [START_US - 59_000_000]
    assert rig.reasons() == ["reading-late"]


def test_each_fault_comes_with_its_payload_and_origin():
    rig = Rig()
    rig.feed.raw(b"\x00\xff broken", START_US)
    rig.feed.say("s1", START_US)
    assert rig.turn() == []
    broken, foreign = rig.source.unusable()
    assert (broken.reason, broken.payload, broken.letter) == ("unreadable", b"\x00\xff broken", True)
    assert broken.origin is not None
    assert (broken.origin.name, broken.origin.place) == ("mqtt/77/0", "here")
    assert (foreign.reason, foreign.sensor, foreign.letter) == ("foreign-sensor", "s1", True)


def test_foreign_readings_are_only_counted_if_so_set():
    rig = Rig(foreign="count")
    rig.feed.say("s1", START_US)
    rig.feed.say("s9", START_US)
    rig.turn()
    assert [(item.reason, item.letter) for item in rig.source.unusable()] == [
        ("foreign-sensor", False),
        ("unknown-sensor", True),
    ]


def test_steps_wait_for_what_lies_in_the_queue():
    rig = Rig()
    for number in range(10):
        rig.feed.say("s0", START_US + number)
    rig.go(0.6)
    before = rig.complete_us()
    for number in range(10):
        rig.feed.say("s0", START_US + number)
    rig.now_us += TURN_US
    assert len(rig.turn(4)) == 4
    assert rig.complete_us() == before
    assert len(rig.turn(4)) == 4
    assert rig.complete_us() == before
    assert len(rig.turn(4)) == 2
    assert rig.complete_us() == before + TURN_US


def test_a_queue_that_never_empties_holds_steps_up_for_a_bounded_time():
    rig = Rig(max_behind_s=2.0)
    for _ in range(39):
        for number in range(10):
            rig.feed.say("s0", rig.now_us + number)
        rig.now_us += TURN_US
        rig.turn(5)
        assert rig.complete_us() == -DISORDER_US
    rig.feed.say("s0", rig.now_us)
    rig.now_us += 2 * TURN_US
    rig.turn(5)
    assert rig.complete_us() == rig.now_us - START_US - DISORDER_US


def test_after_a_pause_the_thread_gets_time_to_bring_what_had_come():
    rig = Rig()
    rig.go(1)
    before = rig.complete_us()
    rig.now_us += 3_000_000
    rig.turn()
    assert rig.complete_us() == before
    rig.feed.say("s0", START_US + 1_500_000)
    rig.now_us += 100_000
    assert len(rig.turn()) == 1
    assert rig.complete_us() == before
    rig.go(0.2)
    assert rig.complete_us() == rig.now_us - START_US - DISORDER_US


@pytest.mark.parametrize("behind", ["skip", "send"])
def test_steps_of_a_long_pause_are_skipped_or_sent(behind):
    rig = Rig(when_behind=behind)
    rig.go(1)
    before = rig.source.send_after_us
    rig.now_us += 7_000_000
    rig.turn()
    if behind == "skip":
        assert rig.source.send_after_us == rig.now_us - DISORDER_US
    else:
        assert rig.source.send_after_us == before


def test_what_is_delivered_again_counts_once():
    rig = Rig()
    rig.feed.say("s0", START_US, 1.0)
    rig.feed.say("s0", START_US, 1.0)  # another reading that happens to be equal
    rig.feed.say("s0", START_US, 1.0, repeated=True)
    rig.feed.say("s0", START_US, 2.0, repeated=True)  # it had not arrived before
    assert [row.values.tolist() for row in rig.turn()] == [[1.0], [1.0], [2.0]]
    (item,) = rig.source.unusable()
    assert (item.reason, item.letter) == ("repeated", False)


def test_repeats_are_forgotten_with_their_windows():
    rig = Rig()
    for number in range(100):
        rig.feed.say("s0", START_US + number)
    rig.turn()
    rig.source.progress(START_US + 49)
    assert len(rig.source._seen) == len(rig.source._seen_in_order) == 50


def test_what_the_queue_dropped_is_counted():
    rig = Rig(queue=2)
    for number in range(5):
        rig.feed.inbox.offer(Message(b"1", "here", START_US, sensor="s0", offset=number))
    assert len(rig.turn()) == 2
    (item,) = rig.source.unusable()
    assert (item.reason, item.count, item.letter) == ("overflow", 3, False)
    rig.turn()
    assert rig.reasons() == []


def test_a_source_that_ends_is_finished_once_the_steps_of_its_last_reading_may_close():
    rig = Rig("lines")
    last_us = (START_US // SLIDE_US + 2) * SLIDE_US + 1
    rig.feed.say("s0", last_us)
    rig.feed.ended = True
    assert not rig.source.finished  # it has not been looked at
    rig.turn()
    while not rig.source.finished:
        assert rig.now_us < START_US + 3_000_000
        rig.go(0.05)
    end_us = (START_US // SLIDE_US + 3) * SLIDE_US
    assert end_us <= rig.source.complete_until_us(rig.now_us) < end_us + TURN_US


def test_a_source_that_ends_without_a_word_is_finished_at_once():
    rig = Rig("lines")
    rig.feed.ended = True
    rig.turn()
    assert rig.source.finished


# ---- Kafka: positions


def resumed(**more: Any) -> Rig:
    """An edge that stopped 10 s ago: partition 0 read up to 50, of which 40 and later stand in open windows."""
    progress = LiveProgress({0: Offsets(50, 40), 1: Offsets(7, 7)}, START_US - 100_000_000)
    return Rig("kafka/plant", progress, until_us=START_US - 10_000_000, **more)


def test_a_topic_begun_at_its_end_closes_by_the_clock_at_once():
    rig = Rig("kafka/plant")
    rig.go(1)
    rig.feed.inbox.put(Begun({0: 100, 1: 3}, frozenset()))
    rig.go(1)
    assert rig.complete_us() == 2_000_000 - DISORDER_US
    assert rig.source.progress(0).partitions == {0: Offsets(100, 100), 1: Offsets(3, 3)}


def test_positions_keep_what_open_windows_contain():
    rig = Rig("kafka/plant")
    rig.feed.inbox.put(Begun({0: 5}, frozenset()))
    for number, later_us in enumerate((10, 30, 20, 40)):
        rig.feed.say("s0", START_US + later_us, offset=5 + number)
    rig.feed.raw(b"broken", START_US, offset=9)
    rows = rig.turn()
    assert [row.origin.name for row in rows if row.origin] == [f"kafka/plant/0/{offset}" for offset in (5, 6, 7, 8)]
    assert rig.source.progress(START_US).partitions == {0: Offsets(10, 5)}
    assert rig.source.progress(START_US + 20).partitions == {0: Offsets(10, 6)}
    assert rig.source.progress(START_US + 30).partitions == {0: Offsets(10, 8)}
    assert rig.source.progress(START_US + 40).partitions == {0: Offsets(10, 10)}


def test_after_a_restart_steps_close_as_far_as_the_topic_has_been_read():
    rig = resumed(when_behind="send")
    assert rig.feed.resume == LiveProgress({0: Offsets(50, 40), 1: Offsets(7, 7)}, START_US - 100_000_000)
    assert rig.source.observed_us == START_US - 100_000_000
    assert rig.source.send_after_us == START_US - 10_000_000
    rig.go(1)
    assert rig.complete_us() == -10_000_000  # nothing is known of the topic yet
    rig.feed.inbox.put(Begun({0: 50, 1: 7}, frozenset({0, 1})))
    rig.feed.say("s0", START_US - 10_500_000, offset=45, again=True)
    rig.feed.say("s0", START_US - 8_000_000, offset=50)
    rows = rig.go(0.1)
    assert [row.again for row in rows] == [True, False]
    assert rig.complete_us() == -10_000_000  # of partition 1 nothing has come
    rig.feed.say("s0", START_US - 6_000_000, offset=7, partition=1)
    rig.go(0.1)
    assert rig.complete_us() == -8_000_000 - DISORDER_US
    rig.feed.inbox.put(CaughtUp(0))
    rig.go(0.1)
    assert rig.complete_us() == -6_000_000 - DISORDER_US
    rig.feed.inbox.put(CaughtUp(1))
    rig.go(0.1)
    assert rig.source.complete_until_us(rig.now_us) == rig.now_us - DISORDER_US
    assert rig.reasons() == []


def test_after_a_restart_steps_that_are_over_are_skipped_and_their_readings_counted():
    rig = resumed(when_behind="skip")
    assert rig.source.send_after_us == START_US - DISORDER_US
    rig.feed.inbox.put(Begun({0: 50}, frozenset({0})))
    rig.feed.say("s0", START_US - 9_000_000, offset=50)
    rig.feed.say("s0", START_US - 900_000, offset=51)
    rig.feed.say("s0", START_US - 200_000_000, offset=52)
    rig.feed.inbox.put(CaughtUp(0))
    assert [row.time_us for row in rig.turn()] == [START_US - 900_000]
    assert rig.source.skipped_rows == 1
    assert rig.reasons() == ["reading-late"]


def test_what_was_told_before_is_not_told_again():
    rig = resumed()
    rig.feed.inbox.put(Begun({0: 50}, frozenset({0})))
    rig.feed.raw(b"broken", START_US, offset=41, again=True)
    rig.feed.say("s0", START_US - 500_000_000, offset=42, again=True)
    rig.feed.raw(b"broken", START_US, offset=50)
    assert rig.turn() == []
    assert rig.reasons() == ["unreadable"]
    assert rig.source.skipped_rows == 0
    assert rig.source.progress(0).partitions[0].next == 51


def test_a_topic_that_does_not_come_back_holds_steps_up_for_a_bounded_time():
    rig = resumed(max_behind_s=3.0)
    rig.go(2.9)
    assert rig.complete_us() == -DISORDER_US
    rig.go(0.2)
    assert rig.complete_us() > 2_000_000


def test_a_topic_made_anew_begins_anew():
    rig = Rig("kafka/plant")
    rig.feed.inbox.put(Begun({0: 500}, frozenset()))
    rig.feed.say("s0", START_US, offset=500)
    rig.turn()
    rig.feed.inbox.put(Begun({0: 0}, frozenset()))
    rig.feed.say("s0", START_US + 1, offset=0)
    rig.turn()
    assert rig.source.progress(START_US).partitions == {0: Offsets(1, 0)}


# ---- a whole edge


class World:
    def __init__(self, path, **source: Any) -> None:
        self.path = path
        (path / "sensors.csv").write_text(
            "sensor,edge,min,max,max_age_s\ns0,a,0,100,\ns1,b,0,100,\ns2,a,0,100,\ns3,a,0,100,3\n"
        )
        self.settings = Settings(
            state=path / "run",
            sensors=path / "sensors.csv",
            steps=STEPS.model_dump(),
            source={"kind": "mqtt", "time_unit": "us"} | source,
        )
        self.table = read_sensors(path / "sensors.csv")
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, {TUPLES: 2, PLAN: 1, DEAD_LETTERS: 1}, rng=random.Random(1))
        self.slots = place(self.table, 2)
        placement = Placement(
            serial=1, slots=2, slot=pack_sensors(self.slots), table_sha256=self.table.digest(len(self.slots))
        )
        self.log.append(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
        self.feed = FakeFeed()
        self.runs = 0

    def edge(self, scheme: str = "mqtt") -> Edge:
        self.runs += 1
        self.feed = FakeFeed(scheme)
        own = self.table.of_edge("a")
        opener = LiveOpener(self.feed, self.settings, self.table, own, key_first=True)
        logger = structlog.stdlib.get_logger("test")
        edge = Edge(self.settings, "a", self.log.client(f"a-{self.runs}"), self.clock, logger, opener=opener)
        edge.step()
        return edge

    def run(self, edge: Edge, seconds: float, every_s: float = 0.05) -> None:
        for _ in range(round(seconds / every_s)):
            self.clock.advance(every_s)
            while edge.step() == 0.0:
                pass

    def batches(self) -> list[tuple[int, TupleBatch]]:
        return [
            (record.partition, LogRecord.FromString(record.value or b"").batch) for record in self.log.records(TUPLES)
        ]

    def values(self, step: int) -> dict[int, tuple[float, int]]:
        """sensor -> (value, readings) of a step."""
        found: dict[int, tuple[float, int]] = {}
        for _, batch in self.batches():
            if batch.step == step:
                columns = (sensors(batch.sensor).tolist(), floats(batch.value).tolist(), sensors(batch.count).tolist())
                found |= {sensor: (value, count) for sensor, value, count in zip(*columns, strict=True)}
        return found

    def letters(self) -> list[DeadLetter]:
        return [DeadLetter.FromString(record.value or b"") for record in self.log.records(DEAD_LETTERS)]


def steps(world: World) -> list[int]:
    return sorted({batch.step for _, batch in world.batches()})


def test_an_edge_without_readings_publishes_empty_batches(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    assert edge.ready() == (True, "")
    world.run(edge, 5)
    found = steps(world)
    first = -(-(START_US + WINDOW_US) // SLIDE_US)
    assert found == list(range(first, (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    assert len(world.batches()) == 2 * len(found)
    assert all(batch.sensor == b"" for _, batch in world.batches())
    edge.close()


def test_a_step_is_published_when_the_disorder_has_passed_and_not_before(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    for _ in range(80):
        world.run(edge, 0.05)
        last = edge.publisher.last_step
        assert last is None or last * SLIDE_US + DISORDER_US <= world.clock.now_us()
        assert last is None or (last + 1) * SLIDE_US + DISORDER_US > world.clock.now_us()
    edge.close()


def test_the_loop_does_not_spin_while_a_step_waits_for_the_disorder(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    turns = 0
    while world.clock.monotonic() < 5:
        wait_s = edge.step()
        assert wait_s > 0
        world.clock.advance(wait_s)
        turns += 1
    assert len(steps(world)) > 10
    assert turns < 150
    edge.close()


def test_disordered_readings_are_in_their_windows_and_late_ones_in_dead_letters(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    chance = random.Random(4)
    sent: dict[int, float] = {}
    pending: list[tuple[float, int, float]] = []
    for _ in range(100):  # 5 s; each reading comes up to 0.4 s after its time
        world.run(edge, 0.05)
        now_us = world.clock.now_us()
        sent[now_us] = round(chance.uniform(0, 100), 2)
        pending.append((world.clock.monotonic() + chance.uniform(0, 0.4), now_us, sent[now_us]))
        for item in [item for item in pending if item[0] <= world.clock.monotonic()]:
            pending.remove(item)
            world.feed.say("s0", item[1], item[2])
    found = steps(world)
    assert len(found) > 10
    for step in found:
        inside = [value for time, value in sent.items() if step * SLIDE_US - WINDOW_US < time <= step * SLIDE_US]
        value, count = world.values(step)[0]
        assert value == pytest.approx(sum(inside) / len(inside))
        assert count == len(inside)
    assert world.letters() == []
    world.feed.say("s0", found[-1] * SLIDE_US, 5.0)
    world.feed.say("s0", found[-1] * SLIDE_US + 1, 500.0)
    world.run(edge, 0.1)
    late, outside = world.letters()
    assert (late.reason, late.key) == ("reading-late", f"a/mqtt/{edge.incarnation}/{world.feed.numbers - 2}".encode())
    assert json.loads(late.value)["value"] == 5.0
    assert "its step had closed" in late.detail
    assert (outside.reason, outside.topic) == ("out-of-range", "source")
    assert "found 500.0, expected 0.0 to 100.0" in outside.detail
    assert dict(edge.dead_letters.counts) == {"reading-late": 1, "out-of-range": 1}
    edge.close()


def test_every_unusable_reading_has_a_letter_under_a_name_of_its_own(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    for _ in range(3000):
        world.feed.raw(b"x" * 70_000 if world.feed.numbers == 7 else b"?", world.clock.now_us())
        if world.feed.numbers % 500 == 0:
            world.run(edge, 0.05)
    world.run(edge, 1)
    letters = world.letters()
    assert len(letters) == len({letter.key for letter in letters}) == 3000 == edge.dead_letters.counts["unreadable"]
    assert edge.dead_letters.unwritten == 0
    assert len(letters[7].value) == 65536
    edge.close()


def test_letters_that_wait_hold_the_source_up_and_none_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("tsunagi.edge.dead_letters.MAX_WAITING_BYTES", 2000)
    world = World(tmp_path, queue=500)
    edge = world.edge()
    producer = edge.publisher.producer
    real = producer.send

    def full(*_: object) -> None:
        raise BufferError

    monkeypatch.setattr(producer, "send", full)
    for _ in range(500):
        world.feed.raw(b"?", world.clock.now_us())
    world.run(edge, 1)
    assert world.feed.inbox.offer(Message(b"?", "here", 0)) or len(world.feed.inbox) > 0
    waiting = len(edge.dead_letters._waiting)
    assert 0 < waiting <= 256 + 20
    monkeypatch.setattr(producer, "send", real)
    world.run(edge, 1)
    assert len(world.letters()) == edge.dead_letters.counts["unreadable"] >= 500
    edge.close()


def test_a_value_holds_for_its_max_age(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    world.run(edge, 1.5)
    said_us = world.clock.now_us()
    world.feed.say("s3", said_us, 42.0)
    world.feed.say("s0", said_us, 42.0)
    world.run(edge, 6)
    for step in steps(world):
        end_us = step * SLIDE_US
        inside = end_us - WINDOW_US < said_us <= end_us
        held = said_us <= end_us < said_us + 3_000_000
        values = world.values(step)
        assert values.get(0) == ((42.0, 1) if inside else None)
        assert values.get(3) == ((42.0, int(inside)) if inside or held else None)
    edge.close()


def test_an_edge_on_a_topic_goes_on_where_it_was(tmp_path):
    """Killed and started again, windows are whole across the gap: the topic has kept what came in between."""
    world = World(tmp_path, when_behind="send")
    topic: list[tuple[int, float]] = []

    def append(edge: Edge | None, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            if edge is None:
                world.clock.advance(0.05)
            topic.append((world.clock.now_us(), float(len(topic) % 97)))
            if edge is not None:
                world.feed.say("s0", *topic[-1], offset=len(topic) - 1)
                world.run(edge, 0.05)

    edge = world.edge("kafka/plant")
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    append(edge, 4)
    world.log.client("a-1").crash()
    edge.publisher.spool.close()
    before = steps(world)
    append(None, 3)
    edge = world.edge("kafka/plant")
    kept = world.feed.resume
    assert kept is not None
    (at,) = kept.partitions.values()
    assert at.oldest < at.next <= 80
    world.feed.inbox.put(Begun({0: at.next}, frozenset({0})))
    for offset in range(at.oldest, len(topic)):
        world.feed.say("s0", *topic[offset], offset=offset, again=offset < at.next)
    world.feed.inbox.put(CaughtUp(0))
    append(edge, 3)
    found = steps(world)
    assert found == list(range(found[0], found[-1] + 1))
    assert found[-1] > before[-1] + 20
    for step in found:
        inside = [value for time, value in topic if step * SLIDE_US - WINDOW_US < time <= step * SLIDE_US]
        value, count = world.values(step)[0]
        assert value == pytest.approx(sum(inside) / len(inside))
        assert count == len(inside)
    assert world.letters() == []
    edge.close()


def test_a_restarted_edge_skips_what_is_over_and_windows_are_whole_at_once(tmp_path):
    world = World(tmp_path)
    edge = world.edge("kafka/plant")
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    world.run(edge, 4)
    world.log.client("a-1").crash()
    edge.publisher.spool.close()
    before = steps(world)
    world.clock.advance(10)
    edge = world.edge("kafka/plant")
    began_us = world.clock.now_us()
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    world.run(edge, 2)
    after = [step for step in steps(world) if step > before[-1]]
    assert after[0] == (began_us - DISORDER_US) // SLIDE_US + 1
    edge.close()


def test_a_source_that_is_away_shows_in_readiness_and_steps_go_on(tmp_path):
    world = World(tmp_path)
    edge = world.edge()
    world.feed.trouble = "MQTT broker b:1883: cannot connect"
    world.run(edge, 3)
    assert edge.ready() == (True, "MQTT broker b:1883: cannot connect")
    assert len(steps(world)) > 5
    edge.close()


def test_of_another_sources_position_only_the_step_counts(tmp_path):
    world = World(tmp_path)
    edge = world.edge("kafka/plant")
    world.feed.inbox.put(Begun({0: 5}, frozenset()))
    world.run(edge, 4)
    last = edge.publisher.last_step
    world.log.client("a-1").crash()
    edge.publisher.spool.close()
    edge = world.edge("kafka/other")
    assert world.feed.resume is None
    world.run(edge, 4)
    found = [batch.step for _, batch in world.batches()]
    assert last is not None
    assert min(batch.step for _, batch in world.batches() if batch.incarnation == edge.incarnation) > last
    assert len(found) == 2 * len(set(found))
    edge.close()


def test_an_offset_is_kept_with_its_mark_and_a_contradiction_stays():
    kept = Mark("one", 5)
    rig = Rig("kafka/plant", LiveProgress({0: Offsets(50, 40, kept), 1: Offsets(7, 7, Mark("one", 6))}, START_US))
    rig.feed.inbox.put(Begun({0: 50, 1: 0}, frozenset(), "one", "partition 1: something"))
    rig.go(1)
    found = rig.source.progress(0).partitions
    assert found == {0: Offsets(50, 50, kept), 1: Offsets(0, 0, Mark("one", 0))}
    for offset in (48, 49):  # of open windows, read again
        rig.feed.say("s0", rig.now_us, offset=offset, digest=offset, again=True)
    rig.go(1)
    assert rig.source.progress(0).partitions[0].mark == Mark("one", 49)
    rig.feed.say("s0", rig.now_us, offset=50, digest=123)
    rig.feed.inbox.put(Begun({0: 51, 1: 0}, frozenset(), "two"))
    rig.go(1)
    at = rig.source.progress(0).partitions[0]
    assert (at.next, at.mark) == (51, Mark("two", 123))
    assert rig.source.fault == "partition 1: something"


HOUR_US = 3_600_000_000


@pytest.mark.parametrize("jump_us", [-HOUR_US, -3_000_000, 3_000_000, HOUR_US])
def test_a_clock_that_jumps_costs_no_step_names_none_twice_and_is_said(tmp_path, jump_us):
    world = World(tmp_path)
    edge = world.edge()
    world.run(edge, 5)
    first = steps(world)[0]
    world.clock.skew_us = jump_us
    world.run(edge, 5)
    ready, reason = edge.ready()
    assert ready
    assert reason == f"the clock has jumped by {jump_us / 1e6:+.1f} s: steps go on as before it"
    world.clock.skew_us = 0
    world.run(edge, 5)
    assert edge.ready() == (True, "")
    assert edge._counts.clock_jumps._value.get() >= 2
    found = [batch.step for _, batch in world.batches()]
    assert len(found) == 2 * len(set(found))
    assert steps(world) == list(range(first, (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    edge.close()


def test_an_edge_whose_clock_was_wrong_from_its_start_goes_on_at_the_true_time_when_it_is_set_right(tmp_path):
    world = World(tmp_path)
    world.clock.skew_us = HOUR_US
    edge = world.edge()
    world.run(edge, 5)
    wrong = steps(world)
    world.clock.skew_us = 0
    world.run(edge, 5)
    right = sorted(set(steps(world)) - set(wrong))
    assert right == list(range(right[0], (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    assert len(right) * SLIDE_US > 5e6 - WINDOW_US - 1e6
    assert edge.ready() == (True, "")
    found = [batch.step for _, batch in world.batches()]
    assert len(found) == 2 * len(set(found))
    world.clock.skew_us = -HOUR_US  # slow from now on, and the log says that this is wrong
    world.run(edge, 2)
    assert edge.publisher.last_step is not None
    assert edge.publisher.last_step > right[-1]
    edge.close()


@pytest.mark.parametrize("mode", ["steps", "tuples"])
def test_a_wait_for_the_next_step_is_said_where_there_are_steps(tmp_path, mode):
    world = World(tmp_path)
    world.settings = world.settings.model_copy(update={"query": world.settings.query.model_copy(update={"mode": mode})})
    world.clock.skew_us = 2_000_000  # within what slots take
    edge = world.edge()
    for _ in range(100):
        world.feed.say("s0", world.clock.now_us())
        world.run(edge, 0.05)
    assert edge.ready() == (True, "")
    assert edge.publisher.last_step is not None
    world.clock.skew_us = 0
    world.run(edge, 0.2)
    said = edge.ready()[1]
    assert said.startswith("the clock was set back: the next step comes in 1.") if mode == "steps" else said == ""
    world.run(edge, 5)
    assert edge.ready() == (True, "")
    found = [batch.step for _, batch in world.batches()]
    slots = 2 if mode == "steps" else 1
    assert len(found) == slots * len(set(found))
    edge.close()


def test_readings_are_stamped_by_the_edges_clock_while_the_wall_clock_is_off(tmp_path):
    world = World(tmp_path, kind="lines", lines={"listen": "127.0.0.1:0"})
    logger = structlog.stdlib.get_logger("test")
    edge = Edge(world.settings, "a", world.log.client("a"), world.clock, logger)
    world.run(edge, 3)
    world.clock.skew_us = -HOUR_US
    world.run(edge, 1)
    source = edge._source
    assert isinstance(source, LiveSource)
    assert source._inbox.now_us() == world.clock.now_us() + HOUR_US
    edge.close()
