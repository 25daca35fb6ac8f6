from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.psort import claims
from tests.bench.psort.claims import Row
from tests.bench.psort.day import GROUP_OF, MACHINES, SENSORS, make_day, read_rows, shares
from tests.bench.psort.stages import judge
from tests.bench.psort.trial import Costs, arrange
from tests.unit.spark.test_parts import layout_of, part_of


def test_the_day_is_the_papers(tmp_path: Path) -> None:
    day = make_day(tmp_path, 13_000, 0.0)
    assert (SENSORS, len(MACHINES), MACHINES[:2]) == (130, 21, (22, 8))
    assert (day.rows, day.steps, day.slots) == (13_000, 100, 1)
    part = read_rows(day, 3, 5)
    assert part.step.tolist() == [4] * 130 + [5] * 130
    assert part.sensor[:130].tolist() == list(range(130))
    again = make_day(tmp_path, 13_000, 0.0)
    assert np.array_equal(read_rows(again, 0, 100).mean, read_rows(day, 0, 100).mean)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_rates_follow_zipf(tmp_path: Path, exponent: float) -> None:
    day = make_day(tmp_path, 50_000, exponent)
    assert day.rows == pytest.approx(50_000, rel=0.01)
    ranked = np.sort(day.readings)[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10**exponent, rel=0.02)
    rows = read_rows(day, 0, day.steps)
    assert np.bincount(rows.sensor, minlength=SENSORS).tolist() == day.readings.tolist()
    key = rows.step * SENSORS + rows.sensor
    assert (np.diff(key) > 0).all(), "in order, and a sensor has one reading a step"
    assert day.slots == len(MACHINES)


def test_rows_are_split_by_place() -> None:
    sensor = np.array([3, 1, 0, 2, 3, 0], dtype=np.uint32)
    order, starts = shares(sensor, np.array([1, 0, 1, 2]))
    assert order.tolist() == [1, 2, 3, 5, 0, 4]
    assert starts.tolist() == [0, 1, 4, 6]


def test_methods_use_the_papers_cores(tmp_path: Path) -> None:
    day = make_day(tmp_path, 13_000, 0.0)
    found = {method: arrange(day, method, 16) for method in ("none", "basic", "optimised", "full")}
    assert [item.layout.cores for item in found.values()] == [16, 16, 15, 15]
    assert [item.merges for item in found.values()] == [False, False, True, True]
    assert found["optimised"].merged_share == pytest.approx(22 / 130)
    assert found["optimised"].max_load == pytest.approx(9 / 130)
    assert arrange(day, "optimised", 2).merges is False, "two cores hold the machines whole"
    assert arrange(day, "full", 1).merges is False


def test_the_law_counts_the_split_and_whichever_core_has_most_to_do(tmp_path: Path) -> None:
    day = make_day(tmp_path, 13_000, 0.0)
    optimised = arrange(day, "optimised", 16)
    assert optimised.predicted(Costs(0.0, 1.0, 0.1)) == pytest.approx(130 / 9)
    assert optimised.predicted(Costs(0.0, 1.0, 1.0)) == pytest.approx(130 / 22)
    assert optimised.predicted(Costs(1.0, 1.0, 0.1)) == pytest.approx(2 / (1 / 15 + 9 / 130))


def test_inversions_are_counted() -> None:
    layout = layout_of(GROUP_OF.tolist())
    good = part_of(layout, [(step, sensor) for step in range(3) for sensor in (0, 1, 30)])
    assert judge([good]) | {"q1": 0, "q2": 0} == {"inversions": 0, "inversions_in_all": 0, "q1": 0, "q2": 0, "out": 9}
    later = part_of(layout, [(1, 0), (1, 30)])
    found = judge([good, later])
    assert (found["inversions"], found["inversions_in_all"]) == (2, 1)


def row(method: str, cores: int, speed_up: float, zipf: float = 0.0, **changed: float) -> Row:
    cells = dict.fromkeys(Row._fields, 0.0) | {"predicted": speed_up, "bound": speed_up, **changed}
    return Row(**{**cells, "zipf": zipf, "method": method, "cores": cores, "speed_up": speed_up})  # type: ignore[arg-type]


def test_statements_of_figure_11() -> None:
    rows = [row(method, cores, speed_up) for (method, cores), speed_up in claims.PAPER.items()]
    assert all(claim.held for claim in claims.figure_11(rows))
    slow = [item._replace(speed_up=10.0) if (item.method, item.cores) == ("optimised", 16) else item for item in rows]
    failed = [claim.says for claim in claims.figure_11(slow) if not claim.held]
    assert failed == [
        "optimised on 16 cores is 13 times as fast as one",
        "held to: optimised on 16 cores is at least 13 times as fast as one",
        "held to: on 16 cores optimised has at least 90% of what unordered has",
    ]


def test_statements_of_law_zipf_table_and_clock() -> None:
    good = [row("optimised", 16, 5.0, 1.0), row("basic", 8, 3.0)]
    assert all(claim.held for claim in (*claims.predictions(good), *claims.uneven(good)))
    bad = [row("optimised", 16, 5.0, 1.0, predicted=5.6, bound=5.6)]
    assert not any(claim.held for claim in (*claims.predictions(bad), *claims.uneven(bad)))
    assert all(claim.held for claim in claims.table_1(claims.TABLE_1, 0.1))
    assert [claim.held for claim in claims.table_1({**claims.TABLE_1, "basic": (17.6, 0.0)}, 0.3)] == [
        True,
        False,
        True,
        False,
    ]
    assert claims.wall({"optimised": 1.05, "none": 1.0})[0].held
    assert not claims.wall({"optimised": 1.06, "none": 1.0, "full": 1.2})[0].held
