"""Files of events beside a CSV of readings: replayed together, and each event is sent once, whoever dies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.unit.edge.test_events import sent
from tests.unit.edge.worlds import INTERVAL_S, ROWS, SLIDE, SLIDE_US, WINDOW
from tsunagi import Pipeline
from tsunagi.edge.source import SourceError
from tsunagi.operator_names import PipelineError
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.times import read_time_us

STATEMENTS = """
CREATE STREAM doors (door TEXT KEY, number BIGINT, by TEXT);
CREATE STREAM alarms (code BIGINT, weight DOUBLE, since TIMESTAMP, loud BOOLEAN)
"""
LAST_S = (ROWS - 1) * INTERVAL_S
FIRST_S = (WINDOW - SLIDE) * INTERVAL_S
"""Events up to here are before the first step, which is that of the first whole window."""


def of_doors(count: int = 30) -> list[tuple[float, str]]:
    return [(round(LAST_S * number / count, 3), f"s{number % 6}") for number in range(count)]


@pytest.fixture
def world(make, tmp_path):
    found = make(events={"doors": tmp_path / "doors.csv", "alarms": tmp_path / "alarms.csv"}, when_behind="send")
    found.statements = STATEMENTS
    doors = [f"{time},{door},{number},me" for number, (time, door) in enumerate(of_doors())]
    (tmp_path / "doors.csv").write_text("\n".join(["time,door,number,by", *doors]) + "\n")
    alarms = [f"{time},{number},,2026-11-27T00:00:00Z,true" for number, (time, _) in enumerate(of_doors(10))]
    (tmp_path / "alarms.csv").write_text("\n".join(["time,code,weight,since,loud", *alarms]) + "\n")
    found.write().place()
    return found


def test_each_event_is_in_the_step_of_its_time_by_the_edge_of_its_sensor(world):
    edges = [world.edge(name) for name in "ab"]
    world.run(12)
    assert all(edge.done for edge in edges)
    origin_us = world.origin_us()
    doors = sent(world, "doors")
    wanted = {number: time for number, (time, _) in enumerate(of_doors()) if time > FIRST_S}
    assert {row["number"]: row["time"] for _, row in doors} == {
        number: origin_us + round(time * 1e6) for number, time in wanted.items()
    }
    assert len(doors) == len(wanted)
    assert all(step == -(-row["time"] // SLIDE_US) for step, row in doors)
    for _, batch in world.batches():
        for events in batch.events:
            if events.stream == "doors":
                texts = next(column.text for column in events.column if column.name == "door")
                assert {"ab"[int(text[1:]) % 2] for text in texts} == {batch.edge}
            else:
                assert batch.edge == "a", "a stream without KEY is that of the first edge"
    alarms = [row for _, row in sent(world, "alarms")]
    assert [row["code"] for row in alarms] == [
        number for number, (time, _) in enumerate(of_doors(10)) if time > FIRST_S
    ]
    assert {(row["weight"], row["since"], row["loud"]) for row in alarms} == {
        (None, read_time_us("2026-11-27T00:00:00Z"), True)
    }
    early = sum(edge.dead_letters.counts["before-first-window"] for edge in edges)
    assert early >= len(of_doors()) - len(wanted) + 2
    world.check(world.batches())


@pytest.mark.parametrize("seconds", [3.0, 4.3, 6.1])
def test_an_edge_that_dies_goes_on_where_it_was_in_each_file(world, seconds):
    edge = world.edge("a")
    world.run(seconds)
    world.kill(edge)
    edge = world.edge("a")
    world.run(12)
    assert edge.done
    mine = [number for number, (time, door) in enumerate(of_doors()) if time > FIRST_S and int(door[1:]) % 2 == 0]
    assert Counter(row["number"] for _, row in sent(world, "doors")) == Counter(mine)
    assert Counter(row["code"] for _, row in sent(world, "alarms")) == Counter(
        number for number, (time, _) in enumerate(of_doors(10)) if time > FIRST_S
    )


def test_a_device_that_sends_events_alone_needs_no_column(world, tmp_path):
    world.table_rows.append("gate,a")
    (tmp_path / "doors.csv").write_text("time,door,number,by\n2.5,gate,1,\n3.5,s2,2,\n")
    world.cells[30][2] = ""
    world.write().place(serial=2)
    edge = world.edge("a")
    world.run(12)
    assert edge.done
    assert [(row["door"], row["by"]) for _, row in sent(world, "doors")] == [("gate", None), ("s2", None)]
    counts = {sensor: set[int]() for sensor in (0, 2, 4)}
    for _, batch in world.batches():
        for sensor, count in zip(sensors(batch.sensor).tolist(), sensors(batch.count).tolist(), strict=True):
            counts[sensor].add(count)
    assert counts == {0: {WINDOW}, 2: {WINDOW, WINDOW - 1}, 4: {WINDOW}}
    pipeline = Pipeline(
        [{"s": float(second)} for second in range(9)],
        sensors=[{"sensor": "s", "edge": "a"}, {"sensor": "gate", "edge": "a"}],
        steps={"window": 1, "slide": 1},
    )
    pipeline.query("CREATE STREAM doors (door TEXT KEY); CREATE QUERY q AS SELECT door, edge FROM doors")
    results = pipeline.events("doors", [{"time": 3, "door": "gate"}]).run(memory=True)
    assert [(row["door"], row["edge"]) for row in results.query("q")] == [("gate", "a")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"events": {"door": "doors.csv"}}, r"events: found 'door', expected a stream that is created: doors, alarms"),
        ({"repeat": True}, r"found repeat = true, expected false"),
        ({"events": {"doors": "none.csv"}}, r"none.csv: no such file"),
        ({"events": {"doors": "alarms.csv"}}, r"no column 'door', 'number', 'by', which the stream has"),
        ({"events": {"doors": "untimed.csv"}}, r"untimed.csv: found no first column 'time', expected one"),
    ],
)
def test_files_that_cannot_be_used_end_the_edge_at_its_start(world, tmp_path, change, expected):
    (tmp_path / "untimed.csv").write_text("door,number,by\ns0,1,me\n")
    if "events" in change:
        change = {"events": {name: tmp_path / path for name, path in change["events"].items()}}
    world.source |= change
    with pytest.raises(SourceError, match=expected):
        world.edge("a")


def test_a_cell_that_is_no_number_names_file_line_and_column(world, tmp_path):
    (tmp_path / "alarms.csv").write_text("time,code,weight,since,loud\n1.2,one,,,\n")
    edge = world.edge("a")
    with pytest.raises(SourceError, match=r"alarms.csv, line 2, column 'code': found 'one', expected BIGINT"):
        world.run(3, edge)


def test_a_pipeline_replays_events_with_times_of_their_own():
    rows = [{"time": f"2026-11-27T00:00:{second:02d}Z", "in": float(second)} for second in range(20)]
    events: list[dict[str, Any]] = [
        {"time": "2026-11-27T00:00:05.5Z", "lot": "a", "price": 2.5},
        {"time": "2026-11-27T00:00:06Z", "lot": None, "price": None},
        {"time": "2026-11-27T00:00:09Z", "lot": "a", "price": 7},
    ]
    pipeline = Pipeline(rows, steps={"window": 1, "slide": 1})
    pipeline.query("CREATE STREAM bids (lot TEXT, price DOUBLE)")
    pipeline.query(
        "CREATE QUERY tops AS ISTREAM (SELECT lot, MAX(price) AS top FROM bids [RANGE 4 SECONDS] GROUP BY lot)"
    )
    pipeline.query("CREATE QUERY beside AS SELECT b.lot, r.value + b.price AS sum FROM bids b, readings r")
    results = pipeline.events("bids", events).run(memory=True)
    tops = [(row.time.second, row["lot"], row["top"]) for row in results.query("tops")]
    assert tops == [(6, None, None), (6, "a", 2.5), (9, "a", 7.0)]
    assert [(row["lot"], row["sum"]) for row in results.query("beside")] == [(None, None), ("a", 8.5), ("a", 16.0)]


def test_a_pipeline_says_which_event_has_no_time():
    pipeline = Pipeline([{"in": 1.0}] * 3, steps={"window": 1, "slide": 1})
    pipeline.query("CREATE STREAM bids (lot TEXT)").events("bids", [{"time": 0, "lot": "a"}, {"lot": "b"}])
    with pytest.raises(PipelineError, match="events of bids, row 2: found no time"):
        pipeline.run(memory=True)
