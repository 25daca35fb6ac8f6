"""Reading traces: what is no trace is refused with file, line, found and expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tsunagi.scaler.trace import Trace, TraceError, default_score_days, read_trace, resample, scale, split


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("t_s,rate_per_s", *lines)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("0,1", "10,2", "30,3"), r"t.csv, line 4: found t_s = 30, expected 20"),
        (("0,1", "10,2", "20,-0.5"), r"t.csv, line 4: found rate_per_s = -0.5, expected 0 or more"),
        (("0,1", "10,x"), r"t.csv, line 3: found rate_per_s = 'x', expected a number"),
        (("0,1", "10,nan"), r"line 3: found rate_per_s = 'nan', expected a number"),
        (("0,1", "10"), r"line 3: found 1 columns, expected 2"),
        (("10,1", "0,1"), r"line 3: found t_s = 0, expected more than 10"),
        (("0,1",), r"found 1 rates, expected at least 2"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write(tmp_path / "t.csv", *lines))


def test_header_and_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(TraceError, match="line 1: found 'a,b', expected the header"):
        read_trace(tmp_path / "h.csv")
    with pytest.raises(TraceError, match=r"none\.csv: no such file"):
        read_trace(tmp_path / "none.csv")


def test_a_value_holds_over_its_own_step(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.csv", "0,1", "30,4", "60,7"))
    assert trace.step_s == 30
    np.testing.assert_allclose(resample(trace, 10.0).rates, [1, 1, 1, 4, 4, 4, 7, 7, 7])
    np.testing.assert_allclose(resample(trace, 45.0).rates, [2.0, 6.0])


def test_the_busiest_minute_is_scaled_to_the_peak() -> None:
    rates = np.full(60, 1.0)
    rates[6:12] = [2, 4, 6, 8, 10, 6]  # a minute of mean 6
    assert scale(Trace(rates, 10.0), 2000.0).rates[6:12].mean() == pytest.approx(2000.0)
    with pytest.raises(TraceError, match="no rate above 0"):
        scale(Trace(np.zeros(60), 10.0))


def test_the_last_days_are_scored() -> None:
    trace = Trace(np.arange(24.0 * 10), 3600.0)
    history, scored = split(trace, 7.0)
    assert (len(history.rates), len(scored.rates)) == (72, 168)
    assert default_score_days(trace) == 7.0
    assert default_score_days(Trace(np.zeros(24 * 200), 3600.0)) == 28.0
    with pytest.raises(TraceError, match=r"found 10\.00 days, expected more than the 10"):
        split(trace, 10.0)
