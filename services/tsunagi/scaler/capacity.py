"""What one worker of a type can process: benchmarked or told, then corrected by what its workers really do.

The paper gives each type a rate measured beforehand and proposes to correct it by feedback while the system runs
(ElasticStream, sections 4.2 and 5). Two things correct it:

- throughput: only a worker whose queue is never empty says anything of it (`tsunagi.scaler.load.Saturation`);
- latency by type: workers that were given less than that and still kept tuples waiting (they stall now and then) keep
  the promised delay with a share of their rate only (`tsunagi.scaler.load.Delays`).

One measurement moves a figure by a part only, since a slow moment is not a slow machine.
"""

from __future__ import annotations

import math

from tsunagi.runtime import metrics
from tsunagi.runtime.settings import Scaler
from tsunagi.scaler.load import Latency

WEIGHT = 0.2
BOUNDS = 0.25, 4.0
"""A corrected rate stays within these multiples of the one that was benchmarked."""

LATE = 0.01
"""Share of a type's tuples that may be late before less is asked of it."""
SAFE = 0.9
"""Of the load at which they were late: what is asked of it then."""
LEAST = 0.5
"""No promise is chased below this share of a rate: it would cost more than twice the workers."""
TRIED = 0.8
RETURN = 0.2, 0.05
"""On time, a type is asked for more again, by so much of what is missing: the first where it had `TRIED` of what it is
asked, the second where it had less. Little says little, but a type that is asked for little may never have more."""


def corrected(before: float | None, measured: float, told: float | None) -> float:
    """Return a type's rate after what a saturated worker of it has processed, tuples/s.

    Args:
        before: the rate so far; None = not known.
        told: the rate that was benchmarked; None = none was.
    """
    after = measured if before is None else before + WEIGHT * (measured - before)
    return after if told is None else min(max(after, BOUNDS[0] * told), BOUNDS[1] * told)


def within(before: float, latency: Latency) -> float:
    """Return at what share of its rate a type keeps the promised delay, after what was measured of it.

    Args:
        before: the share so far, 1 = nothing was ever late.
    """
    if latency.late_share > LATE:
        return max(LEAST, before + WEIGHT * min(0.0, SAFE * latency.load - before))
    return before + RETURN[latency.load < TRIED * before] * (1.0 - before)


class Capacities:
    """Tuples/s of one worker, by type, with which it keeps the promised delay."""

    def __init__(self, settings: Scaler) -> None:
        self._told = {kind: size.rate or size.limit for kind, size in settings.sizes.items()}
        self._rates: dict[str, float] = {kind: rate for kind, rate in self._told.items() if rate is not None}
        self._within: dict[str, float] = {}

    def of(self, kind: str) -> float:
        """Return a type's rate; of one that nobody has measured the mean of the others, or 1."""
        return self.throughput(kind) * self._within.get(kind, 1.0)

    def throughput(self, kind: str) -> float:
        """Return what a worker of a type processes when it is never idle, however late."""
        known = self._rates.get(kind)
        if known is not None:
            return known
        return sum(self._rates.values()) / len(self._rates) if self._rates else 1.0

    def knows(self, kind: str) -> bool:
        """Return whether a type's rate was told or measured."""
        return kind in self._rates

    @property
    def within(self) -> dict[str, float]:
        """The share of its rate at which a type keeps the promised delay; types that keep it with all are missing."""
        return dict(self._within)

    def correct(self, kind: str, rate: float) -> None:
        """Take in what a saturated worker of a type has processed, tuples/s."""
        if rate <= 0:
            return
        after = self._rates[kind] = corrected(self._rates.get(kind), rate, self._told.get(kind))
        metrics.TYPE_RATE.labels(type=kind).set(after)

    def on_latency(self, kind: str, latency: Latency) -> None:
        """Take in how long tuples have waited for a type's workers."""
        if math.isnan(latency.late_share):
            return
        after = within(self._within.get(kind, 1.0), latency)
        if after < 1.0:
            self._within[kind] = after
        metrics.TYPE_WITHIN.labels(type=kind).set(after)
