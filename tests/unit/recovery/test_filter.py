from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tests.unit.recovery.literal import literal, random_joint
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Factors
from tsunagi.recovery.filter import Recovery, StepEstimate
from tsunagi.recovery.forms import FORMS
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import BOUNDED, EXACT, UNBOUNDED

NAN = float("nan")


def names(n: int) -> list[str]:
    return [f"s{i}" for i in range(n)]


def make(n: int, seed: int = 0, **options: float) -> tuple[Floats, Floats, Model]:
    mean, joint = random_joint(n, np.random.default_rng(seed), **options)
    return mean, joint, Model.from_joint(mean, joint, names(n))


def masked_walk(model: Model, steps: int, rng: np.random.Generator, share: float = 0.3) -> Floats:
    values: Floats = model.mean + model.scale * rng.normal(size=(steps, len(model)))
    values[rng.random(values.shape) < share] = np.nan
    return values


def run(recovery: Recovery, values: Floats) -> list[StepEstimate]:
    return [recovery.step(row) for row in values]


def assert_same(first: StepEstimate, second: StepEstimate) -> None:
    for field in ("mean", "sd", "quality", "bound"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
    share=st.sampled_from([0.0, 0.1, 0.4, 0.8, 1.0]),
    form=st.sampled_from(FORMS),
)
def test_equals_the_papers_equations(n, seed, share, form):
    mean, joint, model = make(n, seed)
    rng = np.random.default_rng(seed + 1)
    values = masked_walk(model, 12, rng, share)
    values[rng.integers(12)] = np.nan  # everything missing
    values[rng.integers(12)] = model.mean  # nothing missing
    means, sds = literal(mean, joint, values)
    for row, estimate in enumerate(run(Recovery(model, form=form), values)):
        np.testing.assert_allclose((estimate.mean - means[row]) / model.scale, 0, atol=1e-8)
        np.testing.assert_allclose((estimate.sd - sds[row]) / model.scale, 0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_papers_equations_for_many_sensors(form):
    mean, joint, model = make(40, 5, ridge=0.05)
    values = masked_walk(model, 30, np.random.default_rng(6), 0.25)
    values[10:20, ::4] = np.nan  # an outage that lasts: what was gathered for it is used again
    means, sds = literal(mean, joint, values)
    estimates = run(Recovery(model, form=form), values)
    np.testing.assert_allclose(([e.mean for e in estimates] - means) / model.scale, 0, atol=1e-9)
    np.testing.assert_allclose(([e.sd for e in estimates] - sds) / model.scale, 0, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_diagonal_transition_equals_its_joint(form):
    _, joint, _ = make(6, 3)
    prior = joint[6:, 6:]
    scale = np.sqrt(np.diag(prior))
    prior = prior / np.outer(scale, scale)
    f = 0.9
    model = Model(
        tuple(names(6)), np.arange(6.0), scale, np.full(6, f), (1 - f**2) * prior, prior, np.linspace(-0.1, 0.1, 6)
    )
    values = masked_walk(model, 25, np.random.default_rng(1))
    means, sds = literal(*model.joint(), values)
    estimates = run(Recovery(model, form=form), values)
    np.testing.assert_allclose(([e.mean for e in estimates] - means) / scale, 0, atol=1e-9)
    np.testing.assert_allclose(([e.sd for e in estimates] - sds) / scale, 0, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_first_step_conditions_the_prior(form):
    joint = np.array([[4.0, 0, 0, 0], [0, 9.0, 0, 0], [0, 0, 4.0, 3.0], [0, 0, 3.0, 9.0]])
    model = Model.from_joint([10.0, 20.0, 10.0, 20.0], joint, ["a", "b"])
    estimate = Recovery(model, form=form).step(np.array([12.0, NAN]))
    assert estimate.mean == pytest.approx([12.0, 20 + 3 / 4 * 2])
    assert estimate.sd == pytest.approx([0.0, np.sqrt(9 - 9 / 4)])
    nothing = Recovery(model, form=form).step(np.array([NAN, NAN]))
    assert nothing.mean == pytest.approx([10.0, 20.0])
    assert nothing.sd == pytest.approx([2.0, 3.0])


def test_single_sensor_is_an_autoregression():
    model = Model.from_joint([5.0], [[4.0, 3.0], [3.0, 4.0]], ["a"])
    recovery = Recovery(model)
    recovery.step(np.array([9.0]))
    first, second = recovery.step(np.array([NAN])), recovery.step(np.array([NAN]))
    assert first.mean[0] == pytest.approx(5 + 0.75 * 4)
    assert second.mean[0] == pytest.approx(5 + 0.75**2 * 4)
    assert first.sd[0] == pytest.approx(2 * np.sqrt(1 - 0.75**2))
    assert second.sd[0] == pytest.approx(2 * np.sqrt(1 - 0.75**4))


def test_measured_values_pass_to_the_last_bit():
    _, _, model = make(5)
    values = masked_walk(model, 1, np.random.default_rng(0), 0.0)[0]
    values[2] = NAN
    recovery = Recovery(model)
    for _ in range(3):
        estimate = recovery.step(values)
        seen = np.arange(5) != 2
        np.testing.assert_array_equal(estimate.mean[seen], values[seen])
        assert (estimate.sd[seen] == 0).all()
        assert (estimate.bound[seen] == 0).all()
        assert (estimate.quality[seen] == EXACT).all()
        assert estimate.quality[2] in (BOUNDED, UNBOUNDED)
        assert np.isnan(values[2]), "the caller's array is not written to"


@pytest.mark.parametrize("form", FORMS)
def test_a_full_step_forgets_what_was_before(form):
    _, _, model = make(6)
    rng = np.random.default_rng(2)
    long, short = Recovery(model, form=form), Recovery(model, form=form)
    run(long, masked_walk(model, 20, rng))
    full = masked_walk(model, 1, rng, 0.0)[0]
    long.step(full)
    short.step(full)
    for row in masked_walk(model, 5, rng, 0.5):
        assert_same(long.step(row), short.step(row))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e200, -1.7e308])
def test_infinite_and_wild_readings_count_as_missing(bad):
    _, _, model = make(4)
    rng = np.random.default_rng(0)
    values = masked_walk(model, 6, rng, 0.0)
    wild, missing = values.copy(), values.copy()
    wild[3, 1], missing[3, 1] = bad, np.nan
    for a, b in zip(run(Recovery(model), wild), run(Recovery(model), missing), strict=True):
        assert_same(a, b)


def test_wrong_number_of_values():
    _, _, model = make(4)
    with pytest.raises(ValueError, match=r"found values of shape \(3,\), expected \(4,\)"):
        Recovery(model).step(np.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"delta": 1.0}, "delta"), ({"delta": 0.0}, "delta"), ({"eps": 0.0}, "eps"), ({"form": "fast"}, "form")],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ModelError, match=message):
        Recovery(make(2)[2], **options)


