from dataclasses import replace

import numpy as np
import pytest

from tests.unit.recovery.literal import random_joint
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.symmetric import mirror
from tsunagi.runtime.columns import Floats

ABC = ("a", "b", "c", "d", "e")


def make(seed: int = 0) -> tuple[Floats, Floats, Model]:
    mean, joint = random_joint(5, np.random.default_rng(seed))
    return mean, joint, Model.from_joint(mean, joint, ABC)


def diagonal() -> Model:
    prior = np.array([[1.0, 0.6, 0.2], [0.6, 1.0, 0.4], [0.2, 0.4, 1.0]])
    f = np.array([0.9, 0.8, 0.7])
    noise = prior - f[:, None] * prior * f
    return Model(("a", "b", "c"), np.arange(3.0), np.array([1.0, 2.0, 4.0]), f, noise, prior, np.zeros(3))


def assert_close(first: Model, second: Model) -> None:
    assert first.names == second.names
    for key in ("mean", "scale", "F", "Q", "prior", "drift"):
        np.testing.assert_allclose(getattr(first, key), getattr(second, key), rtol=1e-9, atol=1e-10, err_msg=key)


def test_joint_comes_back():
    mean, joint, model = make()
    back_mean, back = model.joint()
    np.testing.assert_allclose(back_mean, mean, rtol=1e-12)
    size = np.sqrt(np.diag(joint))
    np.testing.assert_allclose(back / np.outer(size, size), joint / np.outer(size, size), atol=1e-12)


def test_one_mean_for_both_blocks():
    mean, joint, _ = make()
    np.testing.assert_array_equal(Model.from_joint(mean[:5], joint, ABC).drift, 0)


@pytest.mark.parametrize("keep", [[0], [1, 3], [4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
def test_selection_is_the_model_of_the_restricted_joint(keep):
    mean, joint, model = make(3)
    both = [*keep, *(5 + place for place in keep)]
    expected = Model.from_joint(mean[both], joint[np.ix_(both, both)], [ABC[place] for place in keep])
    assert_close(model.select([ABC[place] for place in keep]), expected)


def test_selection_of_a_diagonal_transition_stays_diagonal():
    model = diagonal()
    part = model.select(["c", "a"])
    assert part.diagonal
    mean, joint = model.joint()
    both = [2, 0, 5, 3]
    assert_close(part, Model.from_joint(mean[both], joint[np.ix_(both, both)], ["c", "a"]))


def test_selection_keeps_calibration_and_twice_is_once():
    model = replace(make()[2], calibration=((0.9, 1.5),), about={"rows": [0, 10]})
    part = model.select(["b", "c", "d"]).select(["d", "b"])
    assert_close(part, model.select(["d", "b"]))
    assert part.calibration == model.calibration


def test_selection_of_unknown_sensors():
    with pytest.raises(ModelError, match="no sensor 'x' among its 5"):
        make()[2].select(["a", "x"])
    with pytest.raises(ModelError, match="no sensors"):
        make()[2].select([])
    with pytest.raises(ModelError, match="'a' stands twice"):
        make()[2].select(["a", "a"])


@pytest.mark.parametrize(
    ("mean", "joint", "message"),
    [
        (np.zeros(4), np.eye(3), r"expected \(4,\) or \(2,\), and \(4, 4\)"),
        (np.zeros(3), np.eye(4), r"found mean \(3,\)"),
        (np.array([0, 0, np.nan, 0]), np.eye(4), "NaN"),
        (np.zeros(4), np.diag([1.0, 1, 1, np.inf]), "NaN or infinity"),
        (np.zeros(4), np.eye(4) + np.triu(np.ones((4, 4)), 1), "not symmetric"),
        (np.zeros(4), np.diag([1.0, 1.0, -1.0, 1.0]), "negative variance"),
        (np.zeros(4), np.ones((4, 4)) * 2 - np.eye(4), "eigenvalue -1"),
    ],
)
def test_what_is_no_joint_is_refused(mean, joint, message):
    with pytest.raises(ModelError, match=message):
        Model.from_joint(mean, joint, ["a", "b"])


def test_inflation_lies_between_its_levels():
    model = replace(make()[2], calibration=((0.8, 1.0), (0.9, 2.0)))
    assert model.inflation(0.5) == 1.0
    assert model.inflation(0.9) == pytest.approx(2.0)
    assert 1.0 < model.inflation(0.85) < 2.0
    assert model.inflation(0.999) == pytest.approx(2.0)
    assert make()[2].inflation(0.9) == 1.0


@pytest.mark.parametrize("calibration", [((0.9, 1.0), (0.8, 1.0)), ((0.9, 0.0),), ((1.0, 1.0),), ((0.9, np.inf),)])
def test_calibration_is_checked(calibration):
    with pytest.raises(ModelError, match="calibration"):
        replace(make()[2], calibration=calibration)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": np.array([1.0, 0.0, 1.0])}, "scale of 'b'"),
        ({"mean": np.zeros(2)}, r"mean: found shape \(2,\), expected \(3,\)"),
        ({"Q": np.triu(np.ones((3, 3)))}, "Q is not symmetric"),
        ({"prior": np.full((3, 3), np.nan)}, "prior: found NaN"),
        ({"names": ("a", "b", "b")}, "'b' stands twice"),
    ],
)
def test_parts_are_checked(change, message):
    with pytest.raises(ModelError, match=message):
        replace(diagonal(), **change)


def test_a_model_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        diagonal().Q[0, 0] = 2.0


def test_a_joint_with_an_eigenvalue_below_0_is_refused_and_one_at_0_is_not() -> None:
    singular = np.ones((4, 4))
    Model.from_joint(np.zeros(4), singular)
    below = singular.copy()
    below[0, 3] = below[3, 0] = -1.0
    with pytest.raises(ModelError, match="eigenvalue"):
        Model.from_joint(np.zeros(4), below)


def test_other_words_leave_the_matrices_and_change_the_identity() -> None:
    model = Model.from_joint(np.zeros(4), np.eye(4))
    before = model.identity
    other = model.with_words(about={"a": 1}, calibration=((0.9, 1.2),))
    assert other.Q is model.Q
    assert other.about == {"a": 1}
    assert other.inflation(0.9) == pytest.approx(1.2)
    assert other.identity != before == model.identity
    with pytest.raises(ModelError, match="ascending"):
        model.with_words(about={}, calibration=((0.9, 1.0), (0.8, 1.0)))


@pytest.mark.parametrize("n", [1, 255, 257, 600])
def test_what_stands_above_the_diagonal_is_what_stands_below(n: int) -> None:
    given = np.random.default_rng(n).normal(size=(n, n))
    found = given.copy()
    mirror(found)
    np.testing.assert_array_equal(found, np.tril(given) + np.tril(given, -1).T)
