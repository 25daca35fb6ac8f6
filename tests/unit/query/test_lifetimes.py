"""Changes found from lifetimes are those found by comparing instants, however steps are cut, whoever goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tsunagi.query.definitions import check, definitions_of
from tsunagi.query.readings import Readings
from tsunagi.query.relations import Rows
from tsunagi.query.running import QueryRun
from tsunagi.query.snapshots import pack, unpack
from tsunagi.runtime.sensors import Sensor, SensorTable

STEPS = 60
TABLE = SensorTable(tuple(Sensor(n, f"s{n}", f"e{n % 2}", f"g{n % 3}", threshold=1.0) for n in range(6)))
WINDOWS = (
    "",
    "[NOW]",
    "[RANGE 3 SECONDS]",
    "[RANGE 8 SECONDS]",
    "[RANGE 6 SECONDS SLIDE 2 SECONDS]",
    "[RANGE 1 SECOND]",
)
LONG = ("[RANGE 9 SECONDS SLIDE 3 SECONDS]", "[RANGE 4 SECONDS SLIDE 4 SECONDS]")


def drawn(chance: random.Random) -> str:
    """Return a query over one to three windows."""
    aliases = "abc"[: chance.choice((1, 2, 3, 3))]
    sources = ", ".join(f"readings {alias} {chance.choice(WINDOWS + LONG)}" for alias in aliases)
    conditions = [f"{other}.group = a.group" for other in aliases[1:]]
    conditions += [f"{other}.value > a.value" for other in aliases[1:] if chance.random() < 0.5]
    conditions += [f"{chance.choice(aliases)}.value > 0"] if chance.random() < 0.5 else []
    columns = ", ".join(
        f"{alias}.sensor AS s{alias}, {alias}.value AS v{alias}" for alias in aliases[: chance.choice((1, 3))]
    )
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"CREATE QUERY q AS {chance.choice(('ISTREAM', 'DSTREAM'))} (SELECT {columns} FROM {sources}{where})"


def readings_of(chance: random.Random) -> Rows:
    """Return few different values, so that equal rows come and go at once, and estimates among them."""
    there = [(step, sensor) for step in range(1, STEPS + 1) for sensor in range(6) if chance.random() < 0.5]
    value = [float(chance.randrange(-2, 3)) for _ in there]
    columns = {
        "mean": np.array(value),
        "sd": np.full(len(there), 0.5),
        "bound": np.full(len(there), 1.0),
        "quality": np.array([chance.choice((0, 1)) for _ in there], dtype=np.uint8),
    }
    step, sensor = (np.array(part, dtype=np.int64) for part in zip(*there, strict=True))
    return Readings(TABLE, 1_000_000).rows(step, sensor.astype(np.uint32), columns)


def plain(rows: Rows) -> Iterator[tuple[Any, ...]]:
    rows = rows.only_taken()
    yield from zip(rows.step.tolist(), *(column.to_list() for column in rows.columns.values()), strict=True)


@pytest.mark.parametrize("seed", range(60))
def test_changes_are_those_between_two_instants(seed: int) -> None:
    chance = random.Random(seed)
    text, readings = drawn(chance), readings_of(chance)
    program = check(definitions_of(text, "test"), 1_000_000, {})
    slow, fast = (QueryRun(program.queries["q"], program.catalog.functions) for _ in range(2))
    slow.lives = None
    assert fast.lives is not None
    wanted = list(plain(slow.advance({"readings": readings}, 0, STEPS)))
    found: list[tuple[Any, ...]] = []
    low = 0
    while low < STEPS:
        high = min(STEPS, low + chance.choice((1, 2, 7, 30)))
        found += plain(fast.advance({"readings": readings.between(low, high)}, low, high))
        low = high
        if chance.random() < 0.3:
            state = pack(fast.dump())
            fast = QueryRun(program.queries["q"], program.catalog.functions)
            fast.load(unpack(state))
    assert found == wanted, text


def test_a_longer_window_makes_no_more_pairs() -> None:
    """What is made of a row does not grow with the time for which it stays."""
    made = []
    readings = readings_of(random.Random(1))
    for length in (4, 40):
        text = (
            f"CREATE QUERY q AS ISTREAM (SELECT a.sensor, b.value FROM readings a [RANGE {length} SECONDS], readings b "
            "WHERE a.sensor = b.sensor AND a.value < b.value)"
        )
        program = check(definitions_of(text, "test"), 1_000_000, {})
        run = QueryRun(program.queries["q"], program.catalog.functions)
        single = run.advance({"readings": readings}, 0, STEPS)
        assert run.lives is not None
        made.append(len(single))
        assert sum(len(piece.end) for piece in run.lives.living.pieces) <= len(readings)
        sizes = [len(piece.end) for piece in run.lives.living.pieces]
        assert sizes == sorted(sizes, reverse=True)
    assert made[0] > 0
