from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import _groups, estimate, thinned
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Structure
from tsunagi.recovery.search import MUCH_WORSE, StructureSearch
from tsunagi.recovery.trial import Trial, outages, run_trial
from tsunagi.runtime.columns import Floats


def factor_history(
    steps: int, n: int, rng: np.random.Generator, *, persistence: float = 0.9, own: float = 0.4
) -> Floats:
    """One common autoregression that all sensors follow, and one of each sensor's own."""
    x = np.zeros((steps, n + 1))
    for step in range(1, steps):
        x[step] = persistence * x[step - 1] + np.sqrt(1 - persistence**2) * rng.normal(size=n + 1)
    history: Floats = 50 + 10 * np.arange(1, n + 1) * (x[:, :1] + own * x[:, 1:])
    return history


def names(n: int) -> list[str]:
    return [f"s{i}" for i in range(n)]


@pytest.mark.slow
def test_short_histories_of_many_sensors_can_be_fitted():
    rng = np.random.default_rng(0)
    history = factor_history(60, 40, rng)
    model, report = estimate(history, names(40), edges=[f"e{i % 4}" for i in range(40)])
    assert report.transition in ("diagonal", "innovation")
    assert report.nrmse < min(report.last_value_nrmse, report.mean_nrmse)
    assert report.nugget == 0.0
    assert report.masked_steps == 20
    assert model.names == tuple(names(40))
    assert model.about["shrinkage"] == report.shrinkage
    assert [level for level, _ in model.calibration] == [0.5, 0.8, 0.9, 0.95, 0.99]
    assert all(factor >= 1 for _, factor in model.calibration)


@pytest.mark.slow
def test_the_same_history_gives_the_same_bytes():
    history = factor_history(30, 5, np.random.default_rng(1))
    assert estimate(history, names(5))[0].to_bytes() == estimate(history, names(5))[0].to_bytes()


@pytest.mark.slow
def test_a_long_history_of_a_coupled_process_gets_a_full_transition():
    rng = np.random.default_rng(2)
    n, steps = 3, 120
    ring = 0.95 * np.roll(np.eye(n), 1, axis=0)  # each sensor shows what its neighbour showed a step before
    x = np.zeros((steps, n))
    for step in range(1, steps):
        x[step] = ring @ x[step - 1] + 0.3 * rng.normal(size=n)
    model, report = estimate(x, names(n), edges=names(n))
    assert report.transition == "full"
    np.testing.assert_allclose(model.F, ring, atol=0.25)


@pytest.mark.slow
def test_constant_and_silent_sensors_are_named():
    history = factor_history(60, 8, np.random.default_rng(3))
    history[:, 1] = 7.0
    history[:, 3] = np.nan
    history[:, 5] = 0.0
    history[:57, 6] = np.inf
    model, report = estimate(history, names(8))
    assert report.left_out == ("s3", "s6")
    assert report.constant == ("s1", "s5")
    assert model.names == ("s0", "s1", "s2", "s4", "s5", "s7")
    row = model.mean.copy()
    row[[1, 4]] = np.nan
    recovered = Recovery(model).step(row)
    assert recovered.mean[1] == pytest.approx(7.0, abs=0.1)
    assert recovered.mean[4] == pytest.approx(0.0, abs=1e-6)
    assert (recovered.sd[[1, 4]] > 0).all()


@pytest.mark.slow
def test_a_sensor_that_moves_only_late_does_not_break_the_trial():
    history = factor_history(60, 8, np.random.default_rng(4))
    history[:45, 2] = 5.0
    history[:45, 4] = np.nan
    model, report = estimate(history, names(8))
    assert report.left_out == report.constant == ()
    assert np.isfinite(report.nrmse)
    assert all(1 <= factor < 20 for _, factor in model.calibration)


@pytest.mark.slow
def test_gaps_are_borne():
    rng = np.random.default_rng(5)
    history = factor_history(60, 8, rng)
    gaps = history.copy()
    gaps[rng.random(gaps.shape) < 0.2] = np.nan
    gaps[15:30, ::4] = np.nan
    _, report = estimate(gaps, names(8))
    assert report.missing_share == pytest.approx(np.isnan(gaps).mean(), abs=1e-6)
    assert report.nrmse < min(report.last_value_nrmse, report.mean_nrmse)


@pytest.mark.slow
def test_one_edge_and_one_sensor():
    history = factor_history(60, 3, np.random.default_rng(6))
    _, report = estimate(history, names(3), edges=["e"] * 3)
    assert report.masked_values > 0
    model, _ = estimate(history[:, :1], ["a"])
    assert len(model) == 1


