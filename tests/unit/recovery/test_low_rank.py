"""Covariances of low rank, models that have them, and fits that find them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tsunagi.owner.refitter import Refitter
from tsunagi.recovery import estimation, low_rank, moments
from tsunagi.recovery import model as models
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate, preferred, ranks_beside, unfitted
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.helpers import choose_helpers, persistence_share
from tsunagi.recovery.low_rank import OWN_AT_LEAST, LowRank, Spectrum, filled, of_matrix
from tsunagi.recovery.model import LowRankModel, Model
from tsunagi.recovery.moments import GivenMoments, Moments, Structure
from tsunagi.recovery.refit import Refit
from tsunagi.recovery.search import Candidate
from tsunagi.recovery.suspects import Suspects
from tsunagi.runtime.columns import Floats

N, RANK = 40, 3


def covariance(n: int = N, rank: int = RANK, seed: int = 1) -> LowRank:
    draw = np.random.default_rng(seed)
    return LowRank(draw.normal(size=(n, rank)), draw.uniform(0.1, 1.0, n))


def low_rank_model(n: int = N, **others: object) -> LowRankModel:
    draw = np.random.default_rng(2)
    known = covariance(n)
    given = {"profile": draw.normal(size=(6, n)), "calibration": ((0.9, 1.2),), "about": {"window": 10}} | others
    return LowRankModel(
        tuple(f"s{place}" for place in range(n)),
        mean=draw.normal(20, 3, n),
        scale=draw.uniform(0.5, 2, n),
        transition=np.full(n, 0.8),
        noise=known.times(1 - 0.8**2),
        known=known,
        **given,  # type: ignore[arg-type]
    )


def sampled(of: LowRank, steps: int, persistence: float = 0.0, seed: int = 4) -> Floats:
    """Return rows, float64[steps, n], of a stationary process with this covariance."""
    draw = np.random.default_rng(seed)
    shocks = draw.normal(size=(steps, of.rank)) @ of.loadings.T + draw.normal(size=(steps, len(of))) * np.sqrt(of.own)
    rows = shocks.copy()
    for step in range(1, steps):
        rows[step] = persistence * rows[step - 1] + np.sqrt(1 - persistence**2) * shocks[step]
    return rows


def test_an_inverse_is_that_of_the_matrix() -> None:
    of = covariance()
    inverse = of.inverse()
    whole = np.linalg.inv(of.dense())
    every = np.arange(N)
    np.testing.assert_allclose(inverse.block(every, every), whole, atol=1e-10)
    np.testing.assert_allclose(of.variances, np.diag(of.dense()))
    draw = np.random.default_rng(0)
    rows, columns = (np.sort(draw.choice(N, 15, replace=False)) for _ in range(2))
    vector = draw.normal(size=N)
    np.testing.assert_allclose(inverse.times(vector), whole @ vector, atol=1e-9)
    np.testing.assert_allclose(inverse.block(rows, columns), whole[np.ix_(rows, columns)], atol=1e-10)
    np.testing.assert_allclose(inverse.variances, np.diag(whole))
    np.testing.assert_allclose(inverse.variances_given_others(rows), np.diag(np.linalg.inv(whole[np.ix_(rows, rows)])))
    lowest, highest = of.extremes()
    values = np.linalg.eigvalsh(of.dense())
    assert 0 < lowest <= values[0]
    assert values[-1] <= highest <= 2 * values[-1]


def test_a_part_and_a_multiple_are_those_of_the_matrix() -> None:
    of, places = covariance(), np.array([3, 8, 30])
    np.testing.assert_allclose(of.select(places).dense(), of.dense()[np.ix_(places, places)])
    np.testing.assert_allclose(of.times(0.19).dense(), 0.19 * of.dense())


def test_a_filter_of_low_rank_says_what_one_with_whole_matrices_says() -> None:
    """Woodbury's identity is exact: whatever is missing, also nothing, and everything before the first reading."""
    model, draw = low_rank_model(), np.random.default_rng(5)
    slim, whole = Recovery(model), Recovery(model.dense())
    for step in range(40):
        values = model.mean + model.scale * draw.normal(size=N)
        share = 1.0 if step < 3 else draw.choice([0.0, 0.1, 0.5, 1.0])
        values[draw.random(N) < share] = np.nan
        found, wanted = slim.step(values, step), whole.step(values, step)
        for name in ("mean", "sd", "bound"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-8)
        assert found.quality.tolist() == wanted.quality.tolist()
        context = slim.context()
        slim = Recovery(model)
        slim.resume(context)
        x, missing, spread = slim.posterior()
        for mine, other in zip((x, missing, spread), whole.posterior(), strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-8)


