"""What was done to the system, and what must not have happened without it. Pure.

A slot changes its owner only if that owner, or the broker, was disturbed, or if the plan had asked for it. A batch is
set aside only if its edge, its slot's owner or the broker was disturbed. A batch that was set aside after its step was
closed holds the truth about values that were estimated, and bounds are counted against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tsunagi.chaos.tally import Tally
from tsunagi.demo.evidence import Batch, Output, Owner
from tsunagi.demo.promises import Slow, too_few_hold, worth
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import BOUNDED, UNBOUNDED

AFTER_US = 2_000_000
"""So long after all was well again a disturbance may still be the cause: an edge is taken back a little later."""

SLOW_SHARE = 0.1
"""Share of all tuples that may reach the log after their step has waited for them as long as it must.

Whatever starts again after a fault takes the processors from the others on the same machine.
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """A disturbance, from just before it was set until all was well again.

    Attributes:
        node: who was disturbed; broker: it was the broker, and with it everybody.
        owned: the slots that the node owned then.
    """

    node: str
    broker: bool
    owned: frozenset[int]
    from_us: int
    to_us: int

    def explains(self, time_us: int, nodes: Iterable[str], slot: int | None = None) -> bool:
        """Return whether it may be the cause of what befell one of these nodes, or a slot, at that time."""
        inside = self.from_us <= time_us <= self.to_us + AFTER_US
        return inside and (self.broker or self.node in nodes or slot in self.owned)


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch with readings that was set aside, into which topic, and what came out for its step (None = not known)."""

    batch: Batch
    topic: str
    output: Output | None


class Judge:
    """Compares what happened with what was done.

    Args:
        grace_us: how long after its time a step waits for a batch.
        delta: probability with which a bound must hold.

    Attributes:
        bounds: estimated values whose truth came later; held: those within their bounds.
        slow: tuples that came into the log too late for their steps, though nothing was done to their edges.
    """

    def __init__(self, tally: Tally, grace_us: int, delta: float) -> None:
        self._tally = tally
        self._grace_us = grace_us
        self._delta = delta
        self._causes: list[Cause] = []
        self._slowness = Slow()
        self._scored: dict[int, int] = {}  # sensor -> its newest step with a truth
        self._began: Counter[tuple[str, int]] = Counter()  # (edge, step) -> sensors whose outage began there
        self.bounds = self.held = self.slow = 0

    @property
    def outages(self) -> int:
        """Stretches of one sensor in which the estimated values lie whose truth came later."""
        return self._began.total()

    def cause(self, cause: Cause) -> None:
        """Note what was done."""
        self._causes.append(cause)

    def changed(self, before: Owner, owner: Owner) -> None:
        """Judge a change of owner that no plan had asked for."""
        if any(cause.explains(owner.appended_us, [before.node]) for cause in self._causes):
            return
        self._tally.amiss(
            "owner changes",
            f"slot {owner.slot}: {before.node} -> {owner.node} (epoch {owner.epoch}) at {owner.appended_us}, and "
            "nothing was done to the owner",
        )

    def refused(self, items: Iterable[Refused], step_us: int, tuples: int) -> None:
        """Judge batches that were set aside, in log order.

        Args:
            step_us: length of a step.
            tuples: how many were handed over in all so far.
        """
        unexplained: dict[tuple[str, str, int], list[Batch]] = {}
        for item in items:
            batch = item.batch
            if item.topic == LATE and item.output is not None:
                self._score(batch, item.output)
            if not self._explained(item, batch.step * step_us, step_us):
                unexplained.setdefault((item.topic, batch.edge, batch.slot), []).append(batch)
        for (topic, edge, slot), batches in unexplained.items():
            count = sum(len(batch.sensor) for batch in batches)
            delays = [(batch.appended_us - batch.step * step_us) / 1e6 for batch in batches]
            self._tally.amiss(
                topic,
                f"slot {slot}: {count} tuples of {edge}, which lived, went to {topic}; they had come "
                f"{min(delays):.3f} to {max(delays):.3f} s after their times",
                count,
            )
        if self.slow > SLOW_SHARE * tuples and "slow" not in self._tally.wrong:
            self._tally.amiss(
                "slow", f"{self.slow} of {tuples} tuples came too late for their steps from edges that lived"
            )

    def finish(self) -> None:
        """Judge the bounds, once: who looks at a share after each round sees it too low some time by chance."""
        values = worth(self._began.values())
        if self.bounds and too_few_hold(self.held / self.bounds, values, self._delta):
            self._tally.amiss(
                "bounds",
                f"{self.held} of {self.bounds} bounds hold, in {self.outages} outages of a sensor, worth {values:.1f} "
                f"independent ones; promised {self._delta:.0%}",
            )

    def _explained(self, item: Refused, time_us: int, step_us: int) -> bool:
        batch = item.batch
        if any(cause.explains(time_us + step_us, [batch.edge], batch.slot) for cause in self._causes):
            return True
        if item.topic != LATE:
            return False
        if not self._slowness.holds(batch, time_us, step_us, self._grace_us):
            return False
        self.slow += len(batch.sensor)
        return True

    def _score(self, batch: Batch, output: Output) -> None:
        """Hold the estimates of a step against the readings that came after it."""
        places = {int(sensor): place for place, sensor in enumerate(output.sensor.tolist())}
        estimated = np.isin(output.quality, (BOUNDED, UNBOUNDED))
        for sensor, value in zip(batch.sensor.tolist(), batch.value.tolist(), strict=True):
            place = places.get(sensor)
            last = self._scored.get(sensor, -2)
            if place is None or not estimated[place] or batch.step <= last:
                continue
            self.bounds += 1
            self.held += abs(float(output.mean[place]) - value) <= float(output.bound[place])
            if batch.step != last + 1:
                self._began[batch.edge, batch.step] += 1
            self._scored[sensor] = batch.step
