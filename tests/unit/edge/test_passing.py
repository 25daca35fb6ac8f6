"""An edge of a query without lock-step: each reading is passed on as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.edge.worlds import INTERVAL_S, ROWS, FileWorld, made
from tsunagi.edge.passing import Passing
from tsunagi.edge.source import SourceRow
from tsunagi.edge.window import NOT_A_NUMBER, OUT_OF_RANGE
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.sensors import Sensor
from tsunagi.runtime.settings import Settings

OWN = (Sensor(3, "a", "e", minimum=0.0), Sensor(7, "b", "e"))


def row(number: int, time_us: int, *readings: tuple[int, float]) -> SourceRow:
    places, values = zip(*readings, strict=True)
    return SourceRow(number, time_us, np.array(places), np.array(values))


def test_a_number_is_the_time_and_counts_up_where_that_does_not() -> None:
    passing = Passing(OWN, last=None)
    numbers = []
    for number, time_us in enumerate([1000, 1000, 990, 1005, 2000]):
        passed, rejected = passing.take(row(number, time_us, (0, 1.0)), 5)
        assert passed is not None
        assert rejected == []
        assert passed.event_time_us == time_us + 5
        numbers.append(passed.rows.step)
    assert numbers == [1005, 1006, 1007, 1010, 2005]
    again, _ = Passing(OWN, last=2005).take(row(0, 1500, (1, 1.0)), 0)
    assert again is not None
    assert again.rows.step == 2006


def test_what_cannot_be_is_set_aside_and_the_rest_goes_on() -> None:
    passed, rejected = Passing(OWN).take(row(0, 10, (1, 4.0), (0, -1.0)), 0)
    assert passed is not None
    assert (passed.rows.sensors.tolist(), passed.rows.values.tolist()) == ([7], [4.0])
    assert [(item.reason, item.place) for item in rejected] == [(OUT_OF_RANGE, 0)]
    passed, rejected = Passing(OWN).take(row(0, 10, (0, np.nan)), 0)
    assert passed is None
    assert [item.reason for item in rejected] == [NOT_A_NUMBER]


class Stream(FileWorld):
    """An edge's world without steps."""

    @property
    def settings(self) -> Settings:
        return Settings(
            **super().settings.model_dump(exclude={"query"}),
            query={"mode": "tuples", "operators": ({"use": "select"},)},
        )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    yield from made(Stream, tmp_path)


def rows_sent(world: Stream) -> dict[tuple[int, int], float]:
    """(row of the CSV, sensor) -> value, of all that stands in the log."""
    found: dict[tuple[int, int], float] = {}
    for _, batch in world.batches():
        number = round((batch.event_time_us - world.origin_us()) / (INTERVAL_S * 1e6))
        for sensor, value in zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True):
            assert (number, sensor) not in found
            found[number, sensor] = value
    return found


def test_every_reading_is_published_once_at_its_time(make) -> None:
    world = make().write()
    world.place()
    edge = world.edge("a")
    for _ in range(200):
        world.run(0.05)
        assert all(batch.event_time_us <= world.clock.now_us() for _, batch in world.batches())
    assert edge.done
    expected = {(number, sensor): world.values[number, sensor] for number in range(ROWS) for sensor in (0, 2, 4)}
    assert rows_sent(world) == expected
    assert all(len(batch.sensor) > 0 for _, batch in world.batches())
    assert world.letters() == []


def test_a_killed_edge_goes_on_behind_what_it_has_sent(make) -> None:
    world = make(when_behind="send").write()
    world.place()
    world.run(4.0, edge := world.edge("a"))
    world.kill(edge)
    world.run(1.0)
    world.run(9.0, world.edge("a"))
    found = rows_sent(world)
    assert set(found) == {(number, sensor) for number in range(ROWS) for sensor in (0, 2, 4)}
    steps = [batch.step for slot, batch in world.batches() if slot == 0]
    assert steps == sorted(set(steps))