@pytest.mark.slow
def test_trial_outages_are_what_the_filter_would_have_given():
    n = 8
    history = factor_history(30, n, np.random.default_rng(7))
    model = estimate(history, names(n))[0]
    history[5, 3] = np.nan  # no truth, no score; the trial holds the value before
    held = history.copy()
    held[5, 3] = history[4, 3]
    groups = _groups([str(place % 4) for place in range(n)])
    errors, sds = [], []
    for group in groups:
        for start, length in zip(*outages(len(history)), strict=True):
            recovery = Recovery(replace(model, calibration=()))
            recovery.step(held[start])
            for at in range(start + 1, min(start + 1 + length, len(history))):
                lost = held[at].copy()
                lost[group] = np.nan
                estimate_ = recovery.step(lost)
                scored = group[np.isfinite(history[at, group])]
                errors.append(((history[at] - estimate_.mean) / model.scale)[scored])
                sds.append((estimate_.sd / model.scale)[scored])
    trial = run_trial(model, history, groups)
    np.testing.assert_allclose(np.sort(trial.error), np.sort(np.concatenate(errors)), atol=1e-9)
    np.testing.assert_allclose(np.sort(trial.sd), np.sort(np.concatenate(sds)), atol=1e-9)


def test_nothing_to_fit():
    with pytest.raises(ModelError, match="found 5 steps, expected at least 12"):
        estimate(np.zeros((5, 2)), ["a", "b"])
    with pytest.raises(ModelError, match="no sensor has 4 readings"):
        estimate(np.full((20, 2), np.nan), ["a", "b"])
    with pytest.raises(ModelError, match=r"found shape \(20, 2\), expected \(steps, 1\)"):
        estimate(np.zeros((20, 2)), ["a"])
    with pytest.raises(ModelError, match="found 1 edges for 2 sensors"):
        estimate(np.zeros((20, 2)), ["a", "b"], edges=["e"])
    with pytest.raises(ModelError, match="twice"):
        estimate(np.zeros((20, 2)), ["a", "a"])


@pytest.mark.slow
def test_the_last_third_alone_does_not_decide():
    rng = np.random.default_rng(6)
    coupled = factor_history(240, 6, rng, persistence=0.5, own=0.2)
    strange = coupled[-80:].mean(axis=0) + coupled.std(axis=0) * rng.normal(size=(80, 6))  # each on its own
    rows = np.concatenate([coupled[:160], strange])
    base = Model(tuple(names(6)), rows.mean(axis=0), rows.std(axis=0), np.zeros(6), np.eye(6), np.eye(6), np.zeros(6))
    search = StructureSearch(rows, 160, base, [np.array([i]) for i in range(6)], 0)
    search.run()
    found = search.decide()
    assert search.best.shrinkage > found[0].structure.shrinkage
    assert [each.score for each in found] == sorted(each.score for each in found)


@pytest.mark.slow
def test_the_published_joint_stays_a_candidate():
    rows = np.cumsum(np.random.default_rng(7).normal(size=(200, 12)), axis=0)  # each on its own: hopeless
    base = Model(
        tuple(names(12)), rows.mean(axis=0), rows.std(axis=0), np.zeros(12), np.eye(12), np.eye(12), np.zeros(12)
    )
    search = StructureSearch(rows, 134, base, [np.arange(6), np.arange(6, 12)], 0)
    search.run()
    score_of = {each.structure: each.score for each in search.decide()}
    assert score_of[Structure("full", 0.0, 0.0, 1)] > min(score_of.values()) + MUCH_WORSE


def test_a_search_takes_the_same_share_of_every_edge():
    edges = [f"e{i % 7}" for i in range(70)]
    chosen = thinned(edges, 35)
    assert len(set(chosen)) == 35
    assert chosen == sorted(chosen)
    assert [sum(edges[place] == f"e{number}" for place in chosen) for number in range(7)] == [5] * 7
    assert thinned(edges, 70) == list(range(70))


@pytest.mark.slow
def test_a_large_fleet_is_searched_with_some_of_its_sensors_and_tried_with_all(monkeypatch: pytest.MonkeyPatch):
    history = factor_history(90, 24, np.random.default_rng(8))
    edges = [f"e{i % 4}" for i in range(24)]
    _, whole = estimate(history, names(24), edges=edges)
    sizes: list[int] = []
    monkeypatch.setattr("tsunagi.recovery.estimation.SEARCHED", 12)

    def noted(model: Model, *given: Any) -> Trial:
        sizes.append(len(model))
        return run_trial(model, *given)

    monkeypatch.setattr("tsunagi.recovery.estimation.run_trial", noted)
    model, report = estimate(history, names(24), edges=edges)
    assert set(sizes) == {24}, "ranks are tried with all sensors"
    assert len(model) == report.sensors == 24
    assert report.masked_values == whole.masked_values
    assert report.nrmse < 1.1 * whole.nrmse