def test_nothing_read_yet_takes_no_whole_matrix() -> None:
    model = low_rank_model(5000)
    recovery = Recovery(model)
    found = recovery.step(np.full(5000, np.nan))
    np.testing.assert_allclose(found.sd, 1.2 * model.scale * np.sqrt(model.known.variances))
    assert len(recovery.context()) < 60 * 5000
    values = np.where(np.arange(5000) < 50, np.nan, model.mean)
    assert (recovery.step(values, 1).sd[:50] < found.sd[:50]).all()


def test_a_long_outage_of_many_sensors_has_no_more_causes_than_noise_and_prior() -> None:
    """So neither a step's time nor a context grows with the square of what is missing, or with the steps since."""
    model, draw = low_rank_model(2000), np.random.default_rng(6)
    recovery, sizes = Recovery(model), []
    for step in range(30):
        values = model.mean + model.scale * draw.normal(size=2000)
        values[500 if step < 10 else 100 :] = np.nan
        recovery.step(values, step)
        sizes.append(len(recovery.context()))
    assert max(sizes) < 8 * 2000 * (3 + 2 + 2 * RANK)
    assert recovery.restarts == 0


def test_other_covariances_are_taken_over_exactly() -> None:
    """Helpers come and go: a filter of low rank goes on from the covariance that whole matrices give it."""
    model, draw = low_rank_model(), np.random.default_rng(7)
    half = model.names[:25]
    slim, whole = (Recovery(of) for of in (_part(model, half), model.dense().select(half)))
    for step in range(4):
        values = (model.mean + model.scale * draw.normal(size=N))[:25]
        values[3:9] = np.nan
        slim.step(values, step)
        whole.step(values, step)
    wider = slim.widened(model, 3), whole.widened(model.dense(), 3)
    later = Recovery(_part(model, model.names[5:30])), Recovery(model.dense().select(model.names[5:30]))
    for new, old in zip(later, wider, strict=True):
        new.continue_from(old, 3)
    for pair in (wider, later):
        for mine, other in zip(pair[0].posterior(), pair[1].posterior(), strict=True):
            np.testing.assert_allclose(mine, other, atol=1e-8)


def test_helpers_of_many_missing_sensors_take_no_matrix_of_these() -> None:
    """It is nearly exact: the bounds of what is missing differ by little from those of whole matrices."""
    n = 600
    model, _draw = low_rank_model(n), np.random.default_rng(8)
    own = model.names[:550]
    slim, whole = Recovery(_part(model, own)), Recovery(model.dense().select(own))
    for step in range(4):
        values = (model.mean_at(step) + model.scale * sampled(model.known, 1, seed=step)[0])[:550]
        values[50:] = np.nan
        slim.step(values, step)
        whole.step(values, step)
    wide, exact = slim.widened(model, 3), whole.widened(model.dense(), 3)
    mine, truth = wide.posterior(), exact.posterior()
    np.testing.assert_allclose(mine[0], truth[0], atol=1e-8)
    np.testing.assert_allclose(np.diag(mine[2]), np.diag(truth[2]), rtol=1e-6)
    np.testing.assert_allclose(mine[2][500:], truth[2][500:], atol=1e-8)
    apart = np.abs(mine[2] - truth[2]) / np.sqrt(np.outer(np.diag(truth[2]), np.diag(truth[2])))
    assert apart.max() < 0.1
    assert len(wide.context()) < 8 * n * (4 * RANK + 8)
    for step in range(4, 8):
        values = model.mean_at(step) + model.scale * sampled(model.known, 1, seed=step)[0]
        values[50:550] = np.nan
        found, wanted = wide.step(values, step), exact.step(values, step)
        np.testing.assert_allclose(found.sd, wanted.sd, rtol=0.01)
        assert np.abs(found.mean - wanted.mean)[50:550].max() < 0.05 * wanted.sd[50:550].max()


