"""The default forecaster: simple experts side by side, each weighted by how good it has been that far ahead."""

from __future__ import annotations

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.forecast.base import HORIZON
from tsunagi.scaler.forecast.regression import Regression
from tsunagi.scaler.forecast.sdar import Sdar
from tsunagi.scaler.forecast.seasonal import Profile

_ORDERS = (1, 2, 6, 12)
"""Orders of the SDAR experts: the number of past slots that the next one depends on."""
_DISCOUNTS = (0.002, 0.02)
"""Discounts of the SDAR experts: they forget in about 500 and 50 slots."""
_REFRESH = 12
"""Number of slots after which SDAR's coefficients are computed again, which is the costly part; its moments are updated
with every slot."""
_GAINS = np.array([0.4, 0.1, 0.02])
"""Weights of the newest value in the three moving averages: fast, slow and very slow."""
_KEPT = np.array([1.0, 0.3, 0.05])
"""Weights of the newest distance in the three averages of the distance to a profile; 1.0 is the last distance
itself."""
_PRIOR = np.array([0.0, 0.4, 0.2, 0.1, 0.0, 0.3, -0.3, 0.0, 0.0, 0.0])
"""Weights of the regression's features before there is data: 0.7 in all for the last value and the moving averages, 0.3
for the change that the day's profile expects, nothing for the week's."""


class Mixture:
    """Experts: last value, moving averages, SDARs, profiles of day and week moved to the present level, a regression.

    For each number of slots ahead an expert's weight is a power of its discounted absolute error, relative to that of
    the best expert.

    Args:
        slot_s: length of a slot in seconds, for the profiles.
        horizon: number of slots ahead for which the experts' errors are kept.
        discount: share of its weight that a past error loses with each slot.
        sharpness: the power; the greater it is, the more the best expert decides.
    """

    def __init__(self, slot_s: float, horizon: int = HORIZON, discount: float = 0.002, sharpness: float = 8.0) -> None:
        self.horizon = horizon
        self._discount = discount
        self._sharpness = sharpness
        day = max(1, round(86400.0 / slot_s))
        self._day = Profile(day, 0.15)
        self._week = Profile(7 * day, 0.3)
        self._sdar = tuple(Sdar(max(_ORDERS), discount) for discount in _DISCOUNTS)
        self._gains = [np.zeros((len(_ORDERS), horizon, max(_ORDERS)))] * len(_DISCOUNTS)
        self._ewma = np.zeros(len(_GAINS))
        # smoothed distances from the profiles of day and week, one for each gain in `_KEPT`
        self._gap = np.zeros((2, 3))
        self._regression = Regression(horizon, _PRIOR)
        self._seen = 0
        self._experts = 1 + len(_GAINS) + len(_DISCOUNTS) * len(_ORDERS) + 2 * (1 + len(_KEPT)) + 1
        self._errors = np.full((self._experts, horizon), 1e-9)
        # What the experts said about the next slot: row 0 one slot before it, row 1 two slots before, ...
        self._said = np.zeros((horizon, self._experts, horizon))
        self._features = np.zeros((horizon, horizon, len(_PRIOR)))
        self._leads = np.arange(horizon)

    def update(self, value: float) -> None:
        leads = min(self._seen, self.horizon)
        if leads:
            rows = (self._seen - 1 - self._leads[:leads]) % self.horizon
            error = np.abs(self._said[rows, :, self._leads[:leads]].T - value)
            gain = max(self._discount, 1.0 / self._seen)
            self._errors[:, :leads] += gain * (error - self._errors[:, :leads])
            self._regression.update(self._features[rows, self._leads[:leads]], value)
        self._learn(value)
        row = self._seen % self.horizon
        self._said[row], self._features[row] = self._ask()
        self._seen += 1

    def means(self, horizon: int) -> Floats:
        if not self._seen:
            return np.zeros(horizon)
        said = self._said[(self._seen - 1) % self.horizon]
        best = self._errors.min(axis=0)
        weights = ((best + 1e-12) / (self._errors + 1e-12)) ** self._sharpness
        means = np.maximum((weights * said).sum(axis=0) / weights.sum(axis=0), 0.0)
        if horizon > self.horizon:
            return np.concatenate((means, np.full(horizon - self.horizon, means[-1])))
        return np.asarray(means[:horizon])

    def weights(self) -> Floats:
        """Return the weights of the experts, (experts, horizon); each column adds up to 1."""
        weights = ((self._errors.min(axis=0) + 1e-12) / (self._errors + 1e-12)) ** self._sharpness
        return np.asarray(weights / weights.sum(axis=0))

    def _learn(self, value: float) -> None:
        gains = np.maximum(_GAINS, 1.0 / (1 + self._seen))
        self._ewma += gains * (value - self._ewma)
        for row, profile in enumerate((self._day, self._week)):
            # what the profile said about this slot before it knew the value
            gap = value - float(profile.window(0, 1)[0])
            self._gap[row] += _KEPT * (gap - self._gap[row])
        self._day.update(value)
        self._week.update(value)
        for sdar in self._sdar:
            sdar.update(value)
        self._value = value

    def _ask(self) -> tuple[Floats, Floats]:
        """Return the experts' forecasts, (experts, horizon), and the regression's features, (horizon, features)."""
        horizon = self.horizon
        said = np.empty((self._experts, horizon))
        said[0] = self._value
        said[1:4] = self._ewma[:, None]
        at = 4
        if self._seen % _REFRESH == 0 or self._seen < _REFRESH:
            self._gains = [sdar.gains(_ORDERS, horizon) for sdar in self._sdar]
        for sdar, gains in zip(self._sdar, self._gains, strict=True):
            said[at : at + len(_ORDERS)] = sdar.means_by(gains)
            at += len(_ORDERS)
        day, week = self._day.means(horizon), self._week.means(horizon)
        for profile, gap in ((day, self._gap[0]), (week, self._gap[1])):
            said[at : at + 4] = profile
            said[at + 1 : at + 4] += gap[:, None]
            at += 4
        features = np.empty((horizon, len(_PRIOR)))
        features[:, 0] = self._ewma[2]
        features[:, 1] = self._value
        features[:, 2:4] = self._ewma[:2]
        features[:, 4] = 1.0
        features[:, 5] = day
        features[:, 6] = self._value - self._gap[0, 0]
        features[:, 7] = week
        features[:, 8] = self._value - self._gap[1, 0]
        features[:, 9] = self._gap[1, 1]
        said[at] = (features * self._regression.weights).sum(axis=1)
        np.clip(said, 0.0, None, out=said)
        return said, features
