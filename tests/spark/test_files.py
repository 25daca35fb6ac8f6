"""What the job sends beside readings, and writes beside the topic: aggregates and Parquet files, over kills."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.spark.driver import wait_until
from tests.spark.test_job import Place
from tests.spark.world import FIRST_STEP, write_placement, write_records
from tsunagi.broker.broker import Broker
from tsunagi.runtime.log import RESULTS

STEPS = 40
AGGREGATES = [{"name": "tumbling", "range_s": 5.0}, {"name": "sliding", "range_s": 8.0, "slide_s": 2.0, "by": "group"}]


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    made = Place(broker, tmp_path / "files", "files", sensors=24, groups=4)
    yield made
    made.close()


def test_files_hold_every_row_and_window_once(place: Place) -> None:
    world, directory = place.world, place.directory / "out"
    slide_s = place.settings.steps.slide_s
    options = {
        "TSUNAGI_QUERY__AGGREGATES": json.dumps(AGGREGATES),
        "TSUNAGI_RESULTS__FILES": str(directory),
        "TSUNAGI_RESULTS__FILES_S": "6",
        "TSUNAGI_SPARK__ORDER": "optimised",
        "TSUNAGI_SPARK__MAX_OFFSETS": "20",
    }
    write_placement(place.log, world)

    def write(first: int, last: int) -> None:
        for step in range(FIRST_STEP + first, FIRST_STEP + last):
            write_records(place.log, [(slot, *world.record(slot, step)) for slot in range(2)])

    def rows() -> pd.DataFrame:
        return pd.read_parquet(directory) if any(directory.glob("*.parquet")) else pd.DataFrame()

    def has(step: int) -> Callable[[], bool]:
        return lambda: len(found := rows()) > 0 and int(found.step.max()) >= FIRST_STEP + step

    write(0, STEPS // 2)
    driver = place.drive(**options)
    wait_until(has(STEPS // 2 - 10), "first files")
    driver.kill()
    write(STEPS // 2, STEPS)
    driver = place.drive(**options)
    wait_until(has(STEPS - 1), "all files")  # the last of them once nothing has followed for a while
    assert driver.stop() == 0

    found = rows()
    readings = found[found["query"] == "readings"]
    assert len(readings) == len(world.rows)
    assert set(zip(readings["id"], readings["step"], readings["value"], strict=True)) == {
        (row.sensor, row.step, row.mean) for row in world.rows
    }
    assert readings["minimum"].isna().all()
    tumbling = found[found["query"] == "tumbling"]
    steps = round(5 / slide_s)
    wanted: dict[tuple[int, int], list[float]] = {}
    for row in world.rows:
        end = -(-row.step // steps) * steps
        if end < FIRST_STEP + STEPS:
            wanted.setdefault((row.sensor, end), []).append(row.mean)
    assert {(r["id"], r["step"]): (r["q1"], r["sum"], r["maximum"]) for r in tumbling.to_dict("records")} == {
        name: (len(values), pytest.approx(sum(values)), max(values)) for name, values in wanted.items()
    }
    assert len(tumbling) == len(wanted)
    sliding = found[found["query"] == "sliding"]
    assert set(sliding["sensor"]) == {"*"}
    assert len(sliding.drop_duplicates(["group", "step"])) == len(sliding)

    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.parquet")}
    shutil.rmtree(place.settings.spark.checkpoint)
    known = len({record.key for record in place.read_all(RESULTS)})
    length = len(place.read_all(RESULTS))
    driver = place.drive(**options | {"TSUNAGI_SPARK__ORDER": "basic", "TSUNAGI_SPARK__MAX_OFFSETS": "31"})
    wait_until(lambda: len(place.read_all(RESULTS)) >= length + known, "everything sent again")
    assert driver.stop() == 0
    values: dict[bytes | None, set[bytes | None]] = {}
    for record in place.read_all(RESULTS):
        values.setdefault(record.key, set()).add(record.value)
    assert all(len(bytes_) == 1 for bytes_ in values.values()), "a name was sent with other bytes"
    assert {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.parquet")
    } == digests, "what was sent again is in no file"
