from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.unit.recovery.test_moments import base, walk
from tsunagi.recovery.averaging import ModelAverage
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Moments, Structure
from tsunagi.recovery.refit import FadingMoments, Refit
from tsunagi.recovery.search import Candidate
from tsunagi.runtime.columns import Floats

EDGES = ["a", "b", "c", "d"]
ALONE = Structure("diagonal", 0.9, 0.5)
COUPLED = Structure("full", 0.0, 0.0, 1)


def ring(steps: int, seed: int = 0) -> Floats:
    """Each sensor shows what its neighbour showed a step before: only a full F tells it."""
    rng = np.random.default_rng(seed)
    turn = np.roll(np.eye(4), 1, axis=0)
    x = np.zeros((steps, 4))
    for step in range(1, steps):
        x[step] = 0.95 * turn @ x[step - 1] + np.sqrt(1 - 0.95**2) * rng.normal(size=4)
    return x


def candidate(structure: Structure, square: float = 0.5, *, profiled: bool = False) -> Candidate:
    return Candidate(structure, profiled, (square,) * 3)


def model_of(x: Floats, structure: Structure, candidates: list[Candidate], profile: Floats | None = None) -> Model:
    moments = Moments(x)
    about = {
        "structure": asdict(structure),
        "steps": len(x),
        "candidates": [each.written() for each in candidates],
    }
    made = moments.model(structure, base(4))
    return replace(made, about=about, moments={1: moments.joint(1)}, profile=profile)


def follow(model: Model, x: Floats, *, first: int = 0, every: int = 20) -> tuple[Recovery, ModelAverage]:
    recovery = Recovery(model)
    average = ModelAverage(model, recovery, EDGES)
    for step, row in enumerate(x, first):
        recovery.step(row, step)
        average.observe(row, step)
        if step % every == every - 1:
            recovery.follow(average.best(), step)
    return recovery, average


@pytest.mark.slow
def test_weight_moves_to_the_structure_that_errs_less():
    x = ring(800)
    model = model_of(x[:100], ALONE, [candidate(ALONE, 0.2), candidate(COUPLED, 0.3)])
    average = ModelAverage(model, Recovery(model), EDGES)
    assert average.weights()[0] > 0.9  # what the fit found, until something else is seen
    recovery, average = follow(model, x[100:])
    assert average.weights()[1] > 0.95
    np.testing.assert_allclose(recovery.model.F, 0.95 * np.roll(np.eye(4), 1, axis=0), atol=0.15)


@pytest.mark.slow
def test_weight_moves_back_when_the_world_does():
    x = np.concatenate([ring(600), np.random.default_rng(1).normal(size=(600, 4))])
    model = model_of(ring(100, 3), COUPLED, [candidate(ALONE, 0.5), candidate(COUPLED, 0.2)])
    recovery = Recovery(model)
    average = ModelAverage(model, recovery, EDGES, half_life=60)
    weights = []
    for step, row in enumerate(x):
        recovery.step(row, step)
        average.observe(row, step)
        weights.append(float(average.weights()[1]))
    assert np.mean(weights[400:600]) > 0.95
    assert np.mean(weights[1000:]) < 0.7


def test_candidates_that_err_alike_are_averaged():
    x = ring(300)
    model = model_of(x, ALONE, [candidate(ALONE), candidate(COUPLED)])
    best = ModelAverage(model, Recovery(model), EDGES).best()
    parts = [Moments(x).model(structure, base(4)) for structure in (ALONE, COUPLED)]
    np.testing.assert_allclose(best.F, (parts[0].F + parts[1].F) / 2, atol=1e-9)
    np.testing.assert_allclose(best.Q, (parts[0].Q + parts[1].Q) / 2, atol=1e-2)


