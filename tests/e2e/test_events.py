"""Events of two streams in a whole system, while an owner, a secondary, an edge and the Spark driver are killed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.e2e.stream import ROWS, SENSORS, STEPS, Inputs
from tests.e2e.system import Rig
from tsunagi.broker.broker import Broker
from tsunagi.local.queries import add_queries, list_queries
from tsunagi.replay.slots import replay_slots

STATEMENTS = """
CREATE STREAM doors (door TEXT KEY, number BIGINT, weight DOUBLE, by TEXT);
CREATE STREAM people (name TEXT, town TEXT);
CREATE QUERY each AS SELECT door, number, weight, time FROM doors ORDER WITHIN door;
CREATE QUERY everybody AS SELECT name, town, time FROM people;
CREATE QUERY busy AS SELECT door, COUNT(*) AS n, SUM(weight) AS total FROM doors [RANGE 2 SECONDS]
  GROUP BY door ORDER WITHIN door;
CREATE QUERY who AS ISTREAM (SELECT d.number, d.door, p.town FROM doors d [RANGE 4 SECONDS], people p [RANGE 4 SECONDS]
  WHERE d.by = p.name)
"""
FILLED = "CREATE QUERY filled AS SELECT town, COUNT(*) AS n FROM people [RANGE 3 SECONDS SLIDE 1 SECOND] GROUP BY town"
WINDOW, PAIRED = 10, 20
"""[RANGE 2 SECONDS] and [RANGE 4 SECONDS] in steps."""


def write_events(directory: Path) -> dict[str, Path]:
    """Write events of doors, which are sensors of all edges, and of people, which are those of the first edge."""
    chance = np.random.default_rng(11)
    seconds = ROWS * STEPS.interval_s
    doors = ["time,door,number,weight,by"]
    for number, time in enumerate(np.sort(chance.uniform(0, seconds, round(20 * seconds))).tolist()):
        weight = "" if chance.random() < 0.1 else int(chance.integers(-40, 40)) / 4
        doors.append(f"{time:.6f},s{int(chance.integers(SENSORS)):02d},{number},{weight},name-{number // 12}")
    people = ["time,name,town"]
    for number, time in enumerate(np.sort(chance.uniform(0, seconds, round(2 * seconds))).tolist()):
        people.append(f"{time:.6f},name-{number},{chance.choice(['Kyoto', 'Nara', ''])}")
    paths = {"doors": directory / "doors.csv", "people": directory / "people.csv"}
    for name, lines in (("doors", doors), ("people", people)):
        paths[name].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("events")
    statements = directory / "events.sql"
    statements.write_text(STATEMENTS, encoding="utf-8")
    events = {stream: str(path) for stream, path in write_events(directory).items()}
    changes: dict[str, dict[str, Any]] = {
        "query": {"files": [str(statements)]},
        # An edge that was slow sends everything: what comes too late is in `late`.
        "source": {"events": events, "when_behind": "send"},
    }
    found = Rig(directory, inputs, servers=broker.servers, prefix="events.", changes=changes)
    try:
        found.start()
        yield found
    finally:
        found.close()


def test_no_event_is_lost_or_doubled_whoever_dies(rig: Rig) -> None:
    rig.wait_protected()
    rig.kill_owner(0)
    rig.advance()
    add_queries(rig.settings, [FILLED], lambda _line: None, "1h")
    rig.wait_protected()
    rig.signal(rig.fleet.standby_ready(1), signal.SIGKILL)
    edge = rig.inputs.table.edges[-1]
    rig.kill_edge(edge)
    rig.advance()
    rig.kill_spark()
    rig.start_spark()
    rig.edge_back(edge)
    slow = rig.inputs.table.edges[1]
    rig.signal(slow, signal.SIGSTOP)
    rig.advance()
    rig.signal(slow, signal.SIGCONT)
    rig.wait_filled("filled")
    rig.wait(lambda: frontier_of(rig) > 0, "a batch of the Spark job that was started again")
    last = frontier_of(rig)
    answers = rig.answers()
    assert [item for item in list_queries(rig.settings) if item["fault"] or item["late"]] == []

    since = {block.query: block.step for block in answers if block.definition}
    assert len(set(since.values())) == 1, "all begin with the first step, also the one that was filled"
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in since}
    for block in answers:
        rows[block.query] += [(row.step, *row.values()) for row in block.rows if row.step <= last]
    slide_us, first = STEPS.slide_us, since["each"]
    begin = rig.origin_us // slide_us + STEPS.window // STEPS.slide  # the edges' first step: that of the first window
    gone = {sensor.name for sensor in rig.inputs.table.sensors if sensor.edge == edge}
    late = late_of(rig)
    assert late, "an edge stood still"
    for stream, query, key in (("doors", "each", 2), ("people", "everybody", 1)):
        sent = sent_of(rig, stream)
        wanted = Counter(
            (-(-time // slide_us), name)
            for time, cells in sent
            if begin <= -(-time // slide_us) <= last and cells.get("door") not in gone
            if (name := cells["number" if stream == "doors" else "name"]) not in late
        )
        found = Counter((row[0], str(row[key])) for row in rows[query] if stream != "doors" or row[1] not in gone)
        assert found == wanted, f"{stream}: lost {wanted - found}, more {found - wanted}"
        assert len(wanted) > 20
    of_the_dead = Counter(row[2] for row in rows["each"] if row[1] in gone)
    assert of_the_dead
    assert set(of_the_dead.values()) == {1}

    # What the other queries give follows from these events.
    doors = [(row[0], row[1], row[2], row[3], f"name-{row[2] // 12}") for row in rows["each"]]
    people = [row[:3] for row in rows["everybody"]]
    for name, answer in wanted_of(doors, people, first, last).items():
        assert sorted(map(repr, rows[name])) == sorted(map(repr, answer)), name
        assert len(answer) > 20
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)


def frontier_of(rig: Rig) -> int:
    """Return the step up to which all groups are delivered, as the Spark job has said last; 0 = it has not yet."""
    return next(beat.message.spark.frontier for beat in rig.fleet.beats.values() if beat.message.role == "spark")


def late_of(rig: Rig) -> set[str]:
    """Return the numbers of doors and the names of people whose events came when their step had closed."""
    found: set[str] = set()
    for events in (events for batch in rig.late() for events in batch.events):
        (column,) = (column for column in events.column if column.name in ("number", "name"))
        numbers = np.frombuffer(column.value, "<u4" if column.kind == "TEXT" else "<i8").tolist()
        found.update(column.text[number] if column.kind == "TEXT" else str(number) for number in numbers)
    return found


def sent_of(rig: Rig, stream: str) -> list[tuple[int, dict[str, str]]]:
    """Return (event time, cells) of each event of a file."""
    header, *lines = Path(rig.settings.source.events[stream]).read_text(encoding="utf-8").splitlines()
    names = header.split(",")
    cells = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    return [(rig.origin_us + round(float(row["time"]) * 1e6), row) for row in cells]


def wanted_of(
    doors: list[tuple[Any, ...]], people: list[tuple[Any, ...]], first: int, last: int
) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a database answers at every instant."""
    base = duckdb.connect()
    base.execute("CREATE TABLE doors (step BIGINT, door TEXT, number BIGINT, weight DOUBLE, who TEXT)")
    base.execute("CREATE TABLE people (step BIGINT, name TEXT, town TEXT)")
    base.executemany("INSERT INTO doors VALUES (?, ?, ?, ?, ?)", doors)
    base.executemany("INSERT INTO people VALUES (?, ?, ?)", people)
    instants = f"(SELECT unnest(range({first} + 1, {last} + 1)) AS t) i"
    return {
        "busy": base.execute(
            f"SELECT i.t, d.door, count(*), sum(d.weight) FROM {instants} "
            f"JOIN doors d ON d.step > i.t - {WINDOW} AND d.step <= i.t GROUP BY ALL"
        ).fetchall(),
        "who": base.execute(
            "SELECT greatest(d.step, p.step), d.number, d.door, p.town FROM doors d JOIN people p ON d.who = p.name "
            f"WHERE abs(d.step - p.step) < {PAIRED}"
        ).fetchall(),
        "filled": base.execute(
            f"SELECT i.t, p.town, count(*) FROM {instants} JOIN people p ON p.step > i.t - 15 AND p.step <= i.t "
            "WHERE i.t % 5 = 0 GROUP BY ALL"
        ).fetchall(),
    }
