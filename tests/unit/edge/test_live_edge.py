"""A whole edge on a live source: its steps, its windows, its dead letters and its restarts."""

from __future__ import annotations

import json
import random

import pytest

from tests.unit.edge.worlds import (
    DISORDER_US,
    SLIDE_US,
    START_US,
    WINDOW_US,
    LiveWorld,
    live_steps,
)
from tsunagi.edge.inbox import Begun, CaughtUp, Message
from tsunagi.edge.service import EdgeService


def test_an_edge_without_readings_publishes_empty_batches(tmp_path):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    assert edge.ready() == (True, "")
    world.run(edge, 5)
    found = live_steps(world)
    first = -(-(START_US + WINDOW_US) // SLIDE_US)
    assert found == list(range(first, (world.clock.now_us() - DISORDER_US) // SLIDE_US + 1))
    assert len(world.batches()) == 2 * len(found)
    assert all(batch.sensor == b"" for _, batch in world.batches())
    edge.close()


def test_a_step_is_published_when_the_disorder_has_passed_and_not_before(tmp_path):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    for _ in range(80):
        world.run(edge, 0.05)
        last = edge.publisher.last_step
        assert last is None or last * SLIDE_US + DISORDER_US <= world.clock.now_us()
        assert last is None or (last + 1) * SLIDE_US + DISORDER_US > world.clock.now_us()
    edge.close()


def test_the_loop_does_not_spin_while_a_step_waits_for_the_disorder(tmp_path):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    turns = 0
    while world.clock.monotonic() < 5:
        wait_s = edge.step()
        assert wait_s > 0
        world.clock.advance(wait_s)
        turns += 1
    assert len(live_steps(world)) > 10
    assert turns < 150
    edge.close()


def test_disordered_readings_are_in_their_windows_and_late_ones_in_dead_letters(tmp_path):
    world = LiveWorld(tmp_path)
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
    found = live_steps(world)
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
    world = LiveWorld(tmp_path)
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
    world = LiveWorld(tmp_path, queue=500)
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
    world = LiveWorld(tmp_path)
    edge = world.edge()
    world.run(edge, 1.5)
    said_us = world.clock.now_us()
    world.feed.say("s3", said_us, 42.0)
    world.feed.say("s0", said_us, 42.0)
    world.run(edge, 6)
    for step in live_steps(world):
        end_us = step * SLIDE_US
        inside = end_us - WINDOW_US < said_us <= end_us
        held = said_us <= end_us < said_us + 3_000_000
        values = world.values(step)
        assert values.get(0) == ((42.0, 1) if inside else None)
        assert values.get(3) == ((42.0, int(inside)) if inside or held else None)
    edge.close()


def test_an_edge_on_a_topic_goes_on_where_it_was(tmp_path):
    """Killed and started again, windows are whole across the gap: the topic has kept what came in between."""
    world = LiveWorld(tmp_path, when_behind="send")
    topic: list[tuple[int, float]] = []

    def append(edge: EdgeService | None, seconds: float) -> None:
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
    before = live_steps(world)
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
    found = live_steps(world)
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
    world = LiveWorld(tmp_path)
    edge = world.edge("kafka/plant")
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    world.run(edge, 4)
    world.log.client("a-1").crash()
    edge.publisher.spool.close()
    before = live_steps(world)
    world.clock.advance(10)
    edge = world.edge("kafka/plant")
    began_us = world.clock.now_us()
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    world.run(edge, 2)
    after = [step for step in live_steps(world) if step > before[-1]]
    assert after[0] == (began_us - DISORDER_US) // SLIDE_US + 1
    edge.close()


def test_a_source_that_is_away_shows_in_readiness_and_steps_go_on(tmp_path):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    world.feed.trouble = "MQTT broker b:1883: cannot connect"
    world.run(edge, 3)
    assert edge.ready() == (True, "MQTT broker b:1883: cannot connect")
    assert len(live_steps(world)) > 5
    edge.close()


def test_of_another_sources_position_only_the_step_counts(tmp_path):
    world = LiveWorld(tmp_path)
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
