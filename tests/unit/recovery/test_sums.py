import numpy as np
import pytest

from tsunagi.recovery.moments import Moments
from tsunagi.recovery.sums import HistorySums, Units, tile_places
from tsunagi.runtime.columns import Floats


def history(steps: int, n: int, *, gaps: float, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    rows = (
        20
        + 5 * np.cumsum(rng.normal(size=(steps, 1)), axis=0) * 0.1
        + rng.normal(size=(steps, n)) * np.arange(1, n + 1)
    )
    rows[rng.random(rows.shape) < gaps] = np.nan
    rows[steps // 2 : steps // 2 + 4] = np.nan  # nobody was read
    return np.asarray(rows)


def expected(rows: Floats, lag: int, units: Units) -> Floats:
    """As the fit in memory has it."""
    mean, scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0, ddof=1)
    standard = (rows - mean) / scale
    if units.profile is not None:
        phase = (7 + np.arange(len(rows))) % len(units.profile)
        standard -= (units.profile * units.scale / scale)[phase]
    moments = Moments(standard)
    return moments.joint(lag) if lag else moments.covariance()


@pytest.mark.parametrize("gaps", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("lag", [0, 1, 3, 10])
@pytest.mark.parametrize("profiled", [False, True])
def test_sums_of_shares_are_the_moments_of_the_whole(gaps, lag, profiled):
    rows = history(300, 7, gaps=gaps)
    rng = np.random.default_rng(1)
    profile = rng.normal(size=(12, 7)) * 0.3 if profiled else None
    units = Units(rng.normal(size=7) * 3, rng.uniform(0.5, 4, size=7), profile)  # far off the true ones
    total = HistorySums(7, lag, units)
    for first, end in ((0, 90), (90, 91), (91, 230), (230, 300)):
        share = HistorySums(7, lag, units)
        for at in range(max(0, first - lag), end, 17):
            block = rows[at : min(at + 17, end)]
            share.add(7 + at, block, 7 + first)
        for tile in share.tiles():
            total.join(tile)
    mean, sd = total.mean_and_sd()
    np.testing.assert_allclose(mean, np.nanmean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(sd, np.nanstd(rows, axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(total.moments(mean, sd), expected(rows, lag, units), atol=1e-11)


@pytest.mark.parametrize("lag", [1, 3, 10])
def test_steps_left_out_are_steps_without_readings(lag):
    rows = history(120, 5, gaps=0.1)
    rows[40:47] = np.nan
    units = Units(np.zeros(5), np.ones(5))
    whole, parts = HistorySums(5, lag, units), HistorySums(5, lag, units)
    whole.add(0, rows)
    parts.add(0, rows[:40])
    parts.add(47, rows[47:])
    mean, sd = whole.mean_and_sd()
    np.testing.assert_allclose(parts.moments(mean, sd), whole.moments(mean, sd), atol=1e-13)


def test_tiles_of_more_than_one_cover_a_matrix(monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.sums.TILE", 3)
    assert len(tile_places(7, triangle=False)) == 9
    rows = history(80, 7, gaps=0.1)
    units = Units(np.zeros(7), np.ones(7))
    one, other = HistorySums(7, 1, units), HistorySums(7, 1, units)
    one.add(0, rows)
    for tile in one.tiles():
        other.join(tile)
    mean, sd = one.mean_and_sd()
    np.testing.assert_array_equal(one.moments(mean, sd), other.moments(mean, sd))


def test_a_history_of_nothing_has_moments_of_independent_sensors():
    sums = HistorySums(2, 0, Units(np.zeros(2), np.ones(2)))
    sums.add(0, np.full((5, 2), np.nan))
    np.testing.assert_array_equal(sums.moments(np.zeros(2), np.ones(2)), np.eye(2))
