"""The same job on a standalone cluster: one master, two workers; a worker and the driver are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import HOST, Cluster
from tests.spark.driver import Driver, wait_until
from tests.spark.test_job import Audience, Place, check_rows
from tests.spark.world import FIRST_STEP, write_placement, write_records
from tsunagi.broker.broker import Broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    yield made
    made.close()


def test_a_worker_and_the_driver_are_killed(broker: Broker, tmp_path: Path, cluster: Cluster) -> None:
    place = Place(broker, tmp_path / "spread", "spread", sensors=24, groups=2)
    write_placement(place.log, place.world)
    audience = Audience(place)
    options = {
        "TSUNAGI_SPARK__MASTER": cluster.url,
        "TSUNAGI_PAPER__ORDER": "full",
        "TSUNAGI_SPARK__MAX_OFFSETS": "40",
        "SPARK_LOCAL_IP": HOST,
    }
    workers = [cluster.worker(), cluster.worker()]
    drivers: list[Driver] = []
    last = 0

    def write(count: int) -> None:
        nonlocal last
        for step in range(FIRST_STEP + last, FIRST_STEP + last + count):
            write_records(place.log, [(slot, *place.world.record(slot, step)) for slot in range(2)])
        last += count

    def reached(step: int) -> Callable[[], bool]:
        def look() -> bool:
            if not drivers or drivers[-1].process.poll() is not None:
                drivers.append(place.drive(**options))  # a batch that lost its machine ends the driver; it is restarted
            return len(audience.steps()) == 2 and min(audience.steps().values()) >= FIRST_STEP + step

        return look

    try:
        write(30)
        wait_until(reached(20), "first results")
        cluster.kill(workers[0])
        workers.append(cluster.worker())
        write(30)
        wait_until(reached(59), "results without a worker")
        drivers[-1].process.kill()
        drivers[-1].process.wait(10)
        write(20)
        wait_until(reached(79), "results after the driver's end")
        assert drivers[-1].stop() == 0
        check_rows(place.world, audience.blocks, FIRST_STEP + last - 1)
    finally:
        place.close()
