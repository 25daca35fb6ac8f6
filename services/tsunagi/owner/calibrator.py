"""The owner's measurement of how wide bounds must be (architecture, "Recovery").

It runs beside the slot's filter and does not change it. Its result, factors for the bounds, becomes a control record
and takes effect for all replicas, the owner included, when that is read back. A new owner begins to measure anew. Until
it has measured enough, the last record stays in force.

A *truth* is the true value of something that was estimated and became known later. A *shadow failure* treats a living
edge as dead in a copy of the filter, so that its readings are truths at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.calibration import Calibration, Shadow, ratios
from tsunagi.recovery.coverage import Coverage
from tsunagi.recovery.factors import Factors, Places, Traits, shape
from tsunagi.recovery.filter import Recovery, StepEstimate
from tsunagi.recovery.model import half_width
from tsunagi.recovery.suspects import Suspects
from tsunagi.runtime.columns import Floats, floats, sensors
from tsunagi.runtime.messages import SensorOut, TupleBatch
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.recover import Recover

EVERY_STEPS = 20
"""Number of steps between two comparisons of the measured factors with those in force."""
MOVED = 0.03
"""A control record is written only if a factor has changed by more than this share."""
MOVED_SHARE = 0.1
"""Changes are taken at the quantiles MOVED_SHARE and 1 - MOVED_SHARE, so that a few extreme estimates do not matter."""
COMPARED = 100
"""Number of a group's newest estimates whose factors are compared."""
DIGITS = 4
"""Significant digits of a factor in the log."""
REMEMBERED_STEPS = 2000
"""Number of steps whose estimates are kept for truths that come late."""


class _Estimates(NamedTuple):
    """The estimates of a step whose truths are not known yet, of k sensors.

    Attributes:
        places: intp[k], the sensors' places in the filter.
        mean: float64[k], the estimates in sensor units.
        sd: float64[k], the estimates' standard deviations by the model alone, in sensor units.
        traits: the traits of the estimates, on which the factors depend.
        share: the share of the filter's sensors that were missing at the step.
    """

    places: Places
    mean: Floats
    sd: Floats
    traits: Traits
    share: float

    def at(self, which: npt.NDArray[np.bool_]) -> _Estimates:
        """Return the estimates of this mask, bool[k]."""
        return _Estimates(self.places[which], self.mean[which], self.sd[which], self.traits.at(which), self.share)


