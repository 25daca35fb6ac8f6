"""Cores that change while the job runs: nothing lost, doubled or out of order, over kills and checkpoints, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spark.driver import Driver, wait_until
from tests.spark.test_job import Audience, Place, check_rows
from tests.spark.world import FIRST_STEP, World, write_placement, write_records
from tsunagi.broker.broker import Broker
from tsunagi.runtime.log import RESULTS
from tsunagi_spark.layout import Layout

HOT = 48
"""Of the first group's sensors; the other groups have some more each."""


@pytest.fixture
def make_place(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(prefix: str, **arguments: object) -> Place:
        made.append(Place(broker, tmp_path / prefix, prefix, **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for place in made:
        place.close()


def write(place: Place, first: int, last: int, *, quiet: frozenset[int] = frozenset()) -> None:
    """Write steps; sensors of the groups `quiet` give nothing."""
    world: World = place.world
    silent = {sensor.id for sensor in world.table.sensors if int(sensor.group.rsplit("-", 1)[1]) in quiet}
    for step in range(FIRST_STEP + first, FIRST_STEP + last):
        write_records(place.log, [(slot, *world.record(slot, step, silent=silent)) for slot in range(2)])


def layouts(place: Place) -> list[Layout]:
    files = (place.settings.spark.checkpoint / "tsunagi" / "layouts").glob("[0-9]*")
    return [Layout.load(file.read_bytes()) for file in sorted(files, key=lambda file: int(file.name))]


def events(place: Place, word: str) -> int:
    return place.directory.joinpath("driver.log").read_text(encoding="utf-8").count(word)


def test_cores_change_by_measured_rates_over_kills_and_checkpoints(make_place: Callable[..., Place]) -> None:
    place = make_place("moves", sensors=24, groups=4)
    write_placement(place.log, place.world)
    audience = Audience(place)
    options = {"TSUNAGI_SPARK__REBALANCE_S": "1", "TSUNAGI_SPARK__MAX_OFFSETS": "24", "TSUNAGI_SPARK__ORDER": "basic"}
    step = 0

    def goes_on(driver: Driver, quiet: set[int], until: Callable[[], bool], what: str) -> None:
        def moved() -> bool:
            nonlocal step
            assert driver.process.poll() is None
            if step == 0 or audience.reached(FIRST_STEP + step - 16):  # not more than a batch ahead of the job
                write(place, step, step + 4, quiet=frozenset(quiet))
                step += 4
            return audience.reached(FIRST_STEP) and until()

        wait_until(moved, what)  # rates are measured over batches: as many as the machine makes in that time

    def done(driver: Driver) -> None:
        wait_until(lambda: audience.reached(FIRST_STEP + step - 1), "everything")
        assert driver.process.poll() is None

    driver = place.drive(**options)
    goes_on(driver, set(), lambda: True, "first results")
    before = layouts(place)[-1]
    one = {int(group) for group in np.flatnonzero(before.holds[:, 0])}
    other = min(one)
    goes_on(driver, {0, 1, 2, 3} - one, lambda: len(layouts(place)) > 1, "another table")
    after = layouts(place)[-1]
    assert len({int(core) for core in np.flatnonzero(after.holds[sorted(one)].any(axis=0))}) == 2
    assert np.array_equal(after.home, before.home)
    driver.kill()
    older = place.directory / "older"
    shutil.copytree(place.settings.spark.checkpoint, older)

    driver = place.drive(**options)
    serial = after.serial
    goes_on(driver, {other}, lambda: layouts(place)[-1].serial > serial, "a third table")
    done(driver)
    driver.kill()
    shutil.rmtree(place.settings.spark.checkpoint)
    shutil.copytree(older, place.settings.spark.checkpoint)
    driver = place.drive(**options | {"TSUNAGI_SPARK__ORDER": "auto"})
    write(place, step, step + 8)
    step += 8
    done(driver)
    assert driver.stop() == 0
    check_rows(place.world, audience.blocks, FIRST_STEP + step - 1)

    shutil.rmtree(place.settings.spark.checkpoint)
    known = {record.key for record in place.read_all(RESULTS)}
    length = len(place.read_all(RESULTS))
    driver = place.drive(TSUNAGI_SPARK__ORDER="optimised")
    wait_until(lambda: len(place.read_all(RESULTS)) >= length + len(known), "everything sent again")
    assert driver.stop() == 0
    audience.steps()
    check_rows(place.world, audience.blocks, FIRST_STEP + step - 1)
    values: dict[bytes | None, set[tuple[int, bytes | None]]] = {}
    for record in place.read_all(RESULTS):
        values.setdefault(record.key, set()).add((record.partition, record.value))
    assert values.keys() == known
    assert all(len(found) == 1 for found in values.values()), "a name was sent with other bytes or in two partitions"


@pytest.mark.parametrize("order", ["optimised", "full", "none"])
def test_orders(make_place: Callable[..., Place], order: str) -> None:
    place = make_place(f"order-{order}", sensors=24, groups=1 if order == "optimised" else 4)
    write_placement(place.log, place.world)
    write(place, 0, 20)
    audience = Audience(place)
    setting = "TSUNAGI_SPARK__ORDER" if order == "optimised" else "TSUNAGI_PAPER__ORDER"
    driver = place.drive(**{setting: order}, TSUNAGI_SPARK__MAX_OFFSETS="12")
    count = len(set(place.world.groups)) * 20 * (2 if order == "none" else 1)
    wait_until(lambda: bool(audience.steps()) and len(audience.blocks) >= count, "all results")
    driver.kill()
    write(place, 20, 30)
    driver = place.drive(**{setting: order})
    wait_until(lambda: bool(audience.steps()) and len(audience.blocks) >= count * 3 // 2, "all results")
    assert driver.stop() == 0
    if order == "none":
        assert {(block.part, block.parts) for block in audience.blocks} == {(1, 2), (2, 2)}
        assert len({(block.group, block.step, block.part) for block in audience.blocks}) == len(audience.blocks)
        assert sum(len(block) for block in audience.blocks) == len(place.world.rows)
    else:
        check_rows(place.world, audience.blocks, FIRST_STEP + 29)
    if order == "full":
        assert {block.partition for block in audience.blocks} == {0}
        steps = [block.step for block in audience.blocks]
        assert steps == sorted(steps), "one stream in the order of time"
    refused = place.drive(TSUNAGI_PAPER__ORDER="none" if order == "full" else "full")
    write(place, 30, 31)
    assert refused.process.wait(60) != 0
    assert "the change needs an empty checkpoint" in refused.log.read_text()
    lines = [json.loads(line) for line in refused.log.read_text().splitlines() if '"event": "order chosen"' in line]
    assert lines
    assert {"process_us", "merge_us", "max_load", "merged_share", "speed_up"} <= lines[0].keys()
