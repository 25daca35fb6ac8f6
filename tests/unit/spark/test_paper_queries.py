"""q1 to q3 of `examples/queries` give what the job's own q1 to q3 give, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.psort.day import make_day
from tests.bench.psort.same_rows import compare


@pytest.mark.parametrize(("exponent", "batches"), [(0.0, 7), (0.7, 5)])
def test_the_shipped_files_give_the_same_rows_as_the_job(exponent: float, batches: int, tmp_path: Path) -> None:
    day = make_day(tmp_path, 130 * 320 if not exponent else 8000, exponent)
    found = compare(day, batches)
    assert found["different"] == 0
    assert found["rows"] == day.rows
