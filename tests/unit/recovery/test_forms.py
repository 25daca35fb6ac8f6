"""Triangles are inverted by halves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg

from tsunagi.recovery import forms
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Structure, of_covariance
from tsunagi.recovery.widened import widened_form
from tsunagi.runtime.columns import Floats


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 257])
@pytest.mark.parametrize("most", [forms.HALVED_INVERSE, 100])
def test_an_inverted_triangle(monkeypatch: pytest.MonkeyPatch, n: int, most: int) -> None:
    monkeypatch.setattr(forms, "HALVED_INVERSE", most)
    draw = np.random.default_rng(n)
    root = draw.normal(size=(n, n + 3))
    factor = np.asfortranarray(np.linalg.cholesky(root @ root.T))
    expected = linalg.solve_triangular(factor, np.eye(n), lower=True)
    forms._invert(factor)
    np.testing.assert_allclose(factor, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert not np.triu(factor, 1).any()


def random_covariance(n: int) -> Floats:
    root = np.random.default_rng(n).normal(size=(n, 2 * n))
    return np.asarray(root @ root.T / n)


@pytest.mark.parametrize("persistence", [0.0, 0.8, 0.99])
def test_a_noise_that_is_a_share_of_the_prior_is_not_inverted_anew(
    monkeypatch: pytest.MonkeyPatch, persistence: float
) -> None:
    n = 30
    base = Model(tuple(map(str, range(n))), np.zeros(n), np.ones(n), np.zeros(n), np.eye(n), np.eye(n), np.zeros(n))
    model = of_covariance(random_covariance(n), Structure("diagonal", 0.1, persistence), base)
    examined: list[str] = []
    examine = forms._examine

    def noted(name: str, matrix: Floats) -> forms.Examined:
        examined.append(name)
        return examine(name, matrix)

    monkeypatch.setattr(forms, "_examine", noted)
    choice = forms.choose_form(model)
    assert examined == ["prior"]
    assert isinstance(choice.form, forms.PrecisionForm)
    prior_precision, precision, _, _ = choice.form.matrices()
    np.testing.assert_allclose(prior_precision @ model.prior, np.eye(n), atol=1e-9)
    np.testing.assert_allclose(precision @ model.Q, np.eye(n), atol=1e-9)
    assert choice.condition == pytest.approx(np.linalg.cond(model.Q))


@pytest.mark.parametrize("more", [1, 7])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_wider_models_form_is_made_from_the_narrow_ones(more: int, noisy: bool) -> None:
    n = 30
    wide = wide_model(n + more, noisy=noisy)
    narrow = wide.select(wide.names[:n])
    anew = forms.choose_form(wide)
    found = widened_form(forms.choose_form(narrow), narrow, wide)
    assert found is not None
    assert isinstance(found.form, forms.PrecisionForm)
    assert isinstance(anew.form, forms.PrecisionForm)
    for ours, theirs in zip(found.form.matrices(), anew.form.matrices(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9 * np.abs(theirs).max())
    assert anew.condition <= found.condition <= forms.PRECISION_LIMIT


def test_a_wider_model_of_other_covariances_or_nearly_singular_is_made_anew() -> None:
    wide = wide_model(12)
    narrow = wide.select(wide.names[:10])
    other = replace(narrow, Q=2 * narrow.Q)
    assert widened_form(forms.choose_form(other), other, wide) is None
    assert widened_form(forms.choose_form(narrow, "covariance"), narrow, wide) is None
    twin = np.eye(12)
    twin[0, 11] = twin[11, 0] = 1 - 1e-9  # the last sensor tells what the first does
    same = replace(wide, Q=twin, prior=twin)
    plain = replace(narrow, Q=np.eye(10), prior=np.eye(10))
    assert widened_form(forms.choose_form(plain), plain, same) is None


def wide_model(n: int, *, noisy: bool = False) -> Model:
    base = Model(tuple(map(str, range(n))), np.zeros(n), np.ones(n), np.zeros(n), np.eye(n), np.eye(n), np.zeros(n))
    model = of_covariance(random_covariance(n), Structure("diagonal", 0.1, 0.9), base)
    return replace(model, Q=model.Q + 0.1 * np.eye(n)) if noisy else model


def test_rows_that_are_kept_serve_the_same_missing_set_and_no_other() -> None:
    n = 20
    model = of_covariance(
        random_covariance(n),
        Structure("diagonal", 0.1, 0.9),
        Model(tuple(map(str, range(n))), np.zeros(n), np.ones(n), np.zeros(n), np.eye(n), np.eye(n), np.zeros(n)),
    )
    literal = Recovery(model, form="covariance")
    fast = Recovery(model, form="precision")
    draw = np.random.default_rng(1)
    for step, lost in enumerate([(1, 2), (1, 2), (3, 4), (3, 4), (1, 2, 3, 4, 5), (1, 2), (), (1, 2)]):
        readings = draw.normal(size=n)
        readings[list(lost)] = np.nan
        np.testing.assert_allclose(fast.step(readings, step).mean, literal.step(readings, step).mean, atol=1e-8)
