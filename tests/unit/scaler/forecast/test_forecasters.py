"""Mixture, profiles and quantiles, on made-up days."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.scaler.forecast.base import LEVELS, Forecast
from tsunagi.scaler.forecast.calibrated import Calibrated
from tsunagi.scaler.forecast.make import FORECASTERS, ForecasterError, forecast, make_point
from tsunagi.scaler.forecast.sdar import Sdar
from tsunagi.scaler.forecast.seasonal import Profile
from tsunagi.scaler.forecast.simple import Ewma

SLOT_S = 3600.0
DAYS = 40


def days(seed: int = 1, count: int = DAYS) -> np.ndarray:
    draw = np.random.default_rng(seed)
    hour = np.arange(24 * count)
    return np.maximum(300 + 200 * np.sin(hour / 24 * 2 * np.pi) + draw.normal(0, 20, len(hour)), 0)


def errors(point: object, values: np.ndarray, lead: int) -> float:
    said: list[np.ndarray] = []
    total = 0.0
    for i, value in enumerate(values):
        if i > len(values) // 2:
            total += abs(value - said[-lead][lead - 1])
        point.update(float(value))  # type: ignore[attr-defined]
        said.append(point.means(lead))  # type: ignore[attr-defined]
    return total


@pytest.mark.slow
def test_the_mixture_finds_the_day() -> None:
    values = days()
    for lead, share in ((1, 0.9), (6, 0.4)):
        assert errors(make_point("mixture", SLOT_S), values, lead) < share * errors(Sdar(3, 0.01), values, lead)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORECASTERS)
def test_every_forecaster_covers_what_its_quantiles_say(name: str) -> None:
    forecaster = Calibrated(make_point(name, SLOT_S), 6)
    values, inside = days(2), []
    for i, value in enumerate(values):
        if i > 10 * 24:
            inside.append(value <= forecaster.forecast(6).at(0.9)[0])
        forecaster.update(float(value))
    assert 0.86 <= np.mean(inside) <= 0.94


def test_quantiles_may_be_of_another_target() -> None:
    forecaster, inside = Calibrated(make_point("last", SLOT_S), 4), []
    for i, value in enumerate(days(3)):
        if i > 10 * 24:
            inside.append(1.5 * value <= forecaster.forecast(1).at(0.8)[0])
        forecaster.update(float(value), 1.5 * float(value))
    assert 0.75 <= np.mean(inside) <= 0.85


def test_levels_between_are_interpolated() -> None:
    grid = Forecast(np.zeros(2), np.tile(LEVELS * 100, (2, 1)))
    np.testing.assert_allclose(grid.at(0.65), 65.0)
    np.testing.assert_allclose(grid.at(np.array([0.5, 0.999])), [50.0, 99.5])


def test_the_weighted_mean_is_exact_from_the_start() -> None:
    ewma = Ewma(0.3)
    values = days(4)[:7]
    for value in values:
        ewma.update(float(value))
    weights = 0.7 ** np.arange(7)[::-1]
    assert ewma.means(2)[1] == pytest.approx((weights * values).sum() / weights.sum())


def test_a_profile_repeats_its_period() -> None:
    profile = Profile(4)
    for value in (1.0, 2.0, 3.0, 4.0, 1.0, 2.0):
        profile.update(value)
    np.testing.assert_allclose(profile.means(6), [3, 4, 1, 2, 3, 4])
    assert profile.complete


def test_forecast_is_one_call_with_any_forecaster() -> None:
    found = forecast(days()[:200], 30, "ewma", SLOT_S)
    assert found.mean.shape == (30,)
    assert found.quantiles.shape == (30, len(LEVELS))
    assert (np.diff(found.quantiles, axis=1) >= 0).all()
    assert forecast(days()[:9], 2, "tsunagi.scaler.forecast.mixture:Mixture", SLOT_S).mean.shape == (2,)


@pytest.mark.parametrize("name", ["nothing", "tsunagi.scaler:None", "no.module:Class"])
def test_an_unknown_forecaster_is_refused(name: str) -> None:
    with pytest.raises(ForecasterError, match=f"found '{name}', expected one of mixture"):
        make_point(name, SLOT_S)
