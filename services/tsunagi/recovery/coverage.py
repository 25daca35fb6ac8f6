"""How often bounds hold, by class: how high an estimate is, how old it is, how much is missing; and by sensor.

A share over all estimates would hide a class whose bounds do not hold. The classes of one kind together count each
estimate once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.factors import Places, Traits
from tsunagi.runtime.columns import Floats

Mask = npt.NDArray[np.bool_]

LEVELS = {"lowest": -0.84, "low": -0.25, "middle": 0.25, "high": 0.84, "highest": np.inf}
"""Upper end of each class of levels, in units of scale: fifths of the estimates, if these were Gaussian and spread like
the readings."""
AGES = {"1": 1.0, "2-3": 3.0, "4-10": 10.0, "11-30": 30.0, "31-100": 100.0, "over 100": np.inf}
"""Upper end of each class of ages: steps since the sensor was last read."""
SHARES = {"up to 10%": 0.1, "10-25%": 0.25, "25-50%": 0.5, "over 50%": 1.0}
"""Upper end of each class of missing shares: the share of the slot's sensors that is missing."""
KINDS: Mapping[str, Mapping[str, float]] = {"level": LEVELS, "steps": AGES, "missing": SHARES}
"""The classes of each kind, by name, each with its upper end."""
LEAST_OF_A_SENSOR = 50
"""A sensor needs this many truths before its share says something."""

_NAMES = [(kind, name) for kind, classes in KINDS.items() for name in classes]
"""Kind and name of each class, in the order of `Coverage.by_class`."""


class Coverage:
    """Counts the estimates whose truth became known.

    Args:
        groups: number of groups of sensors.
        sensors: number of sensors.

    Attributes:
        truths, within: int64[groups], number of truths, and of those that lay within the bound.
        by_class: int64[2, classes], the same by class, in the order of `names`.
        by_sensor: int64[2, sensors], the same by sensor.
    """

    names = _NAMES

    def __init__(self, groups: int, sensors: int) -> None:
        self.truths = np.zeros(groups, dtype=np.int64)
        self.within = np.zeros(groups, dtype=np.int64)
        self.by_class = np.zeros((2, len(_NAMES)), dtype=np.int64)
        self.by_sensor = np.zeros((2, sensors), dtype=np.int64)

    def add(self, places: Places, groups: Places, within: Mask, traits: Traits, share: float | Floats) -> None:
        """Count some estimates.

        Args:
            places, groups: their sensors, and the groups of these.
            within: whether their truths lay within their bounds.
            traits: the traits of the estimates.
            share: share of the sensors that was missing at their step: one for all, or float64[k].
        """
        self.truths += np.bincount(groups, minlength=len(self.truths))
        self.within += np.bincount(groups[within], minlength=len(self.within))
        self.by_sensor += np.stack(
            [np.bincount(of, minlength=self.by_sensor.shape[1]) for of in (places, places[within])]
        )
        begin = 0
        shares = np.broadcast_to(np.asarray(share, dtype=np.float64), traits.age.shape)
        for values, classes in zip((traits.level, traits.age, shares), KINDS.values(), strict=True):
            ends = np.array(list(classes.values()))
            of = begin + np.minimum(np.searchsorted(ends, values), len(ends) - 1)
            self.by_class += np.stack([np.bincount(o, minlength=len(_NAMES)) for o in (of, of[within])])
            begin += len(ends)

    def add_table(self, estimated: Mask, where: Mask, within: Mask, level: Floats) -> None:
        """Count the estimates of a table of steps, one row a step; all arrays are bool[T, n] or float64[T, n].

        Args:
            estimated: whether the sensor was not read at the step, so that there is an estimate.
            where: whether the truth of the estimate is known.
            within: whether the truth lay within the bound; it is read only where `where` is set.
            level: level of the estimates, in units of scale; read only where `where` is set.
        """
        steps, places = np.nonzero(where)
        traits = Traits(level[where], np.ones(len(places)), ages(estimated)[where])
        share = estimated.mean(axis=1)[steps]
        self.add(places, np.zeros(len(places), dtype=np.intp), within[where], traits, share)

    def worst_sensor(self) -> tuple[int, float] | None:
        """Return place and share of the sensor whose bounds hold least often; None if each has too few truths."""
        truths, within = self.by_sensor
        known = np.flatnonzero(truths >= LEAST_OF_A_SENSOR)
        if not len(known):
            return None
        shares = within[known] / truths[known]
        worst = int(np.argmin(shares))
        return int(known[worst]), float(shares[worst])

    def shares(self) -> dict[str, dict[str, float]]:
        """Return, by kind, the share of truths within the bound for each class that has truths."""
        found: dict[str, dict[str, float]] = {}
        for (kind, name), truths, within in zip(_NAMES, *self.by_class.tolist(), strict=True):
            if truths:
                found.setdefault(kind, {})[name] = round(within / truths, 4)
        return found


def levels(mean: Floats, truth: Floats, unit: Floats) -> Floats:
    """Return how far estimates are from the mean of their sensor's truths, in its units, float64[T, n]; 0 = unknown.

    Args:
        mean, truth: float64[T, n], sensor units; NaN means that there is none.
        unit: float64[n], standard deviation of each sensor; 0 means that it is constant.
    """
    known = np.isfinite(truth)
    usual = np.where(known, truth, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num((mean - usual) / unit))


def worst_fifth(level: Floats, within: Mask) -> float:
    """Return the share of truths within the bound for the fifth of the estimates, by level, where it is lowest."""
    fifth = np.searchsorted(np.quantile(level, (0.2, 0.4, 0.6, 0.8)), level)
    return min(float(within[fifth == each].mean()) for each in np.unique(fifth))


def ages(missing: Mask) -> Floats:
    """Return for how many steps each sensor has been missing, this one included: float64[T, n] of bool[T, n]."""
    rows = np.arange(1.0, len(missing) + 1)[:, None]
    return np.asarray(rows - np.maximum.accumulate(np.where(missing, 0.0, rows), axis=0))
