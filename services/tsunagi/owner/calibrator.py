"""The owner's measurement of how wide bounds must be (architecture, "Recovery").

It runs beside the slot's filter and changes nothing itself: what it finds becomes a control record, and takes effect
for everyone, the owner included, when that is read back. A new owner starts measuring anew; until it knows enough, the
last record stays in force.
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
"""Between two looks at whether the factors have moved."""
MOVED = 0.03
"""A factor that moved by less, as a share, is not worth a record."""
MOVED_SHARE = 0.1
"""Share of estimates, at either end, whose factors may have moved by more without a record."""
COMPARED = 100
"""Newest estimates of a group whose factors are compared."""
DIGITS = 4
"""Significant digits of a number in the log."""
REMEMBERED_STEPS = 2000
"""Steps whose estimates are kept for truths that come late."""


class _Estimates(NamedTuple):
    """What was estimated at a step, and has no truth yet.

    Attributes:
        places: of the sensors, of k.
        mean, sd: float64[k], sensor units, sd the model's own.
        traits: of the estimates.
        share: of the slot's sensors that were missing at the step.
    """

    places: Places
    mean: Floats
    sd: Floats
    traits: Traits
    share: float

    def at(self, which: npt.NDArray[np.bool_]) -> _Estimates:
        """Return some of them."""
        return _Estimates(self.places[which], self.mean[which], self.sd[which], self.traits.at(which), self.share)


class Calibrator:
    """Measures on one filter of a slot, while this node owns it.

    Args:
        recover: the chain's operator, and `recovery`: its filter.
        config: of the slot.
        groups: the group of each of its sensors; empty = all are one.
        suspects: judge sensors as well (`suspects.Suspects`).

    Attributes:
        recovery: the filter it measures; the chain gets another with another model or other settings.
        groups: names of the groups.
        coverage: estimates whose truth was known, and those whose truth lay within the bound.
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

    def aim(self, delta: float) -> None:
        """Measure for bounds of this probability; what was learnt stays."""
        if delta != self._delta:
            self._delta, self._multiple = delta, half_width(delta)

    def observe(self, step: int, values: Floats, estimate: StepEstimate) -> None:
        """Take in a step that the filter has taken."""
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
        """Take in readings that came after their step had closed: truths of what was estimated.

        A truth counts once, however often its batch comes: what has been judged is no longer known here. Only its own
        edge can tell a sensor's truth.
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
        """Return what should be said of sensors, and is not in force; epoch and model are the caller's to fill in."""
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
        """Return what should be in force, of the slot's sensors; None = what is in force will do."""
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
        """Return the median factor in force of each group."""
        in_force, of = self._in_force(), self._calibration.group_of
        return np.array([float(np.median(in_force[of == number])) for number in range(len(self.groups))])

    def tried_steps(self) -> Floats:
        """Return for each group up to how many steps an outage is one of those that bounds have been tried on.

        float64[groups]; infinite where nothing was measured yet, and the fit's table is all there is.
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
        """Return each group's row in factors that may have been measured by other groups."""
        of = self._calibration.group_of
        return [int(factors.group[np.argmax(of == number)]) for number in range(len(self.groups))]

    def _moved(self, wanted: Factors, present: Factors) -> bool:
        """Tell whether factors of estimates like the newest ones differ by more than `MOVED`."""
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
        """Count truths by the bounds in force, and learn from them.

        Args:
            step: of the estimates.
            places: of their sensors.
            found: abs(truth - mean) / sd, sd the model's own.
            traits: theirs.
            share: of the slot's sensors that were missing beside each other.
        """
        good = np.isfinite(found)
        places, found, traits = places[good], found[good], traits.at(good)
        if not len(places):
            return
        factor = self._in_force().of(places, traits, self.recovery.model.inflation(self._delta))
        self.coverage.add(places, self._calibration.group_of[places], found <= factor * self._multiple, traits, share)
        self._calibration.observe(step, places, found, traits)


def rounded(values: Floats) -> Floats:
    """Return numbers with `DIGITS` significant digits."""
    return np.reshape([float(f"{value:.{DIGITS}g}") for value in values.ravel().tolist()], values.shape)