def _part(model: LowRankModel, names: Sequence[str]) -> LowRankModel:
    """Return a part of a model that is of low rank too, although it has few sensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "DENSE_AT_MOST", 0)
        found = model.select(names)
    assert isinstance(found, LowRankModel)
    return found


def test_a_model_of_low_rank_is_written_and_read(tmp_path: Path) -> None:
    model = low_rank_model()
    sha256 = model.save(tmp_path / "low.model")
    again = Model.load(tmp_path / "low.model")
    assert isinstance(again, LowRankModel)
    assert again.identity == sha256 == model.identity
    assert again.to_bytes() == model.to_bytes()
    np.testing.assert_array_equal(again.Q, model.Q)
    assert again.calibration == model.calibration
    assert again.about == model.about
    assert len(model.to_bytes()) < 8 * N * (2 * RANK + 13) + 2000
    with pytest.raises(ModelError, match="damaged"):
        Model.from_bytes(model.to_bytes()[:-1] + b"x", "file")


def test_a_part_with_few_sensors_has_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "DENSE_AT_MOST", 10)
    model = low_rank_model()
    names = [model.names[place] for place in range(0, 40, 2)]
    large, small = model.select(names), model.select(names[:10])
    assert isinstance(large, LowRankModel)
    assert not isinstance(small, LowRankModel)
    whole = model.dense().select(names)
    for key in ("Q", "prior", "mean", "scale", "transition", "profile"):
        np.testing.assert_allclose(getattr(large, key), getattr(whole, key))
        np.testing.assert_allclose(getattr(small, key), getattr(whole.select(names[:10]), key))
    assert small.calibration == model.calibration


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("known", LowRank(np.zeros((N, 2)), np.zeros(N)), "own variances of known: found 0"),
        ("noise", LowRank(np.zeros((N - 1, 2)), np.ones(N)), "loadings of noise: found shape"),
        ("noise", LowRank(np.full((N, 2), np.nan), np.ones(N)), "loadings of noise: found NaN"),
        ("scale", np.zeros(N), "scale of 's0': found 0.0"),
        ("mean", np.zeros(N + 1), "mean: found shape"),
    ],
)
def test_a_model_of_low_rank_is_checked(key: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        _with(key, value)


def _with(key: str, value: object) -> LowRankModel:
    model = low_rank_model()
    given = {name: getattr(model, name) for name in ("mean", "scale", "transition", "noise", "known")} | {key: value}
    return LowRankModel(model.names, **given)


def test_few_rows_tell_more_by_few_causes() -> None:
    """With fewer rows than sensors, a few causes come nearer to the truth than the covariance of the rows does."""
    truth = LowRank(0.3 * covariance(200, 4).loadings, covariance(200).own)
    rows = sampled(truth, 100)
    found = Spectrum(rows, 32).covariance(32)
    assert 4 <= found.rank < 16, "what cannot be told from noise is left out"
    error = np.linalg.norm(found.dense() - truth.dense())
    assert error < 0.8 * np.linalg.norm(rows.T @ rows / len(rows) - truth.dense())
    np.testing.assert_allclose(found.variances, np.mean(rows**2, axis=0))
    many = Spectrum(sampled(truth, 20_000), 32).covariance(4)
    assert np.linalg.norm(many.dense() - truth.dense()) < 0.05 * np.linalg.norm(truth.dense())


def test_noise_alone_has_no_causes() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 150))
    assert Spectrum(rows, 20).covariance(20).rank <= 1
    assert Spectrum(np.zeros((50, 10)), 5).covariance(5).rank == 0


def test_the_nearest_of_a_matrix_keeps_its_variances() -> None:
    truth = covariance(60, 4)
    found = of_matrix(truth.dense(), 4)
    np.testing.assert_allclose(found.variances, truth.variances)
    assert np.linalg.norm(found.dense() - truth.dense()) < 0.1 * np.linalg.norm(truth.dense())
    np.testing.assert_allclose(of_matrix(truth.dense(), 0).dense(), np.diag(truth.variances))


def test_no_sensor_is_known_exactly_from_others() -> None:
    same = np.repeat(np.random.default_rng(0).normal(size=(100, 2)), 10, axis=1)
    found = Spectrum(same, 8).covariance(8)
    assert (found.own >= 0.99 * OWN_AT_LEAST * found.variances).all()


def test_gaps_are_filled_by_what_is_expected() -> None:
    truth = covariance(60, 3)
    rows = sampled(truth, 400)
    gaps = np.random.default_rng(1).random(rows.shape) < 0.2
    gaps[10] = True
    found, variances = filled(np.where(gaps, np.nan, rows))
    np.testing.assert_array_equal(found[~gaps], rows[~gaps])
    assert (found[10] == 0).all(), "of a step without a reading nothing is known but the mean"
    assert np.mean((found - rows)[gaps] ** 2) < 0.4 * np.mean(rows[gaps] ** 2)
    np.testing.assert_allclose(variances, np.nanmean(np.where(gaps, np.nan, rows) ** 2, axis=0))


@pytest.mark.parametrize(
    "structure", [Structure("diagonal", 0.0, 0.9, rank=4), Structure("innovation", 0.0, 0.9, 1, 4)]
)
def test_models_from_rows_and_from_their_moments_are_alike(structure: Structure) -> None:
    n = 50
    rows = sampled(covariance(n, 3), 3000, 0.9)
    base = unfitted(tuple(f"s{place}" for place in range(n)), np.zeros(n), np.ones(n))
    own = Moments(rows)
    found = own.model(structure, base)
    given = GivenMoments({structure.lag: own.joint(1) if structure.lag else own.covariance()}).model(structure, base)
    for key in ("Q", "prior"):
        mine, other = getattr(found, key), getattr(given, key)
        assert np.linalg.norm(mine - other) < 0.1 * np.linalg.norm(mine)
    np.testing.assert_array_equal(found.transition, given.transition)


def test_a_large_fleet_gets_a_model_of_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with some of the sensors, tried with all, without any matrix of all of them; and it recovers as well."""
    n = 60
    rows = sampled(covariance(n, 3, seed=9), 240, 0.9)
    names, edges = [f"s{place}" for place in range(n)], [f"e{place % 6}" for place in range(n)]
    dense, report = estimate(rows, names, edges=edges)
    assert report.rank == 0
    for name, value in (("SEARCHED", 40), ("THINNED", 30), ("WHOLE_CHOSEN", 40), ("MOMENTS_AT_MOST", 40)):
        monkeypatch.setattr(estimation, name, value)
    monkeypatch.setattr(LowRank, "dense", _refused)
    model, slim = estimate(rows, names, edges=edges)
    assert isinstance(model, LowRankModel)
    assert slim.rank > 0
    assert slim.nrmse < 1.02 * report.nrmse
    assert len(model.to_bytes()) < len(dense.to_bytes())


