"""Sensors that tell nothing, or nothing new; and fits whose search saw a part of the history alone."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.recovery.test_estimation import factor_history, names
from tsunagi.recovery.estimation import base_of, estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import GivenMoments, Moments
from tsunagi.recovery.search import HistoryPart


@pytest.mark.slow
def test_duplicated_and_dependent_sensors_are_named_and_their_model_can_be_used_and_kept(tmp_path):
    history = factor_history(150, 8, np.random.default_rng(8))
    history[:, 3] = history[:, 6] = history[:, 1]
    history[:, 4] = history[:, 0] + history[:, 2]
    model, report = estimate(history, names(8))
    file = tmp_path / "a.model"
    model.save(file)
    assert report.duplicated == (("s1", "s3", "s6"),)
    assert model.about["duplicated"] == [["s1", "s3", "s6"]]
    assert Model.load(file).about == model.about
    recovery = Recovery(model)
    recovery.step(history[-2])
    lost = history[-1].copy()
    lost[[3, 4]] = np.nan
    found = recovery.step(lost)
    assert np.abs(found.mean[[3, 4]] - history[-1, [3, 4]]).max() < 0.2 * model.scale[[3, 4]].max()


@pytest.mark.slow
def test_a_fit_of_what_is_singular_says_so_in_its_file(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "tsunagi.recovery.estimation.choose_form", lambda model: replace(choose_form(model), condition=np.inf)
    )
    model, report = estimate(factor_history(60, 4, np.random.default_rng(9)), names(4))
    assert report.condition == np.inf
    model.save(tmp_path / "a.model")
    assert Model.load(tmp_path / "a.model").about["condition"] is None


@pytest.mark.slow
def test_a_model_of_more_than_the_history_that_was_searched():
    history = factor_history(400, 5, np.random.default_rng(10))
    asked: list[tuple[int, ...]] = []

    def whole(lags: tuple[int, ...], profile: tuple[int, ...]) -> HistoryPart:
        asked.append(lags)
        assert profile == ()
        base = base_of(tuple(names(5)), history[-100:], profile, 0)
        moments = Moments((history - history.mean(axis=0)) / base.scale)
        given = GivenMoments({lag: moments.joint(lag) if lag else moments.covariance() for lag in lags})
        return HistoryPart(base.around(history.mean(axis=0), None), given)

    model, report = estimate(history[-100:, :4], names(4), whole=whole)
    assert len(asked) == 1
    assert report.lag in asked[0]
    assert model.names == tuple(names(5))
    np.testing.assert_array_equal(model.mean, history.mean(axis=0))
    np.testing.assert_allclose(model.scale, history[-100:].std(axis=0, ddof=1))
