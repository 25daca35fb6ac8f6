from __future__ import annotations

import pytest

from tsunagi.project.sizing import FleetSize, Machine, plan, slots_for

SMALL = FleetSize(37, 3, 20, 1.0, 37.0)
MACHINE = Machine(2, 8_000)


@pytest.mark.parametrize(("sensors", "slots"), [(1, 2), (1000, 2), (1001, 3), (5000, 10), (100_000, 16)])
def test_slots_grow_with_the_fleet(sensors: int, slots: int) -> None:
    assert slots_for(sensors) == slots


def test_a_small_fleet_has_what_the_compose_file_has() -> None:
    found = plan(SMALL, MACHINE)
    assert (found.slots.value, found.gateways.value, found.secondaries.value, found.spare.value) == (2, 2, 2, 1)
    assert (found.spark_cores.value, found.batch_size.value) == (2, 100)
    assert (found.worker_mb.value, found.spark_mb.value) == (256, 1536)
    assert found.edge_mb.value == 128


def test_rate_size_and_machine_each_have_their_say() -> None:
    fast = plan(FleetSize(5000, 50, 100, 0.01, 500_000.0), Machine(16, 64_000))
    assert fast.gateways.value > 2
    assert fast.spark_cores.value == 10
    assert plan(FleetSize(5000, 50, 100, 0.01, 500_000.0), Machine(4, 64_000)).spark_cores.value == 4
    assert plan(FleetSize(5000, 1, 5000, 1.0, 5000.0), MACHINE).batch_size.value == 500
    assert plan(FleetSize(50_000, 1, 50_000, 1.0, 5000.0), MACHINE).edge_mb.value > 128
    assert plan(SMALL, MACHINE, slots=1).gateways.value == 1, "what exists stays: the number of slots is fixed"


def test_more_than_the_machine_has_is_said() -> None:
    assert "MORE than this machine has: 2,000 MB" in plan(SMALL, Machine(2, 2_000)).total_mb.why
    assert "MORE" not in plan(SMALL, MACHINE).total_mb.why


def test_each_line_says_where_its_number_goes_and_why() -> None:
    for item in plan(SMALL, MACHINE):
        assert item.value > 0
        assert item.setting
        assert item.why
