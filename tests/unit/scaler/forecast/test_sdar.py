"""SDAR's recursion against a computation over the whole history, and the Yule-Walker equations solved as they stand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_toeplitz

from tsunagi.scaler.forecast.sdar import Sdar


def moments(values: np.ndarray, discount: float, order: int) -> tuple[float, np.ndarray]:
    """Return mu and C_0..C_k of all values at once."""
    weight = (1 - discount) ** np.arange(len(values))[::-1]
    mu = float((weight * values).sum() / weight.sum())
    left = values - mu
    found = [
        (weight[lag:] * left[lag:] * left[: max(0, len(values) - lag)]).sum() / weight.sum() for lag in range(order + 1)
    ]
    return mu, np.array(found)


def series(seed: int, count: int = 400) -> np.ndarray:
    draw = np.random.default_rng(seed)
    values = np.full(count, 300.0)
    for i in range(2, count):
        values[i] = 300 + 1.2 * (values[i - 1] - 300) - 0.4 * (values[i - 2] - 300) + draw.normal(0, 10)
    return values


@pytest.mark.parametrize(("order", "discount"), [(1, 0.2), (3, 0.01), (6, 0.05)])
@pytest.mark.parametrize("count", [2, 5, 40, 400])
def test_the_recursion_is_exact(order: int, discount: float, count: int) -> None:
    values = series(order)[:count]
    model = Sdar(order, discount)
    for value in values:
        model.update(float(value))
    mu, covariances = moments(values, discount, order)
    known = min(order, count - 1)
    assert model.mean == pytest.approx(mu, rel=1e-12)
    np.testing.assert_allclose(model.covariances()[: known + 1], covariances[: known + 1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_coefficients_solve_the_yule_walker_equations(order: int) -> None:
    model = Sdar(order, 0.01)
    values = series(7)
    for value in values:
        model.update(float(value))
    covariances = moments(values, 0.01, order)[1]
    expected = solve_toeplitz(covariances[:-1], covariances[1:])
    np.testing.assert_allclose(model.coefficients()[-1], expected, rtol=1e-6, atol=1e-7)


def test_many_slots_ahead_it_is_the_model_iterated() -> None:
    model = Sdar(3, 0.01)
    values = series(3)
    for value in values:
        model.update(float(value))
    omega = np.array(model.coefficients()[-1])
    known = list(values - model.mean)
    psi = [1.0]
    for _ in range(12):
        known.append(float(omega @ known[: -len(omega) - 1 : -1]))
        psi.append(float(omega[: len(psi)] @ psi[: -len(omega) - 1 : -1]))
    np.testing.assert_allclose(model.means(12), np.array(known[-12:]) + model.mean, rtol=1e-9)
    covariances = model.covariances()
    sigma2 = covariances[0] - omega @ covariances[1:]
    np.testing.assert_allclose(model.variances(12), sigma2 * np.cumsum(np.square(psi[:12])), rtol=1e-9)


@pytest.mark.slow
def test_variances_are_those_of_the_errors() -> None:
    model = Sdar(2, 0.002)
    errors: list[list[float]] = []
    said: list[np.ndarray] = []
    for i, value in enumerate(series(11, 3000)):
        if i > 500:
            errors.append([(value - said[-lead][lead - 1]) ** 2 for lead in (1, 4)])
        model.update(float(value))
        said.append(model.means(4))
    np.testing.assert_allclose(np.mean(errors, axis=0), model.variances(4)[[0, 3]], rtol=0.2)


def test_before_and_after_the_first_value_it_stays_finite() -> None:
    model = Sdar(3, 0.01)
    assert not model.means(3).any()
    model.update(5.0)
    np.testing.assert_allclose(model.means(3), 5.0)
    np.testing.assert_allclose(model.variances(3), 0.0, atol=1e-12)
