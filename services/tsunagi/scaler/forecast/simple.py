"""The two simplest forecasters: the last value, and the exponentially weighted mean."""

from __future__ import annotations

import numpy as np

from tsunagi.runtime.columns import Floats


class LastValue:
    """Forecasts the last value for every slot."""

    def __init__(self) -> None:
        self._value = 0.0

    def update(self, value: float) -> None:
        self._value = value

    def means(self, horizon: int) -> Floats:
        return np.full(horizon, self._value)


class Ewma:
    """The mean of all values, each discounted by 1 - `gain` a slot; it is exact from the first value on."""

    def __init__(self, gain: float = 0.3) -> None:
        self._gain = gain
        self._sum = 0.0
        self._weight = 0.0

    def update(self, value: float) -> None:
        self._sum = (1 - self._gain) * self._sum + self._gain * value
        self._weight = (1 - self._gain) * self._weight + self._gain

    def means(self, horizon: int) -> Floats:
        return np.full(horizon, self._sum / self._weight if self._weight else 0.0)
