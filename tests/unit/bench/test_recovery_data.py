import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.recovery_data import main, read


@pytest.mark.parametrize(
    ("lines", "columns", "smooth", "shape"),
    [
        (60, 8, "lines", (60, 8)),
        (60, 8, "columns", (60, 8)),  # more sensors than steps are rare, sensors that are alike are not
        (8, 60, "columns", (60, 8)),
        (8, 60, "lines", (8, 60)),
    ],
)
def test_which_axis_is_time(tmp_path: Path, lines: int, columns: int, smooth: str, shape: tuple[int, int]):
    values = np.random.default_rng(3).normal(size=(lines, columns))
    values = np.cumsum(values, axis=0 if smooth == "lines" else 1)
    np.savetxt(tmp_path / "series.txt", values)
    assert read(tmp_path / "series.txt", "auto").shape == shape
    assert read(tmp_path / "series.txt", "columns").shape == (columns, lines)


def test_a_sensor_that_is_silent_until_the_test_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    values = np.random.default_rng(4).normal(size=(120, 6))
    values[:80, 1] = np.nan
    lines = [",".join("" if np.isnan(cell) else f"{cell:.4f}" for cell in row) for row in values]
    (tmp_path / "series.csv").write_text("\n".join(["a,b,c,d,e,f", *lines]), encoding="utf-8")
    asked = ["--data", tmp_path / "series.csv", "--edges", "3", "--missing", ".3", "--out", tmp_path / "found.json"]
    monkeypatch.setattr("sys.argv", ["recovery_data", *map(str, asked)])
    assert main() == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["sensors"], found["left_out"]) == (5, 1)
    assert all(np.isfinite(method["nrmse"]) for method in (found, *found["baselines"].values()))