def test_quality_and_bound_follow_equation_6():
    _, _, model = make(8, 4)
    rng = np.random.default_rng(8)
    values = masked_walk(model, 40, rng, 0.4)
    eps, delta = 0.9, 0.8
    found = set()
    for estimate in run(Recovery(model, eps=eps, delta=delta), values):
        lost = estimate.quality != EXACT
        within = norm.cdf(eps * model.scale[lost] / estimate.sd[lost]) * 2 - 1
        np.testing.assert_array_equal(estimate.quality[lost] == BOUNDED, within >= delta)
        mass = norm.cdf(estimate.bound[lost] / estimate.sd[lost]) * 2 - 1
        np.testing.assert_allclose(mass, delta, atol=1e-12)
        found |= set(estimate.quality.tolist())
    assert found == {EXACT, BOUNDED, UNBOUNDED}


def test_calibration_widens_sd_and_bound_alike():
    _, _, model = make(3)
    wide = replace(model, calibration=((0.9, 2.0),))
    row = np.array([model.mean[0], NAN, model.mean[2]])
    plain, calibrated = Recovery(model).step(row), Recovery(wide).step(row)
    np.testing.assert_allclose(calibrated.sd, 2 * plain.sd)
    np.testing.assert_allclose(calibrated.bound, 2 * plain.bound)
    np.testing.assert_array_equal(calibrated.mean, plain.mean)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_bounds_hold_with_probability_delta_when_the_model_is_right(form):
    mean, joint, model = make(6, 11)
    mean = np.tile(mean[6:], 2)
    # Stationary: the same covariance for both blocks, so that a long simulated path has the model's moments.
    prior = joint[6:, 6:]
    sigma = np.block([[prior, 0.7 * prior], [0.7 * prior, prior]])
    model = Model.from_joint(mean, sigma, names(6))
    rng = np.random.default_rng(12)
    noise = np.linalg.cholesky(0.51 * prior)
    truth = np.empty((1500, 6))
    x = np.linalg.cholesky(prior) @ rng.normal(size=6)
    for step in range(len(truth)):
        truth[step] = mean[:6] + x
        x = 0.7 * x + noise @ rng.normal(size=6)
    given_ = truth.copy()
    given_[:, :2] = np.where((np.arange(1500) % 10 > 0)[:, None], np.nan, truth[:, :2])
    inside = []
    for row, estimate in zip(truth, run(Recovery(model, form=form), given_), strict=True):
        lost = estimate.quality != EXACT
        inside += (np.abs(row - estimate.mean) <= estimate.bound)[lost].tolist()
    assert len(inside) == 2700
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_restored_context_continues_the_same(form):
    _, _, model = make(9, 2)
    values = masked_walk(model, 12, np.random.default_rng(3))
    values[4], values[8] = np.nan, model.mean
    values[5:7, :3] = np.nan
    recovery = Recovery(model, form=form)
    contexts, outputs = [], []
    for row in values:
        contexts.append(recovery.context())
        outputs.append(recovery.step(row))
    for at, context in enumerate(contexts):
        other = Recovery(model, form=form)
        other.step(values[0])  # whatever it held before is gone
        other.resume(context)
        assert other.context() == context
        for row, expected in zip(values[at:], outputs[at:], strict=True):
            assert_same(other.step(row), expected)


