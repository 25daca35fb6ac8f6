"""Tests that `[query] at_edge` leaves out events and columns that no query uses, and changes no query's result."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.edge.test_events import say, sent
from tests.unit.edge.worlds import SLIDE_US, START_US, LiveWorld
from tsunagi.edge.needed_events import NeededEvents
from tsunagi.edge.tuple_form import streams_of
from tsunagi.query.definitions import definitions_of, program_of
from tsunagi.query.events import as_created, event_streams
from tsunagi.query.form import Cells
from tsunagi.query.relations import Rows
from tsunagi.query.running import Queries
from tsunagi.query.values import column
from tsunagi.runtime.log import PLAN
from tsunagi.runtime.messages import VERSION, Plan, QueryChange

STATEMENTS = """
CREATE STREAM doors (door TEXT KEY, open BOOLEAN, by TEXT, weight DOUBLE, note TEXT);
CREATE STREAM alarms (code BIGINT, text TEXT);
CREATE VIEW heavy AS SELECT by, COUNT(*) AS n FROM doors [RANGE 2 SECONDS] WHERE weight > 5 AND NOT open GROUP BY by;
CREATE QUERY a AS SELECT h.by, h.n FROM heavy h WHERE h.n > 1;
CREATE QUERY b AS SELECT d.by, a.code FROM doors d [RANGE 2 SECONDS], alarms a [RANGE 2 SECONDS]
  WHERE d.weight > 8 AND a.code = 7 AND d.by = a.text;
"""
MORE = "CREATE QUERY more AS SELECT door, note FROM doors [PARTITION BY by ROWS 2] WHERE weight > 1"


def changed(world: LiveWorld, name: str, text: str, serial: int) -> None:
    plan = Plan(version=VERSION, serial=serial, query=QueryChange(name=name, text=text))
    world.log.append(PLAN, 0, f"query/{name}".encode(), plan.SerializeToString())


def test_what_no_query_uses_is_not_sent(tmp_path):
    world = LiveWorld(tmp_path, STATEMENTS)
    world.settings = world.settings.model_copy(
        update={"query": world.settings.query.model_copy(update={"at_edge": True})}
    )
    edge = world.edge()
    world.run(edge, 2)

    def tell() -> None:
        now_us = world.clock.now_us()
        for number in range(10):
            say(world, "doors", now_us, door="s0", open=number % 2 == 0, by="me", weight=number, note="x")
            say(world, "alarms", now_us, code=number, text="me")
        world.run(edge, 2)

    tell()
    doors = [row for _, row in sent(world, "doors")]
    assert [row["weight"] for row in doors] == [7.0, 9.0], "9 by both, 7 by one"
    assert set(doors[0]) == {"time", "door", "open", "by", "weight"}
    assert [row["code"] for _, row in sent(world, "alarms")] == [7]
    assert edge._sensing.needed_events is not None
    assert edge._sensing.needed_events.dropped == 8 + 9

    changed(world, "more", MORE, 2)
    world.run(edge, 1)
    tell()
    doors = [row for _, row in sent(world, "doors")][2:]
    assert len(doors) == 10, "behind [ROWS n] WHERE says nothing of single events"
    assert set(doors[0]) == {"time", "door", "open", "by", "weight", "note"}
    changed(world, "more", "", 3)
    changed(world, "odd", "CREATE NONSENSE", 4)
    world.run(edge, 1)
    tell()
    assert len(sent(world, "doors")) == 2 + 10 + 10, "what cannot be read here may need anything"
    edge.close()


def test_results_are_the_same_with_what_is_left(tmp_path: Path) -> None:
    chance = random.Random(1)
    text = STATEMENTS + "; CREATE QUERY c AS SELECT door, MAX(weight) AS top FROM doors [RANGE 1 SECOND] GROUP BY door"
    for statements in (STATEMENTS, text, f"{STATEMENTS}; {MORE}"):
        definitions = definitions_of(statements, "test")
        program = program_of(definitions, SLIDE_US, {})[0]
        streams = event_streams(definitions)
        needed = made(tmp_path, statements)
        answers: list[list[Any]] = []
        events: dict[str, list[Cells]] = {
            "doors": [
                {
                    "time": START_US + chance.randrange(4_000_000),
                    "door": f"s{chance.randrange(3)}",
                    "open": chance.choice((True, False, None)),
                    "by": chance.choice(("me", "you", None)),
                    "weight": chance.choice((None, *range(12))),
                    "note": "x",
                }
                for _ in range(300)
            ],
            "alarms": [
                {"time": START_US + chance.randrange(4_000_000), "code": chance.randrange(6, 9), "text": "me"}
                for _ in range(60)
            ],
        }
        for chosen in (False, True):
            given = {}
            for name, rows in events.items():
                mine = sorted(rows, key=lambda row: row["time"])
                kinds = needed.kinds[name] if chosen else streams[name].own
                mine = list(needed.choose(name, mine)) if chosen else mine
                step = np.array([-(-row["time"] // SLIDE_US) for row in mine], dtype=np.int64)
                columns = {column_: column(kind, [row.get(column_) for row in mine]) for column_, kind in kinds.items()}
                given[name] = as_created(Rows(step, columns), program.catalog.streams[name].columns)
            queries = Queries(program)
            first = START_US // SLIDE_US - 1
            found = queries.advance(given, first, first + 30)
            assert not queries.faults
            answers.append(
                [
                    (name, rows.step.tolist(), [item.to_list() for item in rows.columns.values()])
                    for name, rows in found.items()
                ]
            )
        assert answers[0] == answers[1]
        assert any(len(steps) for _, steps, _ in answers[0])
        assert needed.dropped > 0


def made(directory: Path, statements: str) -> NeededEvents:
    """Return what chooses events for statements."""
    world = LiveWorld(directory, statements)
    return NeededEvents(world.settings, streams_of(world.settings), world.table)
