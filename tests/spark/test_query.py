"""Queries in CQL in the job as a process: they survive kills, and are added, replaced and dropped while it runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.answers import Truth, plain
from tests.spark.driver import wait_until
from tests.spark.test_job import Place, shuffled
from tests.spark.world import FIRST_STEP, expected_blocks, write_placement, write_records
from tsunagi.broker.broker import Broker
from tsunagi.local.queries import add_queries, drop_query, list_queries
from tsunagi.query.results import QueryBlock, QueryResults, QueryRow
from tsunagi.runtime.log import RESULTS
from tsunagi.system.topics import read_partition

Q3 = """
CREATE VIEW q1 AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE 12 SECONDS] GROUP BY sensor;
CREATE VIEW q2 AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE 12 SECONDS] WHERE value > threshold GROUP BY sensor;
CREATE QUERY q3 AS SELECT r.sensor, r.group, r.value, q1.n AS q1, COALESCE(q2.n, 0) AS q2,
    COALESCE(q2.n, 0) / q1.n AS q3
  FROM readings r JOIN q1 ON q1.sensor = r.sensor LEFT JOIN q2 ON q2.sensor = r.sensor ORDER WITHIN group;
"""
LINES = """
CREATE QUERY lines AS ISTREAM (SELECT l.role, COUNT(*) AS n, SUM(l.value) AS total, MAX(r.value) AS top
  FROM readings l [RANGE 20 SECONDS SLIDE 4 SECONDS], readings r [NOW] WHERE l.edge = r.edge AND r.value > 1
  GROUP BY l.role)
