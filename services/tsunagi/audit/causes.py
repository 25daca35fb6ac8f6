"""Compares what happened in a run with the disturbances that were set. It does no I/O.

A slot may change its owner only if that owner or the broker was disturbed, or if the plan had asked for it. A batch may
be set aside only if its edge, the owner of its slot or the broker was disturbed. A batch that was set aside after its
step was closed has the truth about the values that were estimated meanwhile, so the bounds are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tsunagi.audit.bounds import BoundCount
from tsunagi.audit.evidence import AuditedOutput, Batch, OwnershipTerm
from tsunagi.audit.late import LateJudge, Refused
from tsunagi.audit.rules import is_measured
from tsunagi.audit.tally import Tally
from tsunagi.runtime.log import LATE

AFTER_US = 2_000_000
"""A disturbance may still be the cause of what happens this long after all was well again, in microseconds: an edge is
taken back a little later."""

SLOW_SHARE = 0.1
"""Share of all tuples that may reach the log too late for their steps, though nothing was done to their edges.

The share is large, because services that start again after a fault take the processors from the others on the machine.
"""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance. It lasts from just before it was set until all was well again.

    Attributes:
        node: the node that was disturbed.
        broker: whether that was the broker. It then disturbed everybody.
        owned: the slots that the node owned at the time.
        from_us, to_us: when the disturbance began and ended, in microseconds since 1970.
    """

    node: str
    broker: bool
    owned: frozenset[int]
    from_us: int
    to_us: int

    def explains(self, time_us: int, nodes: Iterable[str], slot: int | None = None) -> bool:
        """Return whether this may be the cause of what happened to one of the nodes, or to the slot, at that time."""
        inside = self.from_us <= time_us <= self.to_us + AFTER_US
        return inside and (self.broker or self.node in nodes or slot in self.owned)


class Judge:
    """Compares what happened with what was done.

    Args:
        tally: receives the findings.
        grace_us: how long after its time a step waits for a batch, in microseconds.
        delta: the probability with which a bound must hold.

    Attributes:
        bounds: the estimated values whose truth came later.
        late: the judge of batches that were set aside.
    """

    def __init__(self, tally: Tally, grace_us: int, delta: float) -> None:
        self._tally = tally
        self._delta = delta
        self._causes: list[Disturbance] = []
        # Of each sensor: the newest step that was compared with a truth, and the step at which its outage began.
        self._scored: dict[int, tuple[int, int]] = {}
        self.late = LateJudge(tally, grace_us, SLOW_SHARE)
        self.bounds = BoundCount()

    def cause(self, cause: Disturbance) -> None:
        """Note a disturbance."""
        self._causes.append(cause)

    def changed(self, before: OwnershipTerm, owner: OwnershipTerm) -> None:
        """Judge a change of owner that no plan had asked for."""
        if not any(cause.explains(owner.appended_us, [before.node]) for cause in self._causes):
            accuse_change(before, owner, self._tally)

    def refused(self, items: Iterable[Refused], step_us: int, tuples: int) -> None:
        """Judge batches that were set aside.

        Args:
            items: the batches, in log order.
            step_us: length of a step, in microseconds.
            tuples: how many tuples the edges have handed over in all so far.
        """

        def excused(item: Refused) -> bool:
            batch = item.batch
            after_us = (batch.step + 1) * step_us
            return any(cause.explains(after_us, [batch.edge], batch.slot) for cause in self._causes)

        items = list(items)
        for item in items:
            if item.aside.topic == LATE and item.output is not None:
                self._score(item.batch, item.output)
        self.late.judge(items, excused, step_us, tuples)

    def finish(self) -> None:
        """Judge the bounds. This is called once, at the end of the run."""
        self.bounds.judge(self._delta, self._tally)

    def _score(self, batch: Batch, output: AuditedOutput) -> None:
        """Compare the estimates of a step with the readings that came after the step was closed."""
        places = {int(sensor): place for place, sensor in enumerate(output.sensor.tolist())}
        measured = is_measured(output.quality)
        for sensor, value in zip(batch.sensor.tolist(), batch.value.tolist(), strict=True):
            place = places.get(sensor)
            last, began = self._scored.get(sensor, (-2, -2))
            if place is None or measured[place] or batch.step <= last:
                continue
            self.bounds.values += 1
            held = abs(float(output.mean[place]) - value) <= float(output.bound[place])
            self.bounds.held += held
            if batch.step != last + 1:
                began = batch.step
                self.bounds.began[batch.edge, began] += 1
            self.bounds.lost[began] += 1
            self.bounds.missed[began] += not held
            self._scored[sensor] = batch.step, began


def accuse_change(before: OwnershipTerm, owner: OwnershipTerm, tally: Tally, reason: str = "reason not known") -> None:
    """Report that a slot changed its owner without a cause.

    Args:
        before: the owner before the change.
        owner: the new owner.
        tally: receives the finding.
        reason: the reason that the new owner noted.
    """
    tally.amiss(
        "owner changes",
        f"slot {owner.slot}: {before.node} -> {owner.node} (epoch {owner.epoch}, {reason}) at {owner.appended_us}, and "
        "nothing was done to the owner",
    )