def test_one_structure_alone_is_a_refit():
    x = walk(600, 4)
    structure = Structure("innovation", 0.05, 0.8, 1)
    made = Moments(x[:300]).model(structure, base(4))
    model = replace(made, about={"structure": asdict(structure), "steps": 300})
    _, average = follow(model, x[300:])
    refit = Refit(model)
    for step, row in enumerate(x[300:]):
        refit.observe(row, step)
        if step % 20 == 19:
            refit.model()  # rows are folded in when a model is asked for
    again, best = refit.model(), average.best()
    for key in ("mean", "Q", "prior", "F"):
        np.testing.assert_allclose(getattr(best, key), getattr(again, key), atol=1e-6)


def test_another_goes_on_from_what_one_has_found(tmp_path):
    x = ring(700)
    model = model_of(x[:200], ALONE, [candidate(ALONE), candidate(COUPLED)])
    _, average = follow(model, x[200:])
    average.best().save(tmp_path / "a.model")
    read = Model.load(tmp_path / "a.model")
    other = ModelAverage(read, Recovery(read), EDGES)
    np.testing.assert_allclose(other.scores(), average.scores(), atol=1e-9)
    np.testing.assert_allclose(other.best().F, average.best().F, atol=1e-6)
    np.testing.assert_allclose(other.best().mean, average.best().mean, atol=0.02)


def test_the_same_steps_give_the_same_bytes():
    x = ring(300)
    model = model_of(x[:200], ALONE, [candidate(ALONE), candidate(COUPLED)])
    bodies = {follow(model, x[200:])[1].best().to_bytes() for _ in range(2)}
    assert len(bodies) == 1


def test_a_profile_is_taken_by_the_share_of_those_that_have_it():
    wave = np.sin(2 * np.pi * np.arange(12) / 12)[:, None] * np.ones(4)
    x = ring(240)
    model = model_of(x, COUPLED, [candidate(COUPLED, profiled=True), candidate(COUPLED)], profile=wave)
    best = ModelAverage(model, Recovery(model), EDGES).best()
    assert best.profile is not None
    np.testing.assert_allclose(best.profile, 0.5 * wave)
    again = ModelAverage(best, Recovery(best), EDGES).best()
    assert again.profile is not None
    np.testing.assert_allclose(again.profile, 0.5 * wave)  # not half of the half
    np.testing.assert_allclose(again.Q, best.Q, atol=1e-9)


def test_without_its_profile_a_model_is_that_of_the_readings_themselves():
    wave = np.stack([np.sin(2 * np.pi * (np.arange(12) + shift) / 12) for shift in range(4)], axis=1)
    x = ring(2400)
    model = model_of(x, COUPLED, [candidate(COUPLED, profiled=True), candidate(COUPLED, 1e-4)], profile=wave)
    best = ModelAverage(model, Recovery(model), EDGES).best()
    plain = Moments(x + np.tile(wave, (200, 1))).model(COUPLED, base(4))
    assert best.profile is None
    np.testing.assert_allclose(best.F, plain.F, atol=0.05)
    np.testing.assert_allclose(best.prior, plain.prior, atol=0.1)


def test_only_living_edges_are_masked_and_a_broken_model_is_borne():
    x = ring(400)
    model = model_of(x[:200], ALONE, [candidate(ALONE), candidate(COUPLED)])
    recovery = Recovery(model)
    average = ModelAverage(model, recovery, EDGES)
    before = average.scores()
    for step in range(60):
        recovery.step(np.full(4, np.nan), step)
        average.observe(np.full(4, np.nan), step)
    np.testing.assert_allclose(average.scores(), before)  # nobody lived: nothing was learnt
    for step in range(60, 200):
        row = np.full(4, 1e60)
        recovery.step(row, step)
        average.observe(row, step)
    assert np.isfinite(average.scores()).all()


