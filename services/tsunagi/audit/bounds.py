"""Judges whether bounds hold as often as promised. Sensors that fail at one moment also miss together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scipy.special import betainc

from tsunagi.audit.tally import Tally

COVERAGE_SLACK = 0.05
"""The share of bounds that hold may be this much below the promised one: a fitted model is never quite right."""

CHANCE = 0.002
"""A share is a finding only if it comes by chance with less than this probability where `COVERAGE_SLACK` is used up.

A run has few outages. On the demo's series bounds hold for 86 % of the values in outages of twenty steps, and for 71 to
100 % in single ones (53 sensors of an edge, 104 outages; 2026-11-30). So a share of one run says little."""

TOGETHER = 0.03
"""Correlation, between two sensors whose outages begin together, of whether their bounds hold.

It is a round value above all that were measured on the demo's series while some edges lived: for 27 sensors of an edge
and outages of 1, 5 and 20 steps, the mean over an outage varied as with a correlation of 0.025, 0.011 and 0.009, and
for 53 sensors as with 0.026, 0.004 and 0.014 (168, 86 and 30 outages; 2026-11-26).

While all edges are out, it is 0.015, 0.048 and 0.069 for outages of 1, 3 and 10 steps. The value stays, since bounds
hold for 94 to 99 % of the values then (`python -m tests.bench.all_out`, 2026-11-29)."""


@dataclass(slots=True)
class BoundCount:
    """Counts estimated values whose truth is known.

    Attributes:
        values: how many values there are.
        held: how many of them have their truth within the bound.
        began: how many sensors of an edge began an outage at a step, by (edge, step).
        lost: how many values the outages have that began at a step, by that step.
        missed: of how many of them the bound does not hold.
    """

    values: int = 0
    held: int = 0
    began: Counter[tuple[str, int]] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    missed: Counter[int] = field(default_factory=Counter)

    @property
    def coverage(self) -> float | None:
        """The share of bounds that hold; None if nothing was estimated."""
        return self.held / self.values if self.values else None

    @property
    def outages(self) -> int:
        """How many outages of a sensor the values come from. The values of one outage are not independent."""
        return self.began.total()

    @property
    def worth(self) -> float:
        """How many independent values would say as much about the share.

        Edges that went out at one step count as one: what surprises the model then surprises it at all of them.
        """
        together: Counter[int] = Counter()
        for (_, step), sensors in self.began.items():
            together[step] += sensors
        return worth((sensors, self.lost[step]) for step, sensors in together.items())

    def judge(self, delta: float, tally: Tally) -> None:
        """Judge the share, once a run: by chance a share that is looked at often is too low at some time.

        Args:
            delta: the probability with which a bound must hold.
            tally: receives the finding.
        """
        if self.coverage is not None and too_few_hold(self.coverage, self.worth, delta):
            tally.amiss(
                "bounds",
                f"bounds hold for {self.coverage:.1%} of {self.values} values in {self.outages} outages of a sensor, "
                f"worth {self.worth:.1f} independent ones; promised {delta:.0%}{self._worst()}",
            )

    def _worst(self) -> str:
        """Say in which outage most bounds fail; "" = it is not known."""
        if not self.missed:
            return ""
        step, missed = self.missed.most_common(1)[0]
        edges = ", ".join(sorted(edge for edge, began in self.began if began == step))
        return f"; most fail in the outage of {edges} at step {step}: {missed} of {self.lost[step]}"


def worth(together: Iterable[tuple[int, int]]) -> float:
    """Return how many independent values would say as much as these outages, by the design effect (Kish, 1965).

    An outage that lasts long has more values than a short one, and weighs as much more in the share. So a share that
    few long outages decide is worth no more than these few, however many short ones there are beside them.

    Args:
        together: for each step at which outages began, how many sensors' outages began, and how many values they have.
            All values of one sensor's outage are taken as equal.
    """
    found = list(together)
    variance = sum(values**2 * (1 + (sensors - 1) * TOGETHER) / sensors for sensors, values in found)
    return sum(values for _, values in found) ** 2 / variance if variance else 0.0


def too_few_hold(coverage: float, values: float, delta: float) -> bool:
    """Return whether fewer bounds hold than chance explains, if they hold as rarely as they may.

    Args:
        coverage: the share of bounds that hold.
        values: the number of independent values, which need not be whole.
        delta: the probability with which a bound must hold.
    """
    held = coverage * values
    return bool(betainc(values - held, held + 1, 1 - delta + COVERAGE_SLACK) < CHANCE)