def test_context_is_as_small_as_stated():
    n, m = 107, 27
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(n, 2 * n))
    prior = factor @ factor.T / n
    scale = np.sqrt(np.diag(prior))
    prior /= np.outer(scale, scale)
    model = Model(tuple(names(n)), np.zeros(n), scale, np.full(n, 0.9), 0.19 * prior, prior, np.zeros(n))
    recovery = Recovery(model)
    row = rng.normal(size=n)
    recovery.step(row)
    assert len(recovery.context()) <= 8 * n + 150
    row[:m] = np.nan
    recovery.step(row)
    assert len(recovery.context()) <= 8 * n + 4 * m * (m + 3) + 180


def test_context_of_another_model_or_form_or_none():
    _, _, model = make(3, 0)
    _, _, other = make(3, 1)
    recovery = Recovery(model)
    recovery.step(model.mean)
    context = recovery.context()
    with pytest.raises(ModelError, match="another model or form"):
        Recovery(other).resume(context)
    with pytest.raises(ModelError, match="another model or form"):
        Recovery(model, form="covariance").resume(context)
    for garbage in (b"", b"\xff\xff\xff", context[:-3], context + b"\x07"):
        with pytest.raises(ModelError, match="not a context"):
            recovery.resume(garbage)


def test_form_follows_the_condition_number():
    prior = np.array([[1.0, 0.5], [0.5, 1.0]])
    easy = Model(("a", "b"), np.zeros(2), np.ones(2), np.full(2, 0.5), 0.75 * prior, prior, np.zeros(2))
    assert Recovery(easy).form == "precision"
    assert Recovery(easy).nugget == 0.0
    near = np.array([[1.0, 1 - 1e-9], [1 - 1e-9, 1.0]])
    hard = Model(("a", "b"), np.zeros(2), np.ones(2), np.full(2, 0.5), 0.75 * near, near, np.zeros(2))
    recovery = Recovery(hard)
    assert (recovery.form, recovery.nugget) == ("covariance", 0.0)
    assert recovery.condition == pytest.approx(2e9, rel=0.01)
    assert "condition number 2e+09" in recovery.reason
    recovery.step(np.array([0.3, 0.3]))
    assert recovery.step(np.array([0.5, NAN])).mean[1] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_singular_covariance_gets_a_named_nugget(form):
    joint = np.ones((4, 4)) * 0.5  # two sensors that always say the same
    joint[:2, :2] = joint[2:, 2:] = 1.0
    recovery = Recovery(Model.from_joint(np.zeros(4), joint, ["a", "b"]), form=form)
    assert recovery.nugget > 0
    assert "nugget" in recovery.reason
    recovery.step(np.array([1.0, 1.0]))
    for value in (0.5, -0.25, 1.5):
        estimate = recovery.step(np.array([value, NAN]))
        assert estimate.mean[1] == pytest.approx(value, abs=1e-3)
        assert estimate.sd[1] < 1e-3
    assert np.isfinite(recovery.step(np.array([NAN, NAN])).mean).all()


