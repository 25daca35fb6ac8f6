"""What one worker of a type can process: benchmarked or told, then corrected by what saturated workers really do.

The paper gives each type a rate measured beforehand and proposes to correct it by feedback while the system runs. Here
only a worker whose queue is never empty says anything of its capacity (`services.scaler.load.Saturation`), and one
measurement moves the figure by a part only, since a slow moment is not a slow machine.
"""

from __future__ import annotations

from services.runtime import metrics
from services.runtime.settings import Scaler

WEIGHT = 0.2
BOUNDS = 0.25, 4.0
"""A corrected rate stays within these multiples of the one that was benchmarked."""


def corrected(before: float | None, measured: float, told: float | None) -> float:
    """Return a type's rate after what a saturated worker of it has processed, tuples/s.

    Args:
        before: the rate so far; None = not known.
        told: the rate that was benchmarked; None = none was.
    """
    after = measured if before is None else before + WEIGHT * (measured - before)
    return after if told is None else min(max(after, BOUNDS[0] * told), BOUNDS[1] * told)


class Capacities:
    """Tuples/s of one worker, by type."""

    def __init__(self, settings: Scaler) -> None:
        self._told = {kind: size.rate or size.limit for kind, size in settings.sizes.items()}
        self._rates: dict[str, float] = {kind: rate for kind, rate in self._told.items() if rate is not None}

    def of(self, kind: str) -> float:
        """Return a type's rate; of one that nobody has measured the mean of the others, or 1."""
        known = self._rates.get(kind)
        if known is not None:
            return known
        return sum(self._rates.values()) / len(self._rates) if self._rates else 1.0

    def known(self) -> dict[str, float]:
        """Return the rates of all types that are known."""
        return dict(self._rates)

    def correct(self, kind: str, rate: float) -> None:
        """Take in what a saturated worker of a type has processed, tuples/s."""
        if rate <= 0:
            return
        after = self._rates[kind] = corrected(self._rates.get(kind), rate, self._told.get(kind))
        metrics.TYPE_RATE.labels(type=kind).set(after)
