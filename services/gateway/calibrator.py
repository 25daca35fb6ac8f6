"""The owner's measurement of how wide bounds must be (DESIGN section 4, "shadow failures").

It runs beside the slot's filter and changes nothing itself: what it finds becomes a control record, and takes effect
for everyone, the owner included, when that is read back. A new owner starts measuring anew; until it knows enough, the
last record stays in force.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.gateway.config import SlotConfig
from services.gateway.recover import Recover
from services.recovery.calibration import Calibration, Shadow, ratios
from services.recovery.filter import Recovery, StepEstimate
from services.recovery.model import half_width
from services.recovery.suspects import Suspects
from services.runtime.columns import Floats, floats, sensors
from services.runtime.messages import SensorOut, TupleBatch

EVERY_STEPS = 20
"""Between two looks at whether the factors have moved."""
MOVED = 0.03
"""A factor that moved by less, as a share, is not worth a record."""
DIGITS = 4
"""Significant digits of a factor in the log."""
REMEMBERED_STEPS = 2000
"""Steps whose estimates are kept for truths that come late."""


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
        truths: int64[groups], estimates whose truth was known; `within`: those whose truth lay within the bound.
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
        self.truths = np.zeros(len(self.groups), dtype=np.int64)
        self.within = np.zeros(len(self.groups), dtype=np.int64)
        self._suspects = Suspects(recovery.model, out=recovery.distrusted) if suspects else None
        self._reasons: dict[int, str] = {}
        self._steps = 0
        self._estimates: OrderedDict[int, tuple[npt.NDArray[np.intp], Floats, Floats]] = OrderedDict()

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
            self._estimates[step] = missing, estimate.mean[missing], self.recovery.raw_sd[missing]
            if len(self._estimates) > REMEMBERED_STEPS:
                self._estimates.popitem(last=False)
        self._judge(step, *self._shadow.observe(values, step))

    def late(self, batch: TupleBatch) -> None:
        """Take in readings that came after their step had closed: truths of what was estimated.

        A truth counts once, however often its batch comes: what has been judged is no longer known here. Only its own
        edge can tell a sensor's truth.
        """
        known = self._estimates.get(batch.step)
        if known is None:
            return
        missing, mean, sd = known
        told = dict(zip(sensors(batch.sensor).tolist(), floats(batch.value).tolist(), strict=True))
        told = {sensor: value for sensor, value in told.items() if self._edge_of.get(sensor) == batch.edge}
        truth = np.array([told.get(sensor, np.nan) for sensor in self._ids[self._places[missing]].tolist()])
        at, left = np.isfinite(truth), ~np.isfinite(truth)
        if at.any():
            self._judge(batch.step, missing[at], ratios(truth[at], mean[at], sd[at]))
            self._estimates[batch.step] = missing[left], mean[left], sd[left]

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

    def factors(self) -> Floats | None:
        """Return what should be in force, float64[n] of the slot's sensors; None = what is in force will do."""
        if self._steps < EVERY_STEPS:
            return None
        self._steps = 0
        given, table = self.recovery.given_factors, self.recovery.model.inflation(self._delta)
        present = np.full(len(self._places), table) if given is None else given
        # Shadow failures last 30 steps at most; an outage that lasts longer is further off than they tell.
        wanted = np.maximum(self._calibration.measured(self._delta, present), table)
        if (np.abs(wanted / present - 1) <= MOVED).all():
            return None
        result = np.zeros(len(self._ids))
        result[self._places] = [float(f"{factor:.{DIGITS}g}") for factor in wanted]
        return result

    def median_factors(self) -> Floats:
        """Return the median factor in force of each group."""
        given = self.recovery.given_factors
        if given is None:
            return np.full(len(self.groups), self.recovery.model.inflation(self._delta))
        return np.array(
            [float(np.median(given[self._calibration.group_of == number])) for number in range(len(self.groups))]
        )

    def _judge(self, step: int, places: npt.NDArray[np.intp], found: Floats) -> None:
        """Count truths by the bounds in force, and learn from them."""
        good = np.isfinite(found)
        places, found = places[good], found[good]
        if not len(places):
            return
        given = self.recovery.given_factors
        factor = self.recovery.model.inflation(self._delta) if given is None else given[places]
        of = self._calibration.group_of[places]
        self.truths += np.bincount(of, minlength=len(self.groups))
        self.within += np.bincount(of[found <= factor * self._multiple], minlength=len(self.groups))
        self._calibration.observe(step, places, found)