def test_constant_sensors_of_a_given_joint():
    estimate = Recovery(Model.from_joint([7.0, 7.0], np.zeros((2, 2)), ["a"])).step(np.array([NAN]))
    assert estimate.mean[0] == 7.0
    assert estimate.sd[0] < 1e-4


def test_what_is_no_covariance_is_refused():
    bad = np.array([[1.0, 2.0], [2.0, 1.0]])
    model = Model(("a", "b"), np.zeros(2), np.ones(2), np.full(2, 0.5), bad, np.eye(2), np.zeros(2))
    with pytest.raises(ModelError, match="Q: found eigenvalue -1"):
        Recovery(model)


@pytest.mark.parametrize("least", [0.3, 1e-4, 1e-9])
def test_the_condition_number_of_many_sensors_is_that_of_all_eigenvalues(monkeypatch, least):
    n = 60
    rng = np.random.default_rng(9)
    turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
    matrix = (turn * np.geomspace(least, 1.0, n)) @ turn.T
    matrix = (matrix + matrix.T) / 2
    model = Model(tuple(names(n)), np.zeros(n), np.ones(n), np.full(n, 0.5), matrix, np.eye(n), np.zeros(n))
    whole = Recovery(model)
    monkeypatch.setattr("tsunagi.recovery.forms.FEW", 2)
    found = Recovery(model)
    assert found.condition == pytest.approx(whole.condition, rel=1e-3)
    assert (found.form, found.nugget) == (whole.form, whole.nugget)