"""
PAST = """
CREATE QUERY past AS SELECT r.sensor, r.value - g.mean AS off FROM readings r, groups g WHERE r.group = g.group;
CREATE VIEW groups AS SELECT group, AVG(value) AS mean FROM readings [RANGE 10 SECONDS] GROUP BY group
"""
MEANS = "CREATE QUERY means AS SELECT edge, AVG(value) AS mean FROM readings [RANGE 8 SECONDS] GROUP BY edge"


@pytest.fixture
def make_place(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(prefix: str, queries: str, form: str = "blocks") -> Place:
        place = Place(broker, tmp_path / prefix, prefix, form)
        made.append(place)
        table = place.directory / "sensors.csv"
        lines = table.read_text(encoding="utf-8").splitlines()
        roles = ["role", *("in" if number % 2 else "out" for number in range(len(lines) - 1))]
        table.write_text("\n".join(f"{line},{role}" for line, role in zip(lines, roles, strict=True)) + "\n")
        written = place.directory / "plant.sql"
        written.write_text(queries, encoding="utf-8")
        text = place.config.read_text(encoding="utf-8")
        place.config.write_text(text.replace("[query]", f'[query]\nfiles = ["{written}"]'), encoding="utf-8")
        place.reload()
        return place

    yield make
    for place in made:
        place.close()


class Watch:
    """A reader of queries that stays on while drivers come and go."""

    def __init__(self, place: Place) -> None:
        self.results = QueryResults(place.log, place.settings)
        place.readers.append(self.results)
        self.blocks: list[QueryBlock] = []

    def reached(self, query: str, step: int) -> bool:
        self.blocks += self.results.poll(0.05)
        return any(block.query == query and block.step >= step for block in self.blocks)

    def rows(self, query: str) -> list[QueryRow]:
        return [row for block in self.blocks if block.query == query for row in block.rows]

    def since(self, query: str) -> list[int]:
        """Return the steps behind which the query began, in the order of its definitions."""
        return [block.step for block in self.blocks if block.query == query and block.definition not in ("", "-")]


def test_queries_survive_kills_and_come_and_go(make_place: Callable[..., Place]) -> None:
    """First all queries run on the P-SORT cores, then one needs all rows in one place, and then none does again."""
    place = make_place("queries", Q3)
    world, choice = place.world, random.Random(5)
    write_placement(place.log, world)
    watch = Watch(place)

    def write(first: int, last: int) -> None:
        runs = {slot: [world.record(slot, FIRST_STEP + step) for step in range(first, last)] for slot in range(2)}
        write_records(place.log, shuffled(choice, runs))

    write(0, 40)
    driver = place.drive(TSUNAGI_SPARK__MAX_OFFSETS="16")
    wait_until(lambda: watch.reached("q3", FIRST_STEP + 5), "first rows of q3")
    driver.kill()

    add_queries(place.settings, [LINES, MEANS], lambda _line: None)
    begin_us = (FIRST_STEP + 10) * world.settings.steps.slide_us
    add_queries(place.settings, [PAST], lambda _line: None, str(begin_us / 1e6))
    write(40, 60)
    driver = place.drive(TSUNAGI_SPARK__MAX_OFFSETS="16")
    wait_until(lambda: watch.reached("means", FIRST_STEP + 45), "rows of the query that was added")
    wait_until(lambda: watch.reached("past", FIRST_STEP + 12), "rows of the query that is filled")
    driver.kill()
    for name in ("offsets", "commits"):  # as after a power cut
        for path in (place.settings.spark.checkpoint / name).glob("[0-9]*"):
            path.write_bytes(b"")

    changed = MEANS.replace("AVG(value)", "MIN(value)")
    add_queries(place.settings, [changed], lambda _line: None)
    write(60, 75)
    driver = place.drive()
    wait_until(lambda: watch.reached("means", FIRST_STEP + 74), "rows after the second kill")
    # A batch that was planned before the kill runs with the statements of then, and statements need a batch to come in.
    ahead = iter(range(75, 1000))
    last_step = [75]

    def is_replaced() -> bool:
        if len(watch.since("means")) < 2:
            last_step[0] = next(ahead) + 1
            write(last_step[0] - 1, last_step[0])
        watch.reached("means", 0)
        return len(watch.since("means")) == 2

    wait_until(is_replaced, "the query that replaces the other one")
    since_us = watch.since("means")[1] * world.settings.steps.slide_us
    listed: dict[str, dict[str, Any]] = {}

    def is_told() -> bool:  # heartbeats come a little later than rows
        listed.update({item["query"]: item for item in list_queries(place.settings)})
        return {item["state"] for item in listed.values()} == {"runs"} and listed["means"]["since_us"] == since_us

    wait_until(is_told, "heartbeats that tell of all queries")
    assert set(listed) == {"q1", "q2", "q3", "lines", "means", "past", "groups"}
    for name in ("means", "lines", "past"):
        drop_query(place.settings, name, lambda _line: None)
    write(last_step[0], last_step[0] + 5)
    last = FIRST_STEP + last_step[0] + 4
    wait_until(lambda: watch.reached("q3", last), "rows after the drop")
    assert driver.stop() == 0
    watch.reached("q3", 0)

    expected = {
        (step, *(row[column] for column in (0, 1, 5, 6, 7)))
        for (_, step), rows in expected_blocks(world, last).items()
        for row in rows
    }
    names = [sensor.name for sensor in world.table.sensors]
    q3 = watch.rows("q3")
    assert watch.rows("lines")
    found = [(row.step, names.index(str(row["sensor"])), row["value"], row["q1"], row["q2"], row["q3"]) for row in q3]
    assert len(found) == len(expected)
    assert set(found) == expected
    for group in set(world.groups):
        order = [row.step for row in q3 if row.group == group]
        assert order == sorted(order)

    truth = Truth.of_world(world)
    begin = watch.since("q3")[0]
    assert begin == FIRST_STEP - 1
    ended = {block.query: block.step for block in watch.blocks if block.definition == "-"}
    (begin,) = watch.since("lines")
    assert [plain(row) for row in watch.rows("lines")] == truth.answers(LINES, "lines", begin, ended["lines"])
    assert watch.since("past") == [FIRST_STEP + 9]
    past = truth.answers(PAST, "past", FIRST_STEP + 9, ended["past"])
    assert [plain(row) for row in watch.rows("past")] == past
    first, second = watch.since("means")
    means = truth.answers(MEANS, "means", first, second) + truth.answers(changed, "means", second, ended["means"])
    assert [plain(row) for row in watch.rows("means")] == means
    assert sum(item["late"] for item in listed.values()) == 0


def test_rows_in_json_say_the_same_and_stand_alone(make_place: Callable[..., Place]) -> None:
    place = make_place("queries-json", LINES, form="json")
    world = place.world
    write_placement(place.log, world)
    watch = Watch(place)
    write_records(
        place.log, [(slot, *world.record(slot, FIRST_STEP + step)) for step in range(30) for slot in range(2)]
    )
    driver = place.drive(TSUNAGI_RESULTS__READINGS="false")
    wait_until(lambda: watch.reached("lines", FIRST_STEP + 28), "rows")
    assert driver.stop() == 0
    records = (read_partition(place.log, RESULTS, number) for number in range(place.log.partitions(RESULTS)))
    assert {json.loads(record.value or b"")["query"] for part in records for record in part} == {"lines"}
    watch.reached("lines", 0)
    begin = watch.since("lines")[0]
    wanted = Truth.of_world(world).answers(LINES, "lines", begin, FIRST_STEP + 29)
    assert [plain(row) for row in watch.rows("lines")] == wanted
    assert watch.results.unreadable_count == 0
