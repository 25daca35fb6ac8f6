"""The judge of the fleet's curves sees what it is there to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.findings import Findings
from tests.bench.fleet_figures import Size, columns, judge, panels, sizes


def run(sensors: int, **fields: Any) -> dict[str, Any]:
    """Return what `tests.bench.fleet` says of a run in which all is well."""
    plain = {
        "sensors": sensors, "edges": sensors // 50, "slots": 2, "workers": 4, "step_s": 1.0, "ready_s": 40.0,
        "flowing_s": 60.0, "learned_s": None, "false_takeovers": 0, "latency_s": {"p50": 0.2, "p99": 0.8, "max": 1.0},
        "silence_s": {"p50": 0.1, "p99": 0.3, "max": 0.3}, "records_a_second": {"heartbeats": 50.0},
        "bytes_a_second": {"heartbeats": 9000},
        "cpu_s_a_million_tuples": {"worker": 100.0, "spark": 50.0, "scaler": 3.0},
        "processes": {"worker": {"rss_mb": 400.0}, "spark": {"rss_mb": 1200.0}, "scaler": {"rss_mb": 80.0}},
        "bytes_a_tuple": {"tuples": 20.0, "recovered": 30.0, "results": 40.0},
        "results": dict.fromkeys(("lost", "doubled", "reordered", "wrong", "aside", "late"), 0) | {"rows": 1000},
    }  # fmt: skip
    return plain | fields


def failed(*runs: dict[str, Any]) -> list[str]:
    return [claim.says for claim in judge([columns(item) for item in runs]) if not claim.held]


def test_a_fleet_that_grows_as_its_work_does_holds_all() -> None:
    assert failed(run(200), run(2000)) == []
    assert failed(run(200), run(2000, silence_s={"p50": None, "p99": None, "max": None})) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"false_takeovers": 1}, "no takeover"),
        ({"results": run(1)["results"] | {"lost": 1}}, "nothing lost"),
        ({"results": run(1)["results"] | {"reordered": 1}}, "nothing lost"),
        ({"silence_s": {"p50": 0.2, "p99": 0.9, "max": 0.9}}, "silence p99"),
        ({"flowing_s": None}, "results flow"),
        ({"flowing_s": 121.0}, "results flow"),
        ({"cpu_s_a_million_tuples": {"worker": 131.0, "spark": 90.0, "scaler": 3.0}}, "cpu_worker"),
        ({"bytes_a_tuple": {"tuples": 20.0, "recovered": 40.0, "results": 40.0}}, "bytes_recovered"),
    ],
)
def test_what_does_not_hold_is_said(fields: dict[str, Any], says: str) -> None:
    (claim,) = failed(run(200), run(2000, **fields))
    assert claim.startswith(says)


def test_a_row_and_a_point_of_each_size_are_drawn(tmp_path: Path) -> None:
    rows = [columns(run(size.sensors)) for size in sizes("200x4,2000x20")]
    assert sizes("200x4") == [Size(200, 4)]
    bench = Findings(tmp_path)
    bench.picture("fleet", panels(rows), columns=2)
    assert (tmp_path / "fleet.png").stat().st_size > 10_000
    assert list(panels(rows)[0].curves["worker"][0]) == [200, 2000]
    assert "learner" not in panels(rows)[0].curves  # none of the runs had one
