"""The filter against statsmodels' Kalman filter, which is derived another way and written by others."""

import numpy as np
import pytest
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from tests.unit.recovery.literal import random_joint
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.forms import FORMS
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

N, STEPS = 12, 40


def kalman(mean: Floats, joint: Floats, scale: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return posterior means and standard deviations, float64[T, n]; their matrices come straight from the joint."""
    n = len(scale)
    joint, centred = joint / np.outer(np.tile(scale, 2), np.tile(scale, 2)), (values - mean[n:]) / scale
    transition = np.linalg.solve(joint[n:, n:], joint[n:, :n]).T
    other = KalmanFilter(k_endog=n, k_states=n, tolerance=0)
    other["design"], other["transition"], other["selection"] = np.eye(n), transition, np.eye(n)
    other["state_intercept"] = ((mean[:n] - mean[n:]) / scale)[:, None]
    other["state_cov"] = joint[:n, :n] - transition @ joint[n:, :n]
    other.initialize_known(np.zeros(n), joint[n:, n:])
    other.bind(centred)
    found = other.filter()
    variance = np.diagonal(found.filtered_state_cov, axis1=0, axis2=1)
    return mean[n:] + scale * found.filtered_state.T, scale * np.sqrt(np.maximum(variance, 0.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_equals_statsmodels_kalman_filter(form, share):
    rng = np.random.default_rng(7)
    mean, joint = random_joint(N, rng)
    model = Model.from_joint(mean, joint)
    values = mean[N:] + model.scale * rng.normal(size=(STEPS, N))
    values[rng.random(values.shape) < share] = np.nan
    values[10], values[20:25, :4] = np.nan, np.nan
    values[30] = mean[N:]
    means, sds = kalman(mean, joint, model.scale, values)
    recovery = Recovery(model, form=form, delta=0.9)
    for row, mean_row, sd_row in zip(values, means, sds, strict=True):
        found = recovery.step(row)
        lost = np.isnan(row)
        np.testing.assert_allclose(((found.mean - mean_row) / model.scale)[lost], 0, atol=1e-8)
        np.testing.assert_allclose(((found.sd - sd_row) / model.scale)[lost], 0, atol=1e-8)
        np.testing.assert_allclose(((found.bound - 1.6448536269514722 * sd_row) / model.scale)[lost], 0, atol=1e-8)
