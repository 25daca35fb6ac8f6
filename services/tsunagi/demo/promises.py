"""What a run keeps beyond its rows.

No batch of a living edge is refused, no owner is replaced without a cause, every output carries the term in which its
input stands, and bounds hold as often as promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import betainc

from tsunagi.demo.delivery import Delivery
from tsunagi.demo.evidence import Aside, Batch, Collected, Output, SlotLog
from tsunagi.demo.findings import Findings, Mask, World
from tsunagi.runtime.columns import Floats

COVERAGE_SLACK = 0.05
"""Bounds may hold this much less often than promised."""

CHANCE = 0.01
"""And what is below that counts only if chance alone would bring it less often than this."""

TOGETHER = 0.03
"""Correlation between sensors of one edge whose outages begin together, of whether their bounds hold.

The demo's series, 27 and 53 sensors of an edge, outages of 1, 5 and 20 steps: the mean over an outage varies as with a
correlation of 0.025, 0.011, 0.009 and 0.026, 0.004, 0.014 (168, 86 and 30 outages; 2026-11-26)."""

LET_IN_US = 3_000_000
"""An edge that starts while the others' steps close already may wait so long to be let in."""

SLOW_SHARE = 0.02
"""Share of all tuples that may reach the log after their step has waited for them as long as it must.

Of a demo's stream that is what is on its way in one second, in which a busy machine did nothing."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Steps in which an edge's batches may be late, by event time."""

    from_us: int
    to_us: int

    def holds(self, time_us: int) -> bool:
        return self.from_us <= time_us <= self.to_us


class Slow:
    """Tells batches that came into the log after their step had waited for them as long as it must.

    That holds for those after such a one, too, until their edge has been taken back. An owner gives an edge a slide and
    `grace_s` from its last batch on, and that one came at its own time at the earliest.
    """

    def __init__(self) -> None:
        self._until_us: dict[tuple[int, str], int] = {}

    def holds(self, batch: Batch, time_us: int, slide_us: int, grace_us: int) -> bool:
        """Take in a batch of a slot and edge, in log order; return whether it is one of these.

        Args:
            time_us: of its step.
            slide_us: from step to step.
            grace_us: how long after its time a step waits.
        """
        key = (batch.slot, batch.edge)
        if batch.appended_us > time_us + grace_us:
            self._until_us[key] = batch.appended_us + slide_us + grace_us
        return time_us <= self._until_us.get(key, -1)


def check_promises(
    logs: Mapping[int, SlotLog],
    outputs: Mapping[int, Sequence[Output]],
    asides: Mapping[tuple[int, int], Aside],
    delivery: Delivery,
    collected: Collected,
    world: World,
    findings: Findings,
) -> None:
    """Judge late batches, dead letters, owners, terms and bounds.

    Args:
        asides: what stands in `late` and `dead-letters`, by slot and offset.
    """
    _check_terms(logs, outputs, findings)
    if world.undisturbed:
        _check_asides(logs, asides, collected, world, findings)
        _check_owners(logs, collected, findings)
        _check_bounds(delivery, world, findings)


# ---- owners ----------------------------------------------------------------------------------------------------------


def _check_terms(logs: Mapping[int, SlotLog], outputs: Mapping[int, Sequence[Output]], findings: Findings) -> None:
    """An output carries the epoch that its slot's log had come to where the input stands that caused it."""
    for slot, slot_outputs in outputs.items():
        owners = logs[slot].owners if slot in logs else []
        starts = np.array([owner.offset for owner in owners], dtype=np.int64)
        epochs = [0, *(owner.epoch for owner in owners)]
        for output in slot_outputs:
            epoch = epochs[int(np.searchsorted(starts, output.name.offset, side="right"))]
            if output.epoch != epoch:
                findings.wrong["epoch"] += 1
                findings.problem(
                    f"recovered/{slot}, name {tuple(output.name)}: of epoch {output.epoch}, and its input stands in "
                    f"epoch {epoch}"
                )


def _check_owners(logs: Mapping[int, SlotLog], collected: Collected, findings: Findings) -> None:
    """A slot changes its owner only when the owner was killed, or when the run was over."""
    for slot, slot_log in sorted(logs.items()):
        for before, owner in pairwise(slot_log.owners):
            if collected.cause(before, owner):
                continue
            findings.wrong["owner changes"] += 1
            reason = collected.note(owner).get("reason", "reason not known")
            findings.problem(
                f"slot {slot}: {before.node} -> {owner.node} (epoch {owner.epoch}, {reason}) at {owner.appended_us}, "
                "and nobody had killed the owner"
            )


# ---- late and dead ---------------------------------------------------------------------------------------------------


