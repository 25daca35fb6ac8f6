import math

import numpy as np
import pytest

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import HistoryColumns
from tsunagi.recovery.history import list_history
from tsunagi.recovery.moments import Moments
from tsunagi.recovery.shares import HistorySteps, summed, whole_steps
from tsunagi.recovery.sums import HistorySums, Units
from tsunagi.recovery.windows import history_steps
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import StepsSettings

NAN = math.nan
TABLE = SensorTable(tuple(Sensor(i, f"s{i}", "e", max_age_s=(NAN, 9.0, 50.0)[i % 3], maximum=90.0) for i in range(6)))
STEPS = StepsSettings(window=10, slide=3)


@pytest.fixture(params=["untimed", "live", "replay", "gaps"])
def history(request, tmp_path, monkeypatch):
    """A CSV in many pieces, its values, and its times."""
    rng = np.random.default_rng(4)
    values = np.round(20 + rng.normal(size=(400, 6)), 4)
    values[rng.random(values.shape) < 0.3] = NAN
    values[77, 2] = 500.0
    times = (
        None
        if request.param == "untimed"
        else 1_700_000_000 + np.arange(400) * (60 if request.param == "replay" else 1)
    )
    if times is not None and request.param == "gaps":
        times[133:] += 29
        times[134:] += 1000
        times[300:] += 7
    lines = [",".join([*([] if times is None else ["time"]), *(f"s{i}" for i in range(6))])]
    for row, cells in enumerate(values.tolist()):
        texts = ["" if math.isnan(cell) else str(cell) for cell in cells]
        lines.append(",".join(texts if times is None else [str(times[row]), *texts]))
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    monkeypatch.setattr("tsunagi.recovery.history_csv.PIECE_BYTES", 700)
    monkeypatch.setattr("tsunagi.recovery.windows.BLOCK_CELLS", 60)
    return path, values, None if times is None else times * 10**6


def expected(values: Floats, times, columns: HistoryColumns) -> tuple[Floats, int]:
    clean, _ = columns.plausible(values)
    steps, first, _ = history_steps(clean, times, STEPS, columns.max_age)
    return steps, first


@pytest.mark.slow
@pytest.mark.parametrize("shares", [1, 2, 7, 1000])
def test_shares_have_every_step_and_pair_once(history, shares):
    path, values, times = history
    files = list_history(path)
    columns = HistoryColumns.of(files, TABLE, STEPS)
    work = HistorySteps.of(files, columns, STEPS)
    steps, first = expected(values, times, columns)
    assert (work.first, work.end) == (first, first + len(steps))
    units = Units(np.full(6, 20.0), np.ones(6))
    lags = (0, 1, 10)
    total = {lag: HistorySums(6, lag, units) for lag in lags}
    rows = outside = 0
    found = work.shares(shares, max(lags))
    assert len(found) == min(shares, len(files.pieces))
    for share in found:
        sums, counted = summed(work, share, np.arange(6), lags, units)
        rows, outside = rows + counted.rows, outside + counted.outside
        for lag, part in sums.items():
            for tile in part.tiles():
                total[lag].join(tile)
    assert (rows, outside) == (400, 1)
    mean, scale = np.nanmean(steps, axis=0), np.nanstd(steps, axis=0, ddof=1)
    moments = Moments((steps - mean) / scale)
    np.testing.assert_array_equal(total[0].count, np.isfinite(steps).sum(axis=0))
    np.testing.assert_allclose(total[0].moments(mean, scale), moments.covariance(), atol=1e-11)
    for lag in lags[1:]:
        np.testing.assert_allclose(total[lag].moments(mean, scale), moments.joint(lag), atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 20, 10_000])
def test_the_last_steps_alone(history, most):
    path, values, times = history
    files = list_history(path)
    columns = HistoryColumns.of(files, TABLE, STEPS)
    work = HistorySteps.of(files, columns, STEPS)
    steps, first = expected(values, times, columns)
    share = work.last_steps(most)
    assert share.first == max(first, first + len(steps) - most)
    np.testing.assert_allclose(whole_steps(work, share), steps[-most:], rtol=1e-12)


def test_time_that_runs_backwards_between_files_is_found(tmp_path):
    (tmp_path / "a.csv").write_text("time,s0\n" + "".join(f"{at},1\n" for at in range(50)))
    (tmp_path / "b.csv").write_text("time,s0\n" + "".join(f"{at},1\n" for at in range(45, 99)))
    files = list_history(tmp_path)
    work = HistorySteps.of(files, HistoryColumns.of(files, TABLE, STEPS), STEPS)
    with pytest.raises(ModelError, match=r"b\.csv, byte 8: its time is not later"):
        whole_steps(work, work.last_steps(1000))
