"""Makes the forecaster that `[scaler] forecast` names. A user's forecaster is any such class, named module:Class."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.forecast.base import Forecast, PointForecaster
from tsunagi.scaler.forecast.calibrated import Calibrated
from tsunagi.scaler.forecast.mixture import Mixture
from tsunagi.scaler.forecast.sdar import Sdar
from tsunagi.scaler.forecast.seasonal import Profile
from tsunagi.scaler.forecast.simple import Ewma, LastValue

DAY_S = 86400.0
"""Seconds in a day."""
FORECASTERS: dict[str, Callable[[float], PointForecaster]] = {
    "mixture": Mixture,
    "sdar": lambda _slot_s: Sdar(),
    "seasonal": lambda slot_s: Profile(max(1, round(DAY_S / slot_s))),
    "ewma": lambda _slot_s: Ewma(),
    "last": lambda _slot_s: LastValue(),
}
"""The forecasters that come with Tsunagi, by name; each function takes the length of a slot in seconds."""


class ForecasterError(ValueError):
    """There is no forecaster of this name."""


def make_point(name: str, slot_s: float) -> PointForecaster:
    """Return a forecaster of means.

    Raises:
        ForecasterError: there is none of this name.
    """
    if name in FORECASTERS:
        return FORECASTERS[name](slot_s)
    module, _, kind = name.partition(":")
    try:
        made: PointForecaster = getattr(importlib.import_module(module), kind)(slot_s)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ForecasterError(
            f"[scaler] forecast: found {name!r}, expected one of {', '.join(FORECASTERS)} or module:Class: {error}"
        ) from None
    return made


def forecast(history: Floats, horizon: int, name: str = "mixture", slot_s: float = 300.0) -> Forecast:
    """Return mean and quantiles of the next `horizon` slots after a history: one value a slot, oldest first."""
    forecaster = Calibrated(make_point(name, slot_s), horizon)
    for value in np.asarray(history, dtype=np.float64):
        forecaster.update(float(value))
    return forecaster.forecast(horizon)
