from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tsunagi.runtime.columns import Floats, pack_sensors
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi_spark.balance import Balancer, Setting, first_order, keep_in_place
from tsunagi_spark.law import RowCosts, predict
from tsunagi_spark.layout import Ints, Layout, LayoutError, Order, assigned, make_layout

LARGEST = [22, *[8] * 5, *[5] * 8, *[4] * 7]
"""Sensors of each machine, as in tests/unit/spark/test_psort.py."""


def layout_of(sizes: list[int], cores: int, order: Order) -> Layout:
    groups = [f"m{number}" for number, size in enumerate(sizes) for _ in range(size)]
    table = SensorTable(tuple(Sensor(n, f"s{n}", "e", group) for n, group in enumerate(groups)))
    placement = Placement(serial=1, slots=1, slot=pack_sensors(np.zeros(len(table))), table_sha256=table.digest())
    return make_layout(table, placement, cores, "ungrouped", order=order)


def reports(taken: list[int], process_us: float = 2.0) -> list[dict[str, float]]:
    return [{"core": core, "taken": rows, "cpu_s": rows * process_us / 1e6} for core, rows in enumerate(taken)]


def rates(values: Floats) -> Callable[[], Floats]:
    return lambda: values


def test_the_law_gives_the_papers_figures() -> None:
    layout = layout_of(LARGEST, 15, "optimised")
    costs = RowCosts(process_s=6.0, merge_s=1.0)
    alike = dict.fromkeys(range(130), 1.0)
    found = predict("optimised", layout.group_of, layout.sensor_core, 15, alike, costs)
    assert found.max_load == pytest.approx(9 / 130)
    assert found.merged_share == pytest.approx(22 / 130)
    assert found.speed_up == pytest.approx(130 / 9)
    assert found.batch_speed_up == pytest.approx(6 / (6 * 9 / 130 + 22 / 130))
    full = predict("full", layout.group_of, assigned(layout.group_of, 12, alike, "full"), 12, alike, costs)
    assert full.max_load == pytest.approx(11 / 130)
    assert full.merged_share == 1
    assert full.speed_up == pytest.approx(6)  # 6.0 and 6.1 in the paper: merging sets it
    basic = predict("basic", layout.group_of, assigned(layout.group_of, 16, alike, "basic"), 16, alike, costs)
    assert basic.speed_up == pytest.approx(130 / 22)
    assert basic.merged_share == 0


@pytest.mark.parametrize(
    ("sizes", "cores", "merge_s", "order"),
    [
        (LARGEST, 15, 1e-6, "optimised"),
        (LARGEST, 15, 1e-3, "basic"),  # merging would cost more than it saves
        (LARGEST, 2, 1e-6, "basic"),  # whole groups fit as well
        ([10, 10], 2, 1e-9, "basic"),
    ],
)
def test_auto_cuts_where_it_pays(sizes: list[int], cores: int, merge_s: float, order: Order) -> None:
    group_of: Ints = np.repeat(np.arange(len(sizes)), sizes)
    alike = dict.fromkeys(range(len(group_of)), 1.0)
    costs = RowCosts(process_s=6e-6, merge_s=merge_s)
    assert first_order("auto", group_of, cores, alike, costs) == order
    assert first_order("full", group_of, cores, alike, costs) == "full"


def test_a_table_that_the_rates_have_left_behind_is_changed_once_in_a_while() -> None:
    layout = layout_of([4, 4, 4, 4], 2, "basic")
    balancer = Balancer("basic", every_s=60)
    rate = np.ones(16)
    rate[layout.sensor_core == 0] = 5.0
    assert balancer.propose(layout, rates(rate), 0.0) is None
    balancer.observe(reports([500, 100]), [])
    assert balancer.propose(layout, rates(rate), 59.0) is None, "too early"
    changed = balancer.propose(layout, rates(rate), 60.0)
    assert changed is not None
    assert changed.serial == layout.serial + 1
    loads = np.bincount(changed.sensor_core, weights=rate)
    assert loads.max() / loads.sum() == pytest.approx(0.5)
    assert int((changed.sensor_core != layout.sensor_core).sum()) == 8, "one group each way, and no more"
    assert np.array_equal(changed.home, layout.home)
    balancer.observe(reports([300, 300]), [])
    assert balancer.propose(changed, rates(rate), 120.0) is None, "the cores are even"
    balancer.observe(reports([330, 300]), [])
    assert balancer.propose(changed, rates(rate), 180.0) is None, "the best table is in force"


def test_a_hot_group_is_cut_by_auto_and_put_together_again() -> None:
    layout = layout_of([8, 4, 4], 2, "basic")
    balancer = Balancer("auto", every_s=1)
    hot = np.ones(16)
    hot[:8] = 10.0
    assert balancer.propose(layout, rates(hot), 0.0) is None
    balancer.costs.merge_s = 2e-7
    balancer.observe(reports([80000, 8000]), [])
    changed = balancer.propose(layout, rates(hot), 2.0)
    assert changed is not None
    assert (changed.order, changed.cut.tolist()) == ("optimised", [True, False, False])
    balancer.observe(reports([50000, 20000]), [{"rows": 40000, "cpu_s": 4.0}])  # merging is dear, as it turns out
    for _ in range(30):
        balancer.observe(reports([50000, 20000]), [{"rows": 40000, "cpu_s": 4.0}])
    assert balancer.costs.merge_s == pytest.approx(1e-4, rel=0.1)
    back = balancer.propose(changed, rates(np.ones(16)), 4.0)
    assert back is not None
    assert back.order == "basic"
    assert not back.cut.any()


def test_sensors_stay_where_they_are_under_other_numbers() -> None:
    layout = layout_of([3, 3, 3], 3, "basic")
    kept = keep_in_place(layout, (layout.sensor_core + 1) % 3, dict.fromkeys(range(9), 1.0))
    assert kept.tolist() == layout.sensor_core.tolist()


@pytest.mark.parametrize(
    ("made", "setting", "refused"),
    [
        ("basic", "optimised", False),
        ("optimised", "basic", False),
        ("basic", "full", True),
        ("full", "auto", True),
        ("basic", "none", True),
        ("none", "basic", True),
    ],
)
def test_another_setting_for_a_checkpoint(made: Order, setting: Setting, refused: bool) -> None:
    layout = layout_of([8, 1, 1], 2, made)
    balancer = Balancer(setting, every_s=0)
    if refused:
        with pytest.raises(LayoutError, match=r"order of results: .* needs an empty checkpoint"):
            balancer.propose(layout, rates(np.ones(10)), 0.0)
        return
    changed = balancer.propose(layout, rates(np.ones(10)), 0.0)
    assert changed is not None
    assert changed.order == setting
    assert balancer.propose(changed, rates(np.ones(10)), 1.0) is None


def test_rates_of_nothing_seen_are_alike() -> None:
    layout = layout_of([4, 4], 2, "basic")
    balancer = Balancer("basic", every_s=1)
    assert balancer.propose(layout, rates(np.zeros(8)), 0.0) is None
    balancer.observe(reports([10, 0]), [])
    assert balancer.propose(layout, rates(np.zeros(8)), 2.0) is None
