"""The factors on a model's standard deviations that make bounds hold on real data.

One factor for each sensor is not enough. A model errs more where a sensor reads high than where it reads low, where
more is missing, and where an outage has lasted longer. So a factor depends on an estimate's traits, by a variance
function that is exponential in them (Davidian and Carroll 1987); `calibration` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats, floats, pack_floats, pack_sensors, sensors
from tsunagi.runtime.messages import Calibrated

Places = npt.NDArray[np.intp]

HIGHEST_LEVEL = 3.0
"""A level counts as this at most, in units of scale, above or below the mean: too few truths lie beyond it."""
USUAL_DISTANCE = 0.8
"""Mean distance of a Gaussian from its mean, in standard deviations, rounded: distances are taken relative to it."""
LEAST_SD = 1e-6
"""A standard deviation counts as this at least, in units of scale, before its logarithm is taken."""
COLUMNS = 4
"""Number of columns in which the logarithm of a factor is linear: level, distance from the mean, and the logarithms of
standard deviation and age."""
MOST_SHAPE = 1.5
"""Traits multiply or divide a factor by exp(this) at most, which is 4.5."""
MOST_MISSING = 0.9
"""While more than this share of a filter's sensors is missing, no factor is less than the fit's.

What all sensors have in common is measured by a few of them, and by none in such a step. Bounds that had been measured
on one edge of the demo's four held in 88 to 91 % of the values while up to three edges were out for 1, 3 or 10 steps
(wanted: 90 %), and in 73, 66 and 55 % while all four were; with the fit's factor, in 99, 98 and 94 % (2026-11-29)."""


class Traits(NamedTuple):
    """What is known about some estimates without their truths, float64[k] each.

    Attributes:
        level: distance of the estimate from its sensor's mean, in units of scale.
        sd: the model's own standard deviation of the estimate, in units of scale; it grows with what else is missing.
        age: steps since the sensor was last read, 1 or more.
    """

    level: Floats
    sd: Floats
    age: Floats

    def at(self, places: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Traits:
        """Return the traits of some of the estimates."""
        return Traits(self.level[places], self.sd[places], self.age[places])

    def columns(self, tried: Floats | float = np.inf) -> Floats:
        """Return the columns in which a factor's logarithm is linear, float64[k, COLUMNS]; ages end at `tried`."""
        level = np.clip(self.level, -HIGHEST_LEVEL, HIGHEST_LEVEL)
        age = np.log(np.maximum(np.minimum(self.age, tried), 1.0))
        return np.stack([level, np.abs(level) - USUAL_DISTANCE, np.log(np.maximum(self.sd, LEAST_SD)), age], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """A factor for each estimate: base[sensor] x exp(slope[group] . (columns - centre[group])).

    In an outage that is longer than those tried, or in which next to no sensor is read, a factor is never less than the
    fit's (`Model.inflation`).

    Attributes:
        base: float64[n], factor of each sensor; above 0.
        group: intp[n], the row of each sensor in the other arrays.
        slope, centre: float64[groups, COLUMNS], for `Traits.columns`.
        tried: float64[groups], greatest age, in steps, that enough outages have reached.
    """

    base: Floats
    group: Places
    slope: Floats
    centre: Floats
    tried: Floats

    @classmethod
    def plain(cls, base: npt.ArrayLike, group: Places | None = None) -> Factors:
        """Return factors that depend on no trait; `group` is intp[n], None means one group."""
        values = np.array(base, dtype=np.float64)
        of = np.zeros(len(values), dtype=np.intp) if group is None else group
        rows = int(of.max(initial=0)) + 1
        return cls(values, of, np.zeros((rows, COLUMNS)), np.zeros((rows, COLUMNS)), np.full(rows, np.inf))

    @classmethod
    def read(cls, record: Calibrated) -> Factors:
        """Read a record; `valid` says whether its columns fit each other."""
        base = floats(record.factor)
        if not record.tried:
            return cls.plain(base)
        slope, centre, tried = floats(record.slope), floats(record.centre), floats(record.tried)
        if len(slope) == len(centre) == COLUMNS * len(tried):
            slope, centre = slope.reshape(-1, COLUMNS), centre.reshape(-1, COLUMNS)
        return cls(base, sensors(record.group).astype(np.intp), slope, centre, tried)

    def write(self, *, epoch: int, model: str) -> Calibrated:
        """Return the record that puts the factors in force: of an owner's epoch, for the model with this SHA-256."""
        return Calibrated(
            epoch=epoch,
            model=model,
            factor=pack_floats(self.base),
            group=pack_sensors(self.group),
            slope=pack_floats(self.slope),
            centre=pack_floats(self.centre),
            tried=pack_floats(self.tried),
        )

    @property
    def valid(self) -> bool:
        """Whether all arrays fit together and all numbers can be computed with."""
        rows = len(self.tried)
        return bool(
            self.base.shape == self.group.shape
            and self.slope.shape == self.centre.shape == (rows, COLUMNS)
            and (np.isfinite(self.base) & (self.base > 0)).all()
            and np.isfinite(self.slope).all()
            and np.isfinite(self.centre).all()
            and (self.tried >= 0).all()
            and (not len(self.group) or (self.group.min() >= 0 and self.group.max() < rows))
        )

    def of(self, places: Places, traits: Traits, share: float, least: float) -> Floats:
        """Return the factors of estimates of the sensors at these places, float64[k].

        Args:
            share: the share of the filter's sensors that is missing at the step.
            least: the factor that the fit found for the probability in question.
        """
        group = self.group[places]
        tried = self.tried[group]
        factors = self.base[places] * shape(traits.columns(tried), self.slope[group], self.centre[group])
        beyond = (traits.age > tried) | (share > MOST_MISSING)
        return np.where(beyond, np.maximum(factors, least), factors)

    def __getitem__(self, places: Places | npt.NDArray[np.bool_] | slice) -> Floats:
        """Return the factors of some sensors for usual estimates, whose traits are those at the centre of the group."""
        return self.base[places]

    def select(self, places: Places) -> Factors:
        """Return the factors of some of the sensors, in this order."""
        return Factors(self.base[places], self.group[places], self.slope, self.centre, self.tried)

    def widened(self, count: int) -> Factors:
        """Return the factors with `count` more sensors, whose factor is 1."""
        base, group = np.ones(count), np.zeros(count, dtype=np.intp)
        joined = np.concatenate([self.base, base]), np.concatenate([self.group, group])
        return Factors(*joined, self.slope, self.centre, self.tried)

    def rearranged(self, places: Places, at: Places, count: int, least: float) -> Factors:
        """Return factors of `count` sensors: from `places` here to `at`; the others get `least`."""
        base, group = np.full(count, least), np.zeros(count, dtype=np.intp)
        base[at], group[at] = self.base[places], self.group[places]
        return Factors(base, group, self.slope, self.centre, self.tried)


def shape(columns: Floats, slope: Floats, centre: Floats) -> Floats:
    """Return by what traits multiply a factor, float64[k]; columns is float64[k, COLUMNS], the others too or a row."""
    return np.asarray(np.exp(np.clip(((columns - centre) * slope).sum(axis=1), -MOST_SHAPE, MOST_SHAPE)))
