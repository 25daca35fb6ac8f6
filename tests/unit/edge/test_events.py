"""Events on their way through an edge: each is sent once, with the step in which its time lies, or is set aside."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.unit.edge.worlds import DISORDER_US, SLIDE_US, START_US, WINDOW_US, LiveWorld
from tsunagi.edge.events import EventSteps
from tsunagi.edge.inbox import Begun, CaughtUp
from tsunagi.edge.tuple_form import streams_of
from tsunagi.query.errors import QueryError
from tsunagi.query.form import TupleForm
from tsunagi.query.typed import from_message
from tsunagi.query.values import Kind
from tsunagi.runtime.settings import Settings

STATEMENTS = """
CREATE STREAM doors (door TEXT KEY, open BOOLEAN, by TEXT, weight DOUBLE);
CREATE STREAM alarms (code BIGINT, text TEXT, since TIMESTAMP);
CREATE FUNCTION f AS 'nowhere:at_all';
CREATE QUERY n AS SELECT COUNT(*) AS n FROM alarms [RANGE 2 SECONDS];
"""


def say(world: LiveWorld, stream: str, time_us: int, **cells: Any) -> None:
    more = {name: cells.pop(name) for name in ("offset", "again", "repeated") if name in cells}
    body = json.dumps({"stream": stream, "time": time_us, **cells}).encode()
    world.feed.raw(body, time_us, **more)


def sent(world: LiveWorld, stream: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, values) of each event that stands in `tuples`, in the order of the log."""
    found = []
    for _, batch in world.batches():
        for events in batch.events:
            columns = {column.name: from_message(column, events.rows) for column in events.column}
            for row in range(events.rows if events.stream == stream else 0):
                values = {}
                for name, column in columns.items():
                    there = column.valid is None or column.valid[row]
                    value = column.values[row].item()
                    values[name] = (column.pool[value] if column.kind is Kind.TEXT else value) if there else None
                found.append((batch.step, values))
    return found