class Calibrator:
    """Measures how wide the bounds of one filter must be, while this node owns the slot.

    Args:
        recover: the operator `recover` of the slot's chain.
        recovery: that operator's filter.
        config: the slot's configuration.
        groups: the group of each of the slot's sensors; empty = all are in one group.
        suspects: also find sensors that fail alone (`suspects.Suspects`).

    Attributes:
        recovery: the filter that is measured. With another model or other settings the chain gets another filter.
        groups: the names of the groups.
        coverage: how many truths there were, and how many of them lay within their bounds.
    """

    def __init__(
        self, recover: Recover, recovery: Recovery, config: SlotConfig, groups: Sequence[str], *, suspects: bool = False
    ) -> None:
        self.recovery = recovery
        self._ids = np.array(config.sensors, dtype=np.uint32)
        self._edge_of = dict(zip(config.sensors, config.edges, strict=True))
        self._places = recover.places
        self._delta = config.delta
        self._multiple = half_width(config.delta)
        mine = [groups[place] if groups else "" for place in self._places]
        self._calibration = Calibration(recovery.model, mine)
        self.groups = tuple(str(group) for group in self._calibration.groups)
        self._shadow = Shadow(recovery, [config.edges[place] for place in self._places])
        self.coverage = Coverage(len(self.groups), len(self._places))
        self._suspects = Suspects(recovery.model, out=recovery.distrusted) if suspects else None
        self._reasons: dict[int, str] = {}
        self._steps = 0
        self._estimates: OrderedDict[int, _Estimates] = OrderedDict()

    def set_delta(self, delta: float) -> None:
        """Measure for bounds of this probability from now on; earlier measurements are kept."""
        if delta != self._delta:
            self._delta, self._multiple = delta, half_width(delta)

    def observe(self, step: int, values: Floats, estimate: StepEstimate) -> None:
        """Take in a step after the filter has processed it.

        Args:
            values: float64[n], the readings of the filter's sensors; NaN = missing.
            estimate: what the filter made of them.
        """
        self._steps += 1
        if self._suspects is not None:
            for verdict in self._suspects.observe(step, values, estimate.mean):
                self._reasons[verdict.sensor] = verdict.reason
        values = np.where(self.recovery.distrusted, np.nan, values)
        missing = np.flatnonzero(np.isnan(values))
        if len(missing):
            share = len(missing) / len(values)
            sd, traits = self.recovery.raw_sd[missing], self.recovery.traits(missing)
            self._estimates[step] = _Estimates(missing, estimate.mean[missing], sd, traits, share)
            if len(self._estimates) > REMEMBERED_STEPS:
                self._estimates.popitem(last=False)
        places, found, traits = self._shadow.observe(values, step)
        self._judge(step, places, found, traits, (len(missing) + len(places)) / len(values))

    def late(self, batch: TupleBatch) -> None:
        """Take in readings that came after their step had closed: they are truths of that step's estimates.

        A truth counts once, even if its batch is repeated, since its estimate is forgotten then. Only a sensor's own
        edge can tell its truth.
        """
        known = self._estimates.get(batch.step)
        if known is None:
            return
        missing = known.places
        told = dict(zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True))
        told = {sensor: value for sensor, value in told.items() if self._edge_of.get(sensor) == batch.edge}
        truth = np.array([told.get(sensor, np.nan) for sensor in self._ids[self._places[missing]].tolist()])
        at, left = np.isfinite(truth), ~np.isfinite(truth)
        if at.any():
            told_of = known.at(at)
            found = ratios(truth[at], told_of.mean, told_of.sd)
            self._judge(batch.step, told_of.places, found, told_of.traits, known.share)
            self._estimates[batch.step] = known.at(left)

    def judged(self) -> list[SensorOut]:
        """Return the verdicts on sensors that are not in force yet; the caller fills in epoch and model."""
        if self._suspects is None:
            return []
        return [
            SensorOut(
                sensor=int(self._ids[self._places[sensor]]),
                out=bool(self._suspects.out[sensor]),
                reason=self._reasons.get(sensor, ""),
            )
            for sensor in np.flatnonzero(self._suspects.out != self.recovery.distrusted).tolist()
        ]

    def factors(self) -> Factors | None:
        """Return the factors of the slot's sensors that should be in force; None = those in force need no change."""
        if self._steps < EVERY_STEPS:
            return None
        self._steps = 0
        present = self._in_force()
        wanted = self._calibration.measured(self._delta, present)
        if not self._moved(wanted, present):
            return None
        base, group = np.zeros(len(self._ids)), np.zeros(len(self._ids), dtype=np.intp)
        base[self._places], group[self._places] = rounded(wanted.base), wanted.group
        return Factors(base, group, rounded(wanted.slope), rounded(wanted.centre), wanted.tried)

    def median_factors(self) -> Floats:
        """Return the median of each group's factors in force, float64[groups]."""
        in_force, of = self._in_force(), self._calibration.group_of
        return np.array([float(np.median(in_force[of == number])) for number in range(len(self.groups))])

    def tried_steps(self) -> Floats:
        """Return for each group the length of the longest outage that bounds have been compared with truths for.

        float64[groups], in steps; infinite where nothing was measured yet, so that the factors are those of the fit.
        """
        in_force = self._in_force()
        return np.array([float(in_force.tried[row]) for row in self._rows(in_force)])

    def _in_force(self) -> Factors:
        given = self.recovery.given_factors
        if given is not None:
            return given
        table = self.recovery.model.inflation(self._delta)
        return Factors.plain(np.full(len(self._places), table), self._calibration.group_of)

    def _rows(self, factors: Factors) -> list[int]:
        """Return each group's row in `factors`, which may have been measured with other groups."""
        of = self._calibration.group_of
        return [int(factors.group[np.argmax(of == number)]) for number in range(len(self.groups))]

    def _moved(self, wanted: Factors, present: Factors) -> bool:
        """Return whether the factors of a group's newest estimates would change by more than `MOVED`."""
        for number, row in enumerate(self._rows(present)):
            mine = self._calibration.group_of == number
            columns = self._calibration.newest(number, COMPARED)
            moved = shape(columns, wanted.slope[number], wanted.centre[number])
            moved /= shape(columns, present.slope[row], present.centre[row])
            low, high = np.quantile(moved, (MOVED_SHARE, 1 - MOVED_SHARE)) if len(moved) else (1.0, 1.0)
            base = wanted.base[mine] / present.base[mine]
            widest, narrowest = base.max() * high, base.min() * low
            if widest > 1 + MOVED or narrowest < 1 - MOVED or wanted.tried[number] != present.tried[row]:
                return True
        return False

    def _judge(self, step: int, places: Places, found: Floats, traits: Traits, share: float) -> None:
        """Count which truths lie within the bounds in force, and learn from them.

        Args:
            step: the step of the estimates.
            places: intp[k], the places of the estimates' sensors in the filter.
            found: float64[k], abs(truth - mean) / sd with the sd of the model alone; NaN and infinite ones are ignored.
            traits: the traits of the estimates.
            share: the share of the filter's sensors that were missing at the step.
        """
        good = np.isfinite(found)
        places, found, traits = places[good], found[good], traits.at(good)
        if not len(places):
            return
        factor = self._in_force().of(places, traits, share, self.recovery.model.inflation(self._delta))
        self.coverage.add(places, self._calibration.group_of[places], found <= factor * self._multiple, traits, share)
        self._calibration.observe(step, places, found, traits)


def rounded(values: Floats) -> Floats:
    """Return the numbers rounded to `DIGITS` significant digits, in the same shape."""
    return np.reshape([float(f"{value:.{DIGITS}g}") for value in values.ravel().tolist()], values.shape)
