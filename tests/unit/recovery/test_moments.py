from dataclasses import asdict, replace

import numpy as np
import pytest

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Moments, Structure, covariance, detect_period, of_joint, profile_of
from tsunagi.recovery.refit import Refit, moments_of
from tsunagi.runtime.columns import Floats


def base(n: int) -> Model:
    zeros = np.zeros(n)
    return Model(tuple(f"s{i}" for i in range(n)), zeros, zeros + 1, zeros, np.eye(n), np.eye(n), zeros)


def walk(steps: int, n: int, *, persistence: float = 0.8, seed: int = 0) -> Floats:
    """Autoregressions whose noise is shared in pairs."""
    rng = np.random.default_rng(seed)
    mix = np.kron(np.eye(n // 2), np.array([[1.0, 0.0], [0.9, np.sqrt(1 - 0.81)]]))
    x = np.zeros((steps, n))
    for step in range(1, steps):
        x[step] = persistence * x[step - 1] + np.sqrt(1 - persistence**2) * mix @ rng.normal(size=n)
    return x


FITTED = Moments(walk(300, 4)).model(Structure("innovation", 0.1, 0.8, 1), base(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "structure",
    [Structure("diagonal", 0.2, 0.8), Structure("innovation", 0.1, 0.8, 3), Structure("full", 0.1, 0.0, 1)],
)
def test_moments_come_back_from_a_model(structure):
    moments = Moments(walk(5000, 4))
    model = moments.model(structure, base(4))
    again = moments_of(model, structure)
    expected = moments.covariance() if structure.lag == 0 else moments.joint(structure.lag)
    np.testing.assert_allclose(again, expected, atol=0.03)  # but for what is not stationary about a sample


@pytest.mark.slow
def test_innovations_of_a_known_process():
    x = walk(40_000, 4)
    for lag in (1, 3):
        model = Moments(x).model(Structure("innovation", 0.0, 0.8, lag), base(4))
        truth = 0.36 * np.kron(np.eye(2), np.array([[1, 0.9], [0.9, 1]]))
        np.testing.assert_allclose(model.Q, truth, atol=0.02)


@pytest.mark.slow
def test_full_of_a_known_process_keeps_the_base_units():
    size = np.array([1.0, 10.0, 0.1, 5.0])
    model = of_joint(Moments(walk(40_000, 4) * size).joint(1), Structure("full", 0.0, 0.0, 1), base(4))
    np.testing.assert_allclose(model.F * size / size[:, None], 0.8 * np.eye(4), atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(model.prior)), size, rtol=0.05)


def test_covariance_of_gaps_is_one():
    rows = walk(300, 6)
    rows[np.random.default_rng(1).random(rows.shape) < 0.4] = np.nan
    assert np.linalg.eigvalsh(covariance(rows))[0] > -1e-12


def test_profile_has_the_wave_and_only_its_harmonics():
    steps = np.arange(24 * 30)
    rows = np.stack([np.sin(2 * np.pi * steps / 24), np.cos(2 * np.pi * 2 * steps / 24 + 1)], axis=1)
    noisy = rows + 0.1 * np.random.default_rng(0).normal(size=rows.shape)
    noisy[::7] = np.nan
    found = profile_of(noisy, 24, 3, first_step=5)
    np.testing.assert_allclose(np.roll(found, -5, axis=0), rows[:24], atol=0.1)


@pytest.mark.parametrize(("period", "found"), [(24, 24), (50, 50), (None, None)])
def test_a_period_is_found_where_there_is_one(period, found):
    x = walk(600, 4, persistence=0.5)
    if period:
        x = x + 1.5 * np.sin(2 * np.pi * np.arange(600) / period)[:, None]
    assert detect_period(x) == found


@pytest.mark.slow
def test_a_fit_takes_up_a_profile_that_helps_and_no_other():
    x = walk(300, 4, persistence=0.5)
    names = [f"s{i}" for i in range(4)]
    edges = ["a", "a", "b", "b"]
    wave = 2 * np.sin(2 * np.pi * (100 + np.arange(300)) / 24)
    model, report = estimate(x + wave[:, None] * [1, 1, -1, 0.5], names, edges=edges, period=24, first_step=100)
    assert report.profile[0] == 24
    assert model.profile is not None
    assert model.mean_at(106)[0] - model.mean_at(118)[0] == pytest.approx(wave[6] - wave[18], abs=0.5)
    assert not estimate(x, names, edges=edges, period=24)[1].profile
    assert estimate(x + wave[:, None], names, edges=edges, period="auto")[1].profile[0] == 24
    with pytest.raises(ModelError, match="period: found 1"):
        estimate(x, names, edges=edges, period=1)


@pytest.mark.slow
def test_a_model_with_a_profile_survives_its_file(tmp_path):
    x = walk(100, 4) + 3 * np.sin(2 * np.pi * np.arange(100) / 12)[:, None]
    model = estimate(x, [f"s{place}" for place in range(4)], period=12, edges=["a", "a", "b", "b"])[0]
    assert model.profile is not None
    model.save(tmp_path / "a.model")
    again = Model.load(tmp_path / "a.model")
    assert again.to_bytes() == model.to_bytes()
    np.testing.assert_array_equal(again.mean_at(17), model.mean_at(5))
    part = model.select(["s2", "s0"])
    assert part.mean_at(7).tolist() == model.mean_at(7)[[2, 0]].tolist()


def refittable(x: Floats) -> Model:
    structure = Structure("innovation", 0.05, 0.8, 1)
    about = {"structure": asdict(structure), "steps": len(x)}
    return replace(Moments(x).model(structure, base(4)), about=about)


def test_a_refit_follows_a_level_and_a_coupling_that_moved():
    x = walk(600, 4)
    model = refittable(x[:300])
    recovery, refit = Recovery(model), Refit(model, half_life=100)
    later = walk(1000, 4, seed=5)
    later = later[:, [0, 2, 1, 3]] + 3.0  # other pairs, another level
    for step, row in enumerate(later):
        recovery.step(row, step)
        refit.observe(row, step)
        if step % 50 == 49:
            recovery.follow(refit.model())
    new = recovery.model
    assert new.mean == pytest.approx([3, 3, 3, 3], abs=0.5)
    correlation = new.prior / np.sqrt(np.outer(np.diag(new.prior), np.diag(new.prior)))
    assert correlation[0, 2] > 0.6
    assert abs(correlation[0, 1]) < 0.4


@pytest.mark.slow
def test_a_refit_during_an_outage_does_not_learn_that_sensors_stand_still():
    x = walk(2000, 4)
    model = refittable(x[:500])
    recovery, refit = Recovery(model), Refit(model, half_life=200)
    for step, row in enumerate(x[500:]):
        hidden = row.copy()
        hidden[1] = np.nan  # for ever
        recovery.step(hidden, step)
        refit.observe(hidden, step)
        if step % 100 == 99:
            recovery.follow(refit.model())
    assert np.sqrt(recovery.model.prior[1, 1]) == pytest.approx(1.0, abs=0.35)


def test_a_refit_says_what_it_cannot_start_from():
    with pytest.raises(ModelError, match="expected that of a fitted model"):
        Refit(base(4))
    with pytest.raises(ModelError, match="shrinkage 1"):
        moments_of(base(4), Structure("diagonal", 1.0, 0.5))


@pytest.mark.parametrize("form", ["precision", "covariance"])
def test_following_a_model_of_the_same_numbers_changes_nothing(form):
    model = FITTED
    one, other = Recovery(model, form=form), Recovery(model, form=form)
    rng = np.random.default_rng(3)
    for step in range(30):
        row = rng.normal(size=4)
        row[rng.random(4) < 0.5] = np.nan
        other.follow(model)
        np.testing.assert_array_equal(one.step(row, step).mean, other.step(row, step).mean)
    moved = replace(model, scale=2 * model.scale)
    with pytest.raises(ModelError, match="another scale"):
        one.follow(moved)


@pytest.mark.parametrize("form", ["precision", "covariance"])
def test_a_fork_goes_its_own_way_from_the_same_state(form):
    model = FITTED
    filter_ = Recovery(model, form=form)
    row = np.array([0.1, np.nan, 0.3, np.nan])
    filter_.step(row)
    fork = filter_.fork()
    assert np.array_equal(fork.step(row).mean, filter_.step(row).mean)
    fork.step(np.full(4, np.nan))
    clean = Recovery(model, form=form)
    clean.step(row)
    clean.step(row)
    assert np.array_equal(clean.step(row).mean, filter_.step(row).mean)
    x, missing, spread = filter_.posterior()
    assert missing.tolist() == [1, 3]
    assert np.sqrt(np.diag(spread)) * model.scale[missing] * model.inflation(0.9) == pytest.approx(
        filter_.step(row).sd[missing], rel=0.2
    )
    assert x[0] == pytest.approx((0.1 - model.mean[0]) / model.scale[0])


def test_a_period_near_a_third_of_the_history_is_looked_for_within_it():
    wave = np.sin(2 * np.pi * np.arange(300) / 95)
    assert detect_period(wave[:, None] + 0.1 * np.random.default_rng(0).normal(size=(300, 4))) in range(93, 98)