def test_what_is_no_covariance_of_many_sensors_is_refused(monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.forms.FEW", 2)
    bad = np.eye(20)
    bad[3, 4] = bad[4, 3] = 2.0
    model = Model(tuple(names(20)), np.zeros(20), np.ones(20), np.full(20, 0.5), np.eye(20), bad, np.zeros(20))
    with pytest.raises(ModelError, match="prior: found eigenvalue -1"):
        Recovery(model)


@pytest.mark.parametrize("form", FORMS)
def test_a_broken_recursion_starts_again_from_the_prior(form):
    n = 3
    model = Model(tuple(names(n)), np.zeros(n), np.ones(n), np.full(n, 1e120), np.eye(n), np.eye(n), np.zeros(n))
    recovery = Recovery(model, form=form)
    row = np.array([0.5, NAN, NAN])
    for _ in range(5):
        estimate = recovery.step(row)
        assert np.isfinite(estimate.mean).all()
        assert np.isfinite(estimate.sd).all()
    assert recovery.restarts > 0


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("diagonal", [True, False])
def test_large_models_take_another_way_to_the_same_numbers(monkeypatch, share, diagonal):
    n = 24
    mean, joint = random_joint(n, np.random.default_rng(3))
    if diagonal:
        joint = np.block([[joint[n:, n:], 0.7 * joint[n:, n:]], [0.7 * joint[n:, n:], joint[n:, n:]]])
    model = Model.from_joint(mean, joint)
    assert model.diagonal == diagonal
    rng = np.random.default_rng(4)
    values = mean[n:] + rng.normal(size=(30, n)) * model.scale
    values[rng.random(values.shape) < share] = np.nan
    means, sds = literal(mean, joint, values)
    for cached in (2**16, 100, 2):  # all rows at once, a few, one
        monkeypatch.setattr("tsunagi.recovery.forms.CACHED", cached)
        monkeypatch.setattr("tsunagi.recovery.forms.HALVED", min(cached, 4))
        recovery = Recovery(model)
        for row, mean_row, sd_row in zip(values, means, sds, strict=True):
            found = recovery.step(row)
            np.testing.assert_allclose(found.mean / model.scale, mean_row / model.scale, atol=1e-8)
            np.testing.assert_allclose(found.sd / model.scale, sd_row / model.scale, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_a_widened_filter_starts_with_what_is_known(form: Literal["precision", "covariance"]) -> None:
    _, _, model = make(8, 3)
    part, values = model.select(names(5)), masked_walk(model, 2, np.random.default_rng(1), share=0.4)
    narrow, whole = Recovery(part, form=form), Recovery(model, form=form)
    narrow.step(values[0, :5])
    whole.step(np.where(np.arange(8) < 5, values[0], NAN))  # of the others nothing was read yet
    first, second = narrow.widened(model).step(values[1]), whole.step(values[1])
    for field in ("mean", "sd", "bound"):
        np.testing.assert_allclose(getattr(first, field), getattr(second, field), atol=1e-9)


def test_a_widened_filter_helps_at_once_and_keeps_factors_and_distrust() -> None:
    model = Model.from_joint(np.zeros(6), np.kron(np.array([[1, 0.9], [0.9, 1]]), 0.05 * np.eye(3) + 0.95), names(3))
    narrow = Recovery(model.select(["s0", "s1"]))
    narrow.set_factors(Factors.plain([2.0, 3.0]))
    narrow.distrust(1, out=True)
    narrow.step(np.zeros(2))
    narrow.step(np.array([NAN, 1.0]))
    wide = narrow.widened(model)
    found, alone = wide.step(np.array([NAN, 1.0, 1.0])), narrow.step(np.array([NAN, 1.0]))
    assert 0 < found.bound[0] < 0.7 * alone.bound[0]
    assert (found.sd[:2] > 0).all(), "a distrusted sensor still is"
    assert wide.given_factors is not None
    np.testing.assert_array_equal(wide.given_factors.base, [2.0, 3.0, 1.0])
    with pytest.raises(ModelError, match="first sensors are others"):
        narrow.widened(model.select(["s1", "s0", "s2"]))


def test_another_tolerance_holds_from_the_next_step_on() -> None:
    _, _, model = make(4)
    recovery, other = Recovery(model, eps=1e-6, delta=0.9), Recovery(model, eps=100.0, delta=0.99)
    values = np.array([NAN, 1.0, 2.0, 3.0])
    assert recovery.step(values).quality[0] == UNBOUNDED
    recovery.set_bounds(eps=100.0, delta=0.99)
    other.step(values)
    assert_same(recovery.step(values), other.step(values))


def test_a_large_filter_that_has_read_nothing_believes_its_prior_and_computes_nothing(monkeypatch):
    monkeypatch.setattr("tsunagi.recovery.filter.FEW", 5)
    draw = np.random.default_rng(1)
    root = draw.normal(size=(8, 20))
    prior = root @ root.T / 20
    ones = np.ones(8)
    model = Model(tuple("abcdefgh"), 3 * ones, ones, 0.9 * ones, (1 - 0.9**2) * prior, prior, 0 * ones)
    lazy, straight = Recovery(model), Recovery(model)
    straight._stays_unread = False
    nothing = np.full(8, np.nan)
    first = lazy.step(nothing, 0)
    straight.step(nothing, 0)
    resumed = Recovery(model)
    resumed.resume(lazy.context())
    carried = []
    following = lazy._form.following

    def noted(*given):
        carried.append(given)
        return following(*given)

    monkeypatch.setattr(lazy._form, "following", noted)
    for step in range(1, 5):
        found, expected = lazy.step(nothing, step), straight.step(nothing, step)
        np.testing.assert_array_equal(found.mean, first.mean)
        np.testing.assert_allclose(found.sd, expected.sd, rtol=1e-9)
        np.testing.assert_array_equal(resumed.step(nothing, step).sd, found.sd)
    assert not carried
    some = 3 + draw.normal(size=8)
    some[[1, 4]] = np.nan
    for step in range(5, 8):
        found, expected = lazy.step(some, step), straight.step(some, step)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-8)
        np.testing.assert_allclose(found.sd, expected.sd, atol=1e-8)
        np.testing.assert_array_equal(resumed.step(some, step).mean, found.mean)
