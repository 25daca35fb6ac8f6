"""The job as a process on a real broker: produce, disturb, validate."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.spark.driver import Driver, wait_until
from tests.spark.world import (
    FIRST_STEP,
    GENERATION,
    World,
    expected_blocks,
    write_placement,
    write_records,
    write_table,
)
from tsunagi.broker.broker import Broker
from tsunagi.query.results import QueryResults
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import ACKS, DEAD_LETTERS, LATE, RECOVERED, RESULTS, Record
from tsunagi.runtime.messages import Ack, DeadLetter, Late
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.results import Block, ResultsReader
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings, load
from tsunagi.system.topics import read_topic

CONFIG = """
state = "{directory}/state"
sensors = "{directory}/sensors.csv"
[kafka]
servers = "{servers}"
prefix = "{prefix}."
[slots]
count = 2
[steps]
interval_s = 0.5
[query]
range_s = 12.0
[spark]
checkpoint = "{directory}/checkpoint"
wait_s = 1.0
[results]
format = "{form}"
"""


class Place:
    """Topics of their own, a configuration and a world."""

    def __init__(
        self, broker: Broker, directory: Path, prefix: str, form: str = "blocks", sensors: int = 13, groups: int = 4
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "tsunagi.toml"
        text = CONFIG.format(directory=directory, servers=broker.servers, prefix=prefix, form=form)
        self.config.write_text(text, encoding="utf-8")
        write_table(directory / "sensors.csv", sensors=sensors, groups=groups)
        self.directory = directory
        self.reload()
        self.log = KafkaLog(self.settings.kafka)
        self.log.ensure_topics(self.settings)
        self.drivers: list[Driver] = []
        self.readers: list[ResultsReader | QueryResults] = []

    def reload(self) -> None:
        """Read the configuration and the sensors table again, after a test has changed them."""
        self.settings: Settings = load(self.config)
        self.world = World(self.settings, read_sensors(self.settings.sensors), seed=7)

    def drive(self, **environment: str) -> Driver:
        driver = Driver(self.config, self.directory / "driver.log", **environment)
        self.drivers.append(driver)
        return driver

    def read_all(self, topic: str) -> list[Record]:
        """Return everything that stands in a topic."""
        return [record for records in read_topic(self.log, topic).values() for record in records]

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        for reader in self.readers:
            reader.close()


@pytest.fixture
def make_place(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(prefix: str, form: str = "blocks") -> Place:
        made.append(Place(broker, tmp_path / prefix, prefix, form))
        return made[-1]

    yield make
    for place in made:
        place.close()


class Audience:
    """A reader that stays on while drivers come and go."""

    def __init__(self, place: Place) -> None:
        self.results = ResultsReader(place.log, place.settings)
        place.readers.append(self.results)
        self.blocks: list[Block] = []

    def steps(self) -> dict[str, int]:
        """Return the last step seen of each group."""
        self.blocks += self.results.poll(0.05)
        return {block.group: block.step for block in self.blocks}

    def reached(self, step: int) -> bool:
        steps = self.steps()
        return len(steps) == 4 and min(steps.values()) >= step


def check_rows(world: World, blocks: list[Block], last_step: int) -> None:
    """Nothing lost, invented, doubled or out of order, every value and count as recomputed."""
    expected = expected_blocks(world, last_step)
    last: dict[str, int] = {}
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for block in blocks:
        if (block.group, block.step) in found:
            pytest.fail(f"{block.group}/{block.step} came twice")
        assert block.step > last.get(block.group, -1)
        last[block.group] = block.step
        assert np.all(np.diff(block.sensor.astype(np.int64)) > 0)
        columns = (block.sensor, block.mean, block.sd, block.quality, block.bound, block.q1, block.q2, block.q3)
        found[block.group, block.step] = [tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    assert found == expected


def shuffled(choice: random.Random, runs: dict[int, list[tuple[bytes, bytes]]]) -> list[tuple[int, bytes, bytes]]:
    """Interleave the slots' records, each slot's in order, with repeats of what was written a little before."""
    place = dict.fromkeys(runs, 0)
    records = []
    while any(place[slot] < len(run) for slot, run in runs.items()):
        slot = choice.choice([slot for slot, run in runs.items() if place[slot] < len(run)])
        first = max(0, place[slot] - choice.choice([0, 0, 0, 2, 4]))
        last = min(len(runs[slot]), place[slot] + choice.randint(1, 6))
        records += [(slot, key, value) for key, value in runs[slot][first:last]]
        place[slot] = last
    return records


def test_rows_survive_two_kills_and_an_emptied_checkpoint(make_place: Callable[..., Place]) -> None:
    place = make_place("kills")
    world, choice = place.world, random.Random(3)
    write_placement(place.log, world)
    audience = Audience(place)

    def write(first: int, last: int) -> None:
        runs = {slot: [world.record(slot, FIRST_STEP + step) for step in range(first, last)] for slot in range(2)}
        write_records(place.log, shuffled(choice, runs))

    write(0, 40)
    bad = pack_key(GENERATION, 1, Name(10**9, 0))
    write_records(place.log, [(1, bad, b"\xff\xff no record"), (0, b"no name", b"")])
    driver = place.drive(TSUNAGI_SPARK__MAX_OFFSETS="60", TSUNAGI_SPARK__MAX_BYTES="4000")
    wait_until(lambda: audience.reached(FIRST_STEP + 5), "first results")
    assert "batch too large" in driver.log.read_text()
    refused = place.drive()
    assert refused.process.wait(60) != 0
    assert "in use by another driver" in refused.log.read_text()
    driver.kill()

    write(40, 60)
    driver = place.drive(TSUNAGI_SPARK__MAX_OFFSETS="16")
    wait_until(lambda: audience.reached(FIRST_STEP + 45), "results after the first kill")
    driver.kill()
    for name in ("offsets", "commits"):  # as after a power cut
        for path in (place.settings.spark.checkpoint / name).glob("[0-9]*"):
            path.write_bytes(b"")

    write(60, 75)
    driver = place.drive()
    wait_until(lambda: audience.reached(FIRST_STEP + 74), "results after the second kill")
    assert driver.stop() == 0
    audience.steps()
    check_rows(world, audience.blocks, FIRST_STEP + 74)

    acks = {record.key: Ack.FromString(record.value or b"").level0 for record in place.read_all(ACKS)}
    reader = place.log.reader()
    for slot in range(2):
        ack = acks[f"{slot}/level0/spark".encode()]
        assert (ack.offset, ack.generation, ack.epoch) == (reader.range(RECOVERED, slot)[1], GENERATION, 1)
    reader.close()
    letters = {record.key: DeadLetter.FromString(record.value or b"") for record in place.read_all(DEAD_LETTERS)}
    assert sorted((letter.partition, letter.reason) for letter in letters.values()) == [
        (0, "unreadable"),
        (1, "unreadable"),
    ]

    shutil.rmtree(place.settings.spark.checkpoint)
    before = place.read_all(RESULTS)
    driver = place.drive(TSUNAGI_SPARK__MAX_OFFSETS="50")
    again = len({record.key for record in before})
    wait_until(lambda: len(place.read_all(RESULTS)) >= len(before) + again, "everything sent again")
    assert driver.stop() == 0
    assert not audience.reached(FIRST_STEP + 75)
    check_rows(world, audience.blocks, FIRST_STEP + 74)
    values: dict[bytes | None, set[tuple[int, bytes | None]]] = {}
    for record in place.read_all(RESULTS):
        values.setdefault(record.key, set()).add((record.partition, record.value))
    assert all(len(found) == 1 for found in values.values()), "a name was sent with other bytes"
    assert len(values) == again
    assert audience.results.duplicates >= again


def test_a_silent_slot_is_left_behind_and_counts_again(make_place: Callable[..., Place]) -> None:
    place = make_place("silent", form="json")
    world = place.world
    write_placement(place.log, world)
    audience = Audience(place)
    driver = place.drive()
    ahead = iter(range(6, 100_000))
    write_records(place.log, [(slot, *world.record(slot, FIRST_STEP + step)) for step in range(6) for slot in range(2)])
    wait_until(lambda: audience.reached(FIRST_STEP + 5), "first results")
    given_up = [0]

    def goes_on() -> bool:
        given_up[0] = next(ahead)
        write_records(place.log, [(0, *world.record(0, FIRST_STEP + given_up[0]))])
        return audience.reached(FIRST_STEP + 9)

    wait_until(goes_on, "results without slot 1")
    wait_until(lambda: audience.reached(FIRST_STEP + given_up[0]), "what slot 0 gave")
    last = given_up[0]
    write_records(place.log, [(1, *world.record(1, FIRST_STEP + step)) for step in range(6, last + 5)])
    write_records(place.log, [(0, *world.record(0, FIRST_STEP + step)) for step in range(last + 1, last + 5)])
    wait_until(lambda: audience.reached(FIRST_STEP + last + 4), "results with slot 1 again")
    assert driver.stop() == 0

    late = {record.key: Late.FromString(record.value or b"") for record in place.read_all(LATE)}
    assert {message.recovered.step for message in late.values()} == set(range(FIRST_STEP + 6, FIRST_STEP + last + 1))
    assert {(message.slot, message.reason) for message in late.values()} == {(1, "frontier")}
    gone = {(row.sensor, row.step) for row in world.rows if world.slot_of[row.sensor] == 1} & {
        (sensor, message.recovered.step)
        for message in late.values()
        for sensor in np.frombuffer(message.recovered.sensor, dtype="<u4").tolist()
    }
    assert gone == {
        (row.sensor, row.step)
        for row in world.rows
        if world.slot_of[row.sensor] == 1 and FIRST_STEP + 6 <= row.step <= FIRST_STEP + last
    }
    found = [(b.group, b.step, int(n)) for b in audience.blocks for n in b.sensor]
    assert len(found) == len(set(found))
    expected = {(world.table.sensors[row.sensor].group, row.step, row.sensor) for row in world.rows}
    assert set(found) == {row for row in expected if (row[2], row[1]) not in gone}
    first = json.loads(place.read_all(RESULTS)[0].value or b"")
    assert first["sensor"] == world.table.sensors[first["id"]].name
    assert first["unit"] == "degC"