def test_events_go_with_the_step_of_their_time_to_one_slot(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS)
    edge = world.edge()
    world.run(edge, 2)
    now_us = world.clock.now_us()
    times = [now_us, now_us - 1, now_us + SLIDE_US, now_us - DISORDER_US // 2]
    for number, time_us in enumerate(times):
        say(world, "doors", time_us, door="s0", open=number % 2 == 0, by=f"people-{number}")
        say(world, "alarms", time_us, code=number, text=None, since="2026-11-27T00:00:00Z")
    world.feed.say("s2", now_us, 7.0)
    world.run(edge, 2)
    doors = sent(world, "doors")
    assert sorted(row["time"] for _, row in doors) == sorted(times)
    assert all(step == -(-row["time"] // SLIDE_US) for step, row in doors)
    assert {row["weight"] for _, row in doors} == {None}, "a column that a message lacks is NULL"
    assert {row["by"]: row["open"] for _, row in doors}["people-1"] == 0
    assert [row["time"] for _, row in doors] == sorted(times), "of one step they are in the order of their times"
    assert sorted(row["code"] for _, row in sent(world, "alarms")) == [0, 1, 2, 3]
    assert len({slot for slot, batch in world.batches() if batch.events}) == 1
    assert world.values(-(-now_us // SLIDE_US))[2] == (7.0, 1), "readings go on beside events"
    edge.close()


def test_what_cannot_be_used_is_set_aside_with_its_reason(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS)
    edge = world.edge()
    world.run(edge, 3)
    now_us = world.clock.now_us()
    say(world, "door", now_us, door="s0")
    say(world, "doors", now_us, open=True)
    say(world, "doors", now_us, door="s1", open=True)
    say(world, "doors", now_us, door="gate", open=True)
    say(world, "doors", now_us, door="s0", open=1)
    say(world, "doors", now_us - 2_000_000, door="s0")
    say(world, "alarms", now_us + 60_000_000, code=1)
    world.feed.raw(json.dumps({"stream": "alarms", "code": 1}).encode(), now_us)
    world.feed.raw(json.dumps({"stream": 7, "code": 1}).encode(), now_us)
    world.run(edge, 1)
    assert sent(world, "doors") == sent(world, "alarms") == []
    reasons = {
        "unknown-stream": 2,
        "no-sensor": 1,
        "foreign-sensor": 1,
        "unknown-sensor": 1,
        "bad-column": 1,
        "reading-late": 1,
        "ahead": 1,
        "no-time": 1,
    }
    assert dict(edge.dead_letters.counts) == reasons
    assert Counter(letter.reason for letter in world.letters()) == reasons
    details = {letter.reason: letter.detail for letter in world.letters()}
    assert "found 7, expected a stream that is created: doors, alarms" in details["unknown-stream"]
    assert "open: found 1, expected BOOLEAN" in details["bad-column"]
    edge.close()


def test_a_stream_without_key_is_that_of_the_first_edge_alone(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS)
    edge = world.edge(name="b")
    world.run(edge, 2)
    say(world, "alarms", world.clock.now_us(), code=1)
    say(world, "doors", world.clock.now_us(), door="s1")
    world.run(edge, 2)
    assert sent(world, "alarms") == []
    assert len(sent(world, "doors")) == 1
    (letter,) = world.letters()
    assert letter.reason == "foreign-stream"
    assert "first edge, 'a'" in letter.detail
    edge.close()


def test_an_edge_that_dies_sends_each_event_of_a_topic_once(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS, when_behind="send")
    edge = world.edge("kafka/t")
    world.feed.inbox.put(Begun({0: 0}, frozenset()))
    messages: list[tuple[int, int]] = []
    for number in range(40):
        world.run(edge, 0.1)
        messages.append((number, world.clock.now_us()))
        say(world, "alarms", messages[-1][1], code=number, offset=number)
    world.log.client("a-1").crash()
    edge.publisher.spool.close()
    edge = world.edge("kafka/t")
    kept = world.feed.resume
    assert kept is not None
    (at,) = kept.partitions.values()
    assert 0 < at.oldest < at.next
    world.feed.inbox.put(Begun({0: at.next}, frozenset({0})))
    for number, time_us in messages[at.oldest :]:
        say(world, "alarms", time_us, code=number, offset=number, again=number < at.next)
    world.feed.inbox.put(CaughtUp(0))
    world.run(edge, 4)
    first = sum(time_us <= START_US + WINDOW_US - SLIDE_US for _, time_us in messages)  # before the first step
    counts = Counter(row["code"] for _, row in sent(world, "alarms"))
    assert counts == Counter(number for number, _ in messages[first:])
    assert edge.dead_letters.counts == {}
    edge.close()


def test_events_before_the_first_step_are_counted_as_readings_are(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS)
    edge = world.edge()
    say(world, "alarms", START_US + 1, code=1)
    world.run(edge, 3)
    assert sent(world, "alarms") == world.letters() == []
    assert dict(edge.dead_letters.counts) == {"before-first-window": 1}
    edge.close()


def test_without_streams_such_messages_are_what_they_were(tmp_path):
    world = LiveWorld(tmp_path)
    edge = world.edge()
    world.run(edge, 2)
    now_us = world.clock.now_us()
    world.feed.raw(json.dumps({"sensor": "s0", "time": now_us, "value": 3, "stream": "doors"}).encode(), now_us)
    world.run(edge, 2)
    assert world.values(-(-now_us // SLIDE_US))[0] == (3.0, 1)
    edge.close()


def test_a_step_has_room_for_so_many_bytes():
    steps = EventSteps({"s": TupleForm("", {"t": Kind.TEXT, "x": Kind.DOUBLE})}, SLIDE_US, 1000)
    time_us = START_US + 1
    step = -(-time_us // SLIDE_US)
    found = [steps.add("s", time_us, {"t": "é" * 30, "x": 1.0}, step) for _ in range(20)]
    assert found == [""] * (1000 // (60 + 6 + 5 + 9 + 9)) + ["step-full"] * (20 - 1000 // 89)
    assert steps.add("s", time_us + SLIDE_US, {"t": None, "x": 1.0}, step) == ""
    (events,) = steps.close(step)
    assert events.rows == found.count("")
    assert events.ByteSize() < 1000
    assert steps.skip(step + 5) == 1
    assert steps.close(step + 1) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("CREATE STREAM s (a TEXTS)", "found type TEXTS"), ("CREATE STREAM readings (a TEXT)", "readings is the name")],
)
def test_a_stream_that_cannot_be_created_ends_the_edge_at_its_start(tmp_path, text, expected):
    (tmp_path / "s.sql").write_text(text)
    with pytest.raises(QueryError, match=expected):
        streams_of(Settings(query={"files": [tmp_path / "s.sql"]}))


def test_files_of_queries_may_be_those_of_the_spark_job_alone(tmp_path):
    """An edge that sends readings in steps needs the definitions of streams alone. Other files may be missing."""
    (tmp_path / "q.sql").write_text("CREATE FUNCTION f AS 'nowhere:g'; CREATE QUERY q AS SELECT f(value) FROM readings")
    assert streams_of(Settings(query={"files": [tmp_path / "q.sql", tmp_path / "none.sql"]})) == {}
    (tmp_path / "s.sql").write_text("create  stream s (a TEXT)")
    found = streams_of(Settings(query={"files": [tmp_path / "q.sql", tmp_path / "s.sql"]}))
    assert found == {"s": TupleForm("", {"a": Kind.TEXT})}