def test_gaps_are_filled_pattern_by_pattern_as_row_by_row():
    rng = np.random.default_rng(4)
    x = walk(32, 4)
    x[rng.random(x.shape) < 0.3] = np.nan
    start = Moments(walk(500, 4, seed=9)).covariance()
    bank = FadingMoments(start, steps=50, half_life=50, lag=0)
    for row in x:
        bank.observe(row)
    mean, found = bank.found()
    rows = min(50 + 32, 1 / (1 - 0.5 ** (1 / 50)))
    rate = 1 / rows
    total, second = np.zeros(4), (1 - rate) ** 32 * start
    known = np.where(np.eye(4) > 0, start, rows / (rows + 4) * start)  # few rows: less is believed of other sensors
    for age, row in enumerate(x[::-1]):
        lost, seen = np.flatnonzero(np.isnan(row)), np.flatnonzero(~np.isnan(row))
        gain = np.linalg.solve(known[np.ix_(seen, seen)], known[np.ix_(seen, lost)]) if len(seen) else None
        whole, spread = np.where(np.isnan(row), 0.0, row), np.zeros((4, 4))
        if gain is not None:
            whole[lost] = gain.T @ row[seen]
            spread[np.ix_(lost, lost)] = known[np.ix_(lost, lost)] - gain.T @ known[np.ix_(seen, lost)]
        else:
            spread = known
        total += rate * (1 - rate) ** age * whole
        second += rate * (1 - rate) ** age * (np.outer(whole, whole) + spread)
    np.testing.assert_allclose(mean, total, atol=1e-6)
    np.testing.assert_allclose(found, second - np.outer(total, total), atol=1e-6)


def test_more_sensors_than_rows_do_not_fill_gaps_with_noise():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 60))  # independent: nothing can be told of one sensor from others
    bank = FadingMoments(np.cov(rows.T), steps=40, half_life=40, lag=0)
    gone = rng.random((32, 60)) < 0.3
    for row in np.where(gone, np.nan, rng.normal(size=(32, 60))):
        bank.observe(row)
    _, found = bank.found()
    assert float(np.diag(found).max()) < 4.0


@pytest.mark.slow
def test_a_fit_hands_over_candidates_and_moments(tmp_path):
    x = ring(240) + 3 * np.sin(2 * np.pi * np.arange(240) / 12)[:, None]
    model, report = estimate(x, ["a", "b", "c", "d"], edges=EDGES, period=12)
    found = Candidate.of(model.about)
    assert [each.score for each in found] == sorted(each.score for each in found)
    assert found[0].structure == Structure.of(model.about)
    assert report.profile[0] == 12
    assert {each.profiled for each in found} == {True, False}
    assert model.moments[1].shape == (8, 8)
    model.save(tmp_path / "a.model")
    again = Model.load(tmp_path / "a.model")
    np.testing.assert_array_equal(again.moments[1], model.moments[1])
    assert again.to_bytes() == model.to_bytes()
    part = again.select(["c", "a"])
    np.testing.assert_array_equal(part.moments[1], model.moments[1][np.ix_([2, 0, 6, 4], [2, 0, 6, 4])])
    ModelAverage(part, Recovery(part), ["c", "a"]).best()


def test_moments_and_candidates_are_checked():
    model = model_of(ring(50), ALONE, [])
    with pytest.raises(ModelError, match=r"moments of lag 1: found shape \(4, 4\), expected \(8, 8\)"):
        replace(model, moments={1: np.eye(4)})
    with pytest.raises(ModelError, match="moments of lag 0 is not symmetric"):
        replace(model, moments={0: np.triu(np.ones((4, 4)))})
    with pytest.raises(ModelError, match="candidates: found"):
        Candidate.of({"candidates": [{**asdict(ALONE), "profiled": True}]})


@pytest.mark.parametrize("form", ["precision", "covariance"])
def test_a_filter_that_follows_a_model_with_another_profile_stays_where_it_is(form):
    wave = np.sin(2 * np.pi * np.arange(12) / 12)[:, None] * np.ones(4)
    plain = Moments(ring(200)).model(ALONE, base(4))
    recovery = Recovery(plain, form=form)
    for step in range(5):
        found = recovery.step(np.array([1.0, np.nan, 2.0, np.nan]), step)
    recovery.follow(replace(plain, profile=wave), 4)
    x, _, _ = recovery.posterior()
    np.testing.assert_allclose(recovery.model.mean_at(4) + recovery.model.scale * x, found.mean, atol=1e-12)
