from pathlib import Path

import numpy as np
import pytest

from tests.bench.recovery_data import read


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