@pytest.mark.parametrize("steps", [12, 18, 24, 30])
def test_a_short_history_of_a_large_fleet_is_of_low_rank_too(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole matrices of so many sensors would take gigabytes, however little is known of them."""
    for name, value in (("SEARCHED", 40), ("THINNED", 30), ("WHOLE_CHOSEN", 40), ("MOMENTS_AT_MOST", 40)):
        monkeypatch.setattr(estimation, name, value)
    rows = sampled(covariance(60, 3, seed=9), steps, 0.9)
    model, report = estimate(rows, [f"s{place}" for place in range(60)], edges=[f"e{place % 6}" for place in range(60)])
    assert isinstance(model, LowRankModel)
    assert 0 < report.rank < steps


def _refused(_: LowRank) -> Floats:
    raise AssertionError("a matrix of all sensors")


def test_low_rank_is_taken_unless_it_errs_more() -> None:
    whole = Candidate(Structure("diagonal", 0.3, 0.9), profiled=False, squares=(0.25,))
    for error, taken in ((0.505, True), (0.52, False)):
        low = Candidate(Structure("diagonal", 0.3, 0.9, rank=8), profiled=False, squares=(error**2,))
        assert (preferred([whole, low], 2000)[0] is low) == taken
        assert preferred([whole, low], estimation.WHOLE_CHOSEN + 1)[0] is low
    assert preferred([whole], 20_000) == [whole]
    assert [tried.rank for tried in ranks_beside(low.structure, 60)] == [8, 16]
    assert ranks_beside(whole.structure, 60) == [whole.structure]


def test_a_slot_too_large_for_whole_matrices_is_not_refitted() -> None:
    recovery = Recovery(low_rank_model(1001))
    refitter = Refitter(recovery, ["e"] * 1001, least_steps=1)
    assert refitter.fault == ("a refit takes whole matrices: found 1001 sensors in the slot, expected at most 1000")
    refitter.observe(0, recovery.model.mean, recovery.step(recovery.model.mean))
    assert refitter.due() is None


def test_a_refit_keeps_to_low_rank() -> None:
    """What a slot learns is regularised as the fit was: by the number of causes."""
    n = 30
    of = covariance(n, 3)
    base = unfitted(tuple(f"s{place}" for place in range(n)), np.zeros(n), np.ones(n))
    structure = Structure("diagonal", 0.0, 0.9, rank=3)
    model = moments.of_covariance(of.dense(), structure, base)
    about = {"structure": {"transition": "diagonal", "shrinkage": 0.0, "persistence": 0.9, "lag": 0, "rank": 3}}
    refit = Refit(model.with_words(about=about | {"steps": 500}), half_life=500.0)
    for step, row in enumerate(sampled(of, 64, 0.9)):
        refit.observe(row, step)
    found = refit.model()
    values = np.linalg.eigvalsh(found.prior - np.diag(low_rank.of_matrix(found.prior, 3).own))
    assert (np.abs(values[:-3]) < 0.2 * values[-1]).all()


def test_helpers_are_chosen_as_with_whole_matrices() -> None:
    model = low_rank_model(60)
    slot, missing = np.arange(0, 60, 4), np.arange(0, 20)
    for precision in (None, model.known.inverse()):
        whole = None if precision is None else np.asarray(np.linalg.inv(model.prior), dtype=np.float64)
        found = choose_helpers(model.known, slot, missing, 0.1, cap=5, precision=precision)
        wanted = choose_helpers(model.prior, slot, missing, 0.1, cap=5, precision=whole)
        assert found.chosen.tolist() == wanted.chosen.tolist()
        assert found.reason == wanted.reason
        np.testing.assert_allclose(found.variance, wanted.variance)
    np.testing.assert_allclose(persistence_share(model), persistence_share(model.dense()))


def test_suspects_are_found_as_with_whole_matrices() -> None:
    model = low_rank_model()
    slim, whole = Suspects(model), Suspects(model.dense())
    for step, row in enumerate(sampled(model.known, 120, 0.8)):
        values = model.mean_at(step) + model.scale * row
        values[7] += 30 * model.scale[7] * (step > 60)
        verdicts = [suspects.observe(step, values, model.mean_at(step)) for suspects in (slim, whole)]
        assert [(item.sensor, item.out) for item in verdicts[0]] == [(item.sensor, item.out) for item in verdicts[1]]
    assert slim.out[7]
