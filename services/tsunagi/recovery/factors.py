"""What a model's standard deviations are multiplied by, for bounds that hold on real data.

One factor for each sensor is not enough. A model is wrong by more where a sensor stands high than where it stands low,
where more is missing, and where an outage has lasted for longer. So a factor follows what an estimate is like (its
traits), by a variance function that is exponential in them (Davidian and Carroll 1987); `calibration` measures it.
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
"""A level further from the mean than this, in units of scale, counts as this: few truths tell of what is beyond."""
USUAL_DISTANCE = 0.8
"""Mean distance of a Gaussian from its mean, in standard deviations, rounded."""
LEAST_SD = 1e-6
"""Standard deviation, in units of scale, below which its logarithm says nothing."""
COLUMNS = 4
"""What a factor's logarithm is linear in: level, distance from the mean, logarithms of standard deviation and age."""
MOST_SHAPE = 1.5
"""Traits multiply or divide a factor by at most exp(this), 4.5."""


class Traits(NamedTuple):
    """What is known of some estimates without their truths, float64[k] each.

    Attributes:
        level: how far the estimate is from its sensor's mean, in units of scale.
        sd: the model's own standard deviation of it, in units of scale; it grows with what is missing beside it.
        age: steps since the sensor was last read, 1 or more.
    """

    level: Floats
    sd: Floats
    age: Floats

    def at(self, places: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Traits:
        """Return those of some of the estimates."""
        return Traits(self.level[places], self.sd[places], self.age[places])

    def columns(self, tried: Floats | float = np.inf) -> Floats:
        """Return what a factor's logarithm is linear in, float64[k, COLUMNS]; no age counts for more than `tried`."""
        level = np.clip(self.level, -HIGHEST_LEVEL, HIGHEST_LEVEL)
        age = np.log(np.maximum(np.minimum(self.age, tried), 1.0))
        return np.stack([level, np.abs(level) - USUAL_DISTANCE, np.log(np.maximum(self.sd, LEAST_SD)), age], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """A factor for each estimate: base[sensor] x exp(slope[group] . (columns - centre[group])).

    For outages longer than have been tried it is never less than what the fit found (`Model.inflation`).

    Attributes:
        base: float64[n], by sensor; above 0.
        group: intp[n], each sensor's row in the others.
        slope, centre: float64[groups, COLUMNS], see `Traits.columns`.
        tried: float64[groups], steps up to which there were outages enough.
    """

    base: Floats
    group: Places
    slope: Floats
    centre: Floats
    tried: Floats

    @classmethod
    def plain(cls, base: npt.ArrayLike, group: Places | None = None) -> Factors:
        """Return factors that follow no trait; `group`: intp[n], None = all sensors are one."""
        values = np.array(base, dtype=np.float64)
        of = np.zeros(len(values), dtype=np.intp) if group is None else group
        rows = int(of.max(initial=0)) + 1
        return cls(values, of, np.zeros((rows, COLUMNS)), np.zeros((rows, COLUMNS)), np.full(rows, np.inf))

    @classmethod
    def read(cls, record: Calibrated) -> Factors:
        """Read a record; whether its columns fit each other is for `valid` to say."""
        base = floats(record.factor)
        if not record.tried:
            return cls.plain(base)
        slope, centre, tried = floats(record.slope), floats(record.centre), floats(record.tried)
        if len(slope) == len(centre) == COLUMNS * len(tried):
            slope, centre = slope.reshape(-1, COLUMNS), centre.reshape(-1, COLUMNS)
        return cls(base, sensors(record.group).astype(np.intp), slope, centre, tried)

    def write(self, *, epoch: int, model: str) -> Calibrated:
        """Return the record that puts them in force, of an owner's epoch and on a model's sha256."""
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
        """Whether all arrays fit together and can be computed with."""
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

    def of(self, places: Places, traits: Traits, least: float) -> Floats:
        """Return the factors of estimates of sensors at these places, float64[k].

        Args:
            least: what the fit found for the probability in question.
        """
        group = self.group[places]
        tried = self.tried[group]
        factors = self.base[places] * shape(traits.columns(tried), self.slope[group], self.centre[group])
        beyond = traits.age > tried
        return np.where(beyond, np.maximum(factors, least), factors)

    def __getitem__(self, places: Places | npt.NDArray[np.bool_] | slice) -> Floats:
        """Return the factors of some sensors' usual estimates, those at the centre of their group's traits."""
        return self.base[places]

    def select(self, places: Places) -> Factors:
        """Return those of some of the sensors, in this order."""
        return Factors(self.base[places], self.group[places], self.slope, self.centre, self.tried)

    def widened(self, count: int) -> Factors:
        """Return them with so many sensors more, whose factor is 1."""
        base, group = np.ones(count), np.zeros(count, dtype=np.intp)
        joined = np.concatenate([self.base, base]), np.concatenate([self.group, group])
        return Factors(*joined, self.slope, self.centre, self.tried)


def shape(columns: Floats, slope: Floats, centre: Floats) -> Floats:
    """Return by what traits multiply a factor, float64[k]; columns float64[k, COLUMNS], the others alike or one row."""
    return np.asarray(np.exp(np.clip(((columns - centre) * slope).sum(axis=1), -MOST_SHAPE, MOST_SHAPE)))
