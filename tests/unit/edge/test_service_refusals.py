"""Input that an edge cannot use, and errors that end it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.edge.worlds import ROWS, SLIDE, SLOTS, WINDOW
from tsunagi.edge.source import SourceError
from tsunagi.edge.spool import SpooledRecord
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.log import PLAN, LogError
from tsunagi.runtime.messages import (
    VERSION,
    Plan,
    System,
)
from tsunagi.runtime.sensors import SensorsError
from tsunagi.runtime.settings import ConfigError


def test_readings_that_cannot_be_used_are_counted_and_shown(make):
    world = make()
    world.columns = "sensor,edge,min,max"
    world.table_rows = [f"{row},0,100" for row in world.table_rows]
    world.cells[20][0] = "nan"
    world.cells[21][2] = "1000"
    world.cells[22][4] = ""
    world.header.append("new")
    for number, row in enumerate(world.cells):
        row.append(str(number) if number >= 30 else "")
    world.write().place()
    edge = world.edge("a")
    world.run(12)
    assert edge.done
    assert dict(edge.dead_letters.counts) == {
        "before-first-window": 3,  # the first row's, at the very time at which the first window begins
        "not-a-number": 1,
        "out-of-range": 1,
        "unknown-sensor": 30,
    }
    letters = world.letters()
    assert [(letter.reason, letter.offset, letter.key) for letter in letters] == [
        ("not-a-number", 20, b"a/20/s0"),
        ("out-of-range", 21, b"a/21/s2"),
        ("unknown-sensor", 30, b"a/30/new"),
    ]
    assert "found 1000.0, expected 0.0 to 100.0" in letters[1].detail
    counts = Counter(count for _, batch in world.batches() for count in sensors(batch.count).tolist())
    assert counts[WINDOW - 1] == 3 * WINDOW // SLIDE


def test_dead_letters_come_at_a_bounded_rate_and_all_are_counted(make):
    world = make()
    world.cells = [["nan"] * 6 for _ in range(ROWS)]
    world.write().place()
    edge = world.edge("a")
    world.run(12)
    assert edge.dead_letters.counts["not-a-number"] == 3 * ROWS
    assert 100 <= len(world.letters()) < 3 * ROWS
    assert len(world.letters()) + edge.dead_letters.unwritten == 3 * ROWS
    batches = world.batches()
    assert len(batches) == SLOTS * 25  # without a value, but there
    assert {batch.sensor for _, batch in batches} == {b""}


def test_a_table_that_contradicts_the_placement_is_refused(make):
    world = make().write()
    world.place()
    world.table_rows[1] = "other,b"
    world.header[1] = "other"
    world.write()
    edge = world.edge("a")
    with pytest.raises(SensorsError, match="contradicts the placement 1"):
        edge.step()


def test_an_unreadable_plan_is_passed_over(make):
    world = make().write()
    world.log.append(PLAN, 0, b"placement", b"\xff\xff")
    world.log.append(PLAN, 0, b"placement", Plan(version=9).SerializeToString())
    world.log.append(PLAN, 0, b"assignment/0", b"\xff")
    world.place()
    edge = world.edge("a")
    edge.step()
    assert edge.ready() == (True, "")


def test_an_edge_that_the_table_does_not_know_is_refused(make):
    edge = make().write().edge("z")
    with pytest.raises(SensorsError, match="no sensor of edge 'z'; found the edges a, b"):
        edge.step()


def test_a_position_in_another_file_or_replay_is_refused(make):
    world = make().write()
    world.place()
    first = world.edge("a")
    world.run(5)
    world.kill(first)
    (world.path / "run" / "origin").write_text("5\n")
    edge = world.edge("a")
    with pytest.raises(SourceError, match="it belongs to a replay that began at"):
        edge.step()
    world.header.append("more")
    for row in world.cells:
        row.append("1")
    world.write()
    with pytest.raises(SourceError, match=r"position in 'data\.csv' with another header"):
        world.edge("a")


def test_malformed_rows_stop_the_edge_by_name(make):
    world = make()
    world.cells[30][2] = "broken"
    world.write().place()
    edge = world.edge("a")
    with pytest.raises(SourceError, match="line 32, column 's2': found 'broken', expected a number"):
        world.run(12)
    assert edge.publisher.last_step is not None


def test_a_delivery_that_fails_for_good_stops_the_edge(make):
    world = make().write()
    world.place()
    edge = world.edge("a")
    world.run(4)
    edge.publisher._heard(SpooledRecord(0, b"", 0.0), LogError("fenced"), -1)
    with pytest.raises(LogError, match="fenced"):
        edge.step()


@pytest.mark.parametrize("kept", ["", "mine", "another"])
def test_an_edge_of_one_system_does_not_publish_to_anothers_log(make, kept):
    ids = {"mine": "0a929205-ac9d-4cbe-85f1-3af74795f7f9", "another": "75f2fedc-26b4-4e09-8c58-71ed484c64e3"}
    world = make().write()
    for whose in ("mine", "another"):  # the first word counts
        plan = Plan(version=VERSION, system=System(id=ids[whose]))
        world.log.append(PLAN, 0, f"system/{ids[whose]}".encode(), plan.SerializeToString())
    world.place()
    if kept:
        (world.path / "run").mkdir()
        (world.path / "run" / "system").write_text(ids[kept])
    edge = world.edge()
    if kept == "another":
        with pytest.raises(ConfigError, match=rf"is of another system: {ids['mine']}"):
            world.run(1.0, edge)
        assert not world.batches()
    else:
        world.run(10.0, edge)
        assert world.batches()
