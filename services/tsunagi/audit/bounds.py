"""Whether bounds hold as often as promised, of sensors that fail together and so miss together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scipy.special import betainc

from tsunagi.audit.tally import Tally

COVERAGE_SLACK = 0.05
"""Bounds may hold this much less often than promised."""

CHANCE = 0.01
"""And what is below that counts only if chance alone would bring it less often than this."""

TOGETHER = 0.03
"""Correlation between sensors of one edge whose outages begin together, of whether their bounds hold.

The demo's series, 27 and 53 sensors of an edge, outages of 1, 5 and 20 steps: the mean over an outage varies as with a
correlation of 0.025, 0.011, 0.009 and 0.026, 0.004, 0.014 (168, 86 and 30 outages; 2026-11-26)."""


@dataclass(slots=True)
class BoundCount:
    """Counts estimated values whose truth is known.

    Attributes:
        values: how many there are; held: those whose truth lay within the bound.
        began: how many sensors of an edge began an outage at a step, by (edge, step).
    """

    values: int = 0
    held: int = 0
    began: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def coverage(self) -> float | None:
        """The share of bounds that hold; None = nothing was estimated."""
        return self.held / self.values if self.values else None

    @property
    def outages(self) -> int:
        """Stretches of one sensor in which the values lie: the values of one are not independent."""
        return self.began.total()

    @property
    def worth(self) -> float:
        """How many independent values they are worth."""
        return worth(self.began.values())

    def judge(self, delta: float, tally: Tally) -> None:
        """Judge the share, once a run: who looks at it again and again sees it too low some time by chance.

        Args:
            delta: probability with which a bound must hold.
        """
        if self.coverage is not None and too_few_hold(self.coverage, self.worth, delta):
            tally.amiss(
                "bounds",
                f"bounds hold for {self.coverage:.1%} of {self.values} values in {self.outages} outages of a sensor, "
                f"worth {self.worth:.1f} independent ones; promised {delta:.0%}",
            )


def worth(together: Iterable[int]) -> float:
    """Return how many independent values outages are worth: the size of a sample by its design effect (Kish, 1965).

    Args:
        together: how many sensors of one edge began an outage at one step, for each such edge and step. All values of
            one sensor's outage count as one.
    """
    return sum(sensors / (1 + (sensors - 1) * TOGETHER) for sensors in together)


def too_few_hold(coverage: float, values: float, delta: float) -> bool:
    """Return whether fewer bounds hold than chance explains, of so many independent values (they need not be whole)."""
    held = coverage * values
    return coverage < delta - COVERAGE_SLACK and bool(betainc(values - held, held + 1, 1 - delta) < CHANCE)
