"""How much a worker of each type can process: benchmarked or configured, then corrected by what workers do.

The paper gives each type a rate that is measured beforehand, and proposes to correct it by feedback while the system
runs (ElasticStream, sections 4.2 and 5). Two kinds of measurement correct it:

- throughput: only a worker whose queue is never empty tells it (`tsunagi.scaler.load.Saturation`);
- latency by type: workers that were given less than they can process and still let tuples wait (they stall now and
then) can keep the promised delay only with a part of their rate (`tsunagi.scaler.load.Delays`).

One measurement changes a figure only in part, since a slow moment does not make a slow machine.
"""

from __future__ import annotations

import math

from tsunagi.runtime import metrics
from tsunagi.runtime.settings import ScalerSettings
from tsunagi.scaler.load import WorkerLatency

WEIGHT = 0.2
"""Weight of one new measurement of throughput or latency in the corrected figure."""
BOUNDS = 0.25, 4.0
"""A corrected rate stays between these multiples of the benchmarked rate, so that false measurements cannot do any
harm."""

LATE = 0.01
"""If more than this share of a type's tuples is late, less load is planned for its workers."""
SAFE = 0.9
"""The load that is planned then, as a share of the load at which tuples were late."""
LEAST = 0.5
"""A type is never planned with less than this share of its rate: more than twice the workers for the same load would
cost too much for a promise of delay."""
TRIED = 0.8
"""A worker that had at least this share of its planned load has shown that it can keep the delay with it."""
RETURN = 0.2, 0.05
"""While tuples are on time, the planned load grows again by this part of what is missing to the full rate. The first
number holds where workers had `TRIED` of their planned load, the second where they had less. Little load shows little,
but without the second number a type with little load might never be given more."""


def corrected(before: float | None, measured: float, told: float | None) -> float:
    """Return the rate of a type, in tuples/s, after a saturated worker of it has processed `measured`.

    Args:
        before: the rate so far; None if it is not known.
        told: the benchmarked rate; None if there is none.
    """
    after = measured if before is None else before + WEIGHT * (measured - before)
    return after if told is None else min(max(after, BOUNDS[0] * told), BOUNDS[1] * told)


def within(before: float, latency: WorkerLatency) -> float:
    """Return the share of its rate with which a type keeps the promised delay, after a new measurement of its latency.

    Args:
        before: the share so far; 1 if no tuple was ever late.
    """
    if latency.late_share > LATE:
        return max(LEAST, before + WEIGHT * min(0.0, SAFE * latency.load - before))
    return before + RETURN[latency.load < TRIED * before] * (1.0 - before)


class Capacities:
    """The tuples/s that one worker of each type can process within the promised delay."""

    def __init__(self, settings: ScalerSettings) -> None:
        self._told = {kind: size.rate or size.limit for kind, size in settings.sizes.items()}
        self._rates: dict[str, float] = {kind: rate for kind, rate in self._told.items() if rate is not None}
        self._within: dict[str, float] = {}
        for kind, rate in self._rates.items():
            metrics.TYPE_RATE.labels(type=kind).set(rate)

    def of(self, kind: str) -> float:
        """Return the rate of a type; for a type that nobody has measured the mean of the others, or 1 without any."""
        return self.throughput(kind) * self._within.get(kind, 1.0)

    def throughput(self, kind: str) -> float:
        """Return the tuples/s that a worker of a type processes when it is never idle, however late they are."""
        known = self._rates.get(kind)
        if known is not None:
            return known
        return sum(self._rates.values()) / len(self._rates) if self._rates else 1.0

    def knows(self, kind: str) -> bool:
        """Return whether the rate of a type has been configured or measured."""
        return kind in self._rates

    @property
    def within(self) -> dict[str, float]:
        """The share of its rate with which a type keeps the promised delay; a missing type needs no limit."""
        return dict(self._within)

    def correct(self, kind: str, rate: float) -> None:
        """Correct the rate of a type by what one saturated worker of it has processed, in tuples/s."""
        if rate <= 0:
            return
        after = self._rates[kind] = corrected(self._rates.get(kind), rate, self._told.get(kind))
        metrics.TYPE_RATE.labels(type=kind).set(after)

    def on_latency(self, kind: str, latency: WorkerLatency) -> None:
        """Correct the rate of a type by how long tuples have waited for its workers."""
        if math.isnan(latency.late_share):
            return
        after = within(self._within.get(kind, 1.0), latency)
        if after < 1.0:
            self._within[kind] = after
        metrics.TYPE_WITHIN.labels(type=kind).set(after)