def _check_asides(
    logs: Mapping[int, SlotLog],
    asides: Mapping[tuple[int, int], Aside],
    collected: Collected,
    world: World,
    findings: Findings,
) -> None:
    """Whatever a living edge hands over in time is used.

    A batch may be late if its edge was down then or had just started, or if it came into the log after its step had
    waited for it as long as it must: that is the machine's doing, and may be so for few.
    """
    slow, slowness = 0, Slow()
    written = {(slot, record.offset) for slot, records in collected.tuples.items() for record in records}
    for slot, offset in sorted(asides.keys() - written):
        findings.wrong["asides"] += 1
        findings.problem(f"{asides[slot, offset].topic}: names tuples/{slot}, offset {offset}, where nothing stands")
    for slot, slot_log in logs.items():
        for edge, batches in _refused(slot, slot_log, asides, findings).items():
            spans = list(_spans(edge, slot_log, asides, collected, world))
            for batch in batches:
                time_us = batch.step * world.steps.slide_us
                if any(span.holds(time_us) for span in spans):
                    continue
                if slowness.holds(batch, time_us, world.steps.slide_us, round(world.steps.grace_s * 1e6)):
                    slow += len(batch.sensor)
                    continue
                findings.wrong["late"] += len(batch.sensor)
                findings.problem(
                    f"tuples/{slot}, offset {batch.offset} ({edge}, step {batch.step}): refused as late, and it had "
                    f"come {(batch.appended_us - time_us) / 1e6:.3f} s after its time from an edge that lived"
                )
    findings.slow = slow
    if slow > SLOW_SHARE * findings.tuples_in:
        findings.wrong["slow"] += slow
        findings.problem(f"{slow} of {findings.tuples_in} tuples came too late for their steps from edges that lived")


def _refused(
    slot: int, slot_log: SlotLog, asides: Mapping[tuple[int, int], Aside], findings: Findings
) -> dict[str, list[Batch]]:
    """Return the late batches with readings by edge, in log order; nothing is a reason for a dead letter."""
    late: dict[str, list[Batch]] = {}
    reasons: Counter[str] = Counter()
    for batch in slot_log.batches:
        aside = asides.get((slot, batch.offset))
        if aside is None or not len(batch.sensor):
            continue
        if aside.topic == "late":
            late.setdefault(batch.edge, []).append(batch)
        else:
            reasons[aside.reason] += len(batch.sensor)
    for reason, tuples in reasons.items():
        findings.wrong["dead letters"] += tuples
        findings.problem(f"tuples/{slot}: {tuples} tuples of edges went to dead-letters, {reason}")
    return late


def _spans(
    edge: str, slot_log: SlotLog, asides: Mapping[tuple[int, int], Aside], collected: Collected, world: World
) -> Iterator[_Span]:
    """Yield the times in which an edge's batches may be late: while it starts, and around its outages."""
    own = [batch for batch in slot_log.batches if batch.edge == edge and len(batch.sensor)]
    began_us = own[0].appended_us
    used = (batch.appended_us for batch in own if (slot_log.slot, batch.offset) not in asides)
    let_in_us = min(next(used, began_us + LET_IN_US), began_us + LET_IN_US)
    yield _Span(0, max(let_in_us, began_us + _patience_us(world)))
    for outage in collected.outages:
        if outage.edge == edge:
            yield _Span(outage.from_us - world.steps.slide_us, world.back_us(outage.to_us) + _patience_us(world))


def _patience_us(world: World) -> int:
    """Return how long an owner waits for an edge's next batch."""
    return round(world.steps.grace_s * 1e6) + world.steps.slide_us


# ---- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scored:
    """The estimated values whose truth is known.

    Attributes:
        where: bool[steps of the CSV, n].
        off: float64[values], the error; bound: float64[values], the half width promised.
        outages: stretches of one sensor's estimated steps: the values of one are not independent.
        worth: how many independent values they are worth (`worth`).
    """

    where: Mask
    off: Floats
    bound: Floats
    outages: int
    worth: float

    @property
    def coverage(self) -> float | None:
        """The share of bounds that hold; None = nothing was estimated."""
        return float((self.off <= self.bound).mean()) if len(self.off) else None


def score(delivery: Delivery, world: World) -> Scored:
    """Compare the estimated values with the CSV's own windows."""
    first = world.truth.first_step - delivery.first_step
    rows = slice(first, first + len(world.truth.values))
    where = delivery.estimated[rows] & ~np.isnan(world.truth.values)
    off = np.abs(delivery.mean[rows] - world.truth.values)[where]
    starts = np.diff(where.astype(np.int8), axis=0, prepend=0) > 0
    edges = [sensor.edge for sensor in world.table.sensors]
    together = Counter((int(step), edges[sensor]) for step, sensor in zip(*np.nonzero(starts), strict=True))
    return Scored(where, off, delivery.bound[rows][where], int(starts.sum()), worth(together.values()))


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


def _check_bounds(delivery: Delivery, world: World, findings: Findings) -> None:
    scored = score(delivery, world)
    if scored.coverage is not None and too_few_hold(scored.coverage, scored.worth, world.delta):
        findings.wrong["bounds"] += 1
        findings.problem(
            f"bounds hold for {scored.coverage:.1%} of {len(scored.off)} values in {scored.outages} outages of a "
            f"sensor, worth {scored.worth:.1f} independent ones; promised {world.delta:.0%}"
        )
