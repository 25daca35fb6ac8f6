"""Checks what a run must keep beyond its rows.

No batch of a living edge is refused, no owner is replaced without a cause, every output carries the epoch in which its
input was appended, and bounds hold as often as promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tsunagi.audit.bounds import BoundCount
from tsunagi.audit.causes import accuse_change
from tsunagi.audit.delivery import Delivery
from tsunagi.audit.evidence import Aside, AuditedOutput, Collected, SlotLog
from tsunagi.audit.late import LateJudge, Refused
from tsunagi.audit.rules import Mask
from tsunagi.audit.tally import Findings
from tsunagi.audit.truth import World
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.log import LATE

LET_IN_US = 3_000_000
"""Longest time until an edge is let in that starts while the steps of the others already close, in microseconds."""

SLOW_SHARE = 0.02
"""Share of all tuples that may reach the log too late for their steps, though nothing was done to their edges.

In a demo's stream of 50 s that is one second's worth of tuples: a busy machine may do nothing for that long."""


def check_promises(
    logs: Mapping[int, SlotLog],
    outputs: Mapping[int, Sequence[AuditedOutput]],
    asides: Mapping[tuple[int, int], Aside],
    delivery: Delivery,
    collected: Collected,
    world: World,
    findings: Findings,
) -> None:
    """Judge late batches, dead letters, owners, epochs and bounds.

    Args:
        asides: the records of `late` and `dead-letters`, by slot and offset.
    """
    _check_terms(logs, outputs, findings)
    if world.undisturbed:
        _check_asides(logs, asides, collected, world, findings)
        _check_owners(logs, collected, findings)
        score(delivery, world).count.judge(world.delta, findings)


# ---- owners ----------------------------------------------------------------------------------------------------------


def _check_terms(
    logs: Mapping[int, SlotLog], outputs: Mapping[int, Sequence[AuditedOutput]], findings: Findings
) -> None:
    """Check that each output carries the epoch that was current in its slot's log at the input that caused it."""
    for slot, slot_outputs in outputs.items():
        owners = logs[slot].owners if slot in logs else []
        starts = np.array([owner.offset for owner in owners], dtype=np.int64)
        epochs = [0, *(owner.epoch for owner in owners)]
        for output in slot_outputs:
            epoch = epochs[int(np.searchsorted(starts, output.name.offset, side="right"))]
            if output.epoch != epoch:
                findings.amiss("epoch", f"{output.place}: its input stands in epoch {epoch}")


def _check_owners(logs: Mapping[int, SlotLog], collected: Collected, findings: Findings) -> None:
    """Check that a slot changes its owner only after the owner was killed, or after the run was over."""
    for _, slot_log in sorted(logs.items()):
        for before, owner in pairwise(slot_log.owners):
            if not collected.cause(before, owner):
                accuse_change(before, owner, findings, collected.note(owner).get("reason", "reason not known"))


# ---- late and dead ---------------------------------------------------------------------------------------------------


def _check_asides(
    logs: Mapping[int, SlotLog],
    asides: Mapping[tuple[int, int], Aside],
    collected: Collected,
    world: World,
    findings: Findings,
) -> None:
    """Check that every batch that a living edge hands over in time is used.

    A batch may be late if its edge was down or had just started. It may also be late if it reached the log after its
    step had waited for it long enough: then the machine was slow, and few batches may be so. Nothing excuses a dead
    letter.
    """
    written = {(slot, record.offset) for slot, records in collected.tuples.items() for record in records}
    for slot, offset in sorted(asides.keys() - written):
        findings.amiss(
            "asides", f"{asides[slot, offset].topic}: names tuples/{slot}, offset {offset}, where nothing stands"
        )
    refused = []
    spans: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for slot, slot_log in logs.items():
        for batch in slot_log.batches:
            aside = asides.get((slot, batch.offset))
            if aside is not None and len(batch.sensor):
                refused.append(Refused(batch, aside))
                if (slot, batch.edge) not in spans:
                    spans[slot, batch.edge] = list(_spans(batch.edge, slot_log, asides, collected, world))

    def excused(item: Refused) -> bool:
        batch = item.batch
        time_us = batch.step * world.steps.slide_us
        of_edge = spans[batch.slot, batch.edge]
        return item.aside.topic == LATE and any(from_us <= time_us <= to_us for from_us, to_us in of_edge)

    judge = LateJudge(findings, round(world.steps.grace_s * 1e6), SLOW_SHARE)
    judge.judge(refused, excused, world.steps.slide_us, findings.tuples_in)
    findings.slow = judge.slow


def _spans(
    edge: str, slot_log: SlotLog, asides: Mapping[tuple[int, int], Aside], collected: Collected, world: World
) -> Iterator[tuple[int, int]]:
    """Yield (from, to), the spans of event time in which an edge's batches may be late: its start and its outages."""
    own = [batch for batch in slot_log.batches if batch.edge == edge and len(batch.sensor)]
    began_us = own[0].appended_us
    used = (batch.appended_us for batch in own if (slot_log.slot, batch.offset) not in asides)
    let_in_us = min(next(used, began_us + LET_IN_US), began_us + LET_IN_US)
    yield 0, max(let_in_us, began_us + _patience_us(world))
    for outage in collected.outages:
        if outage.edge == edge:
            yield outage.from_us - world.steps.slide_us, world.back_us(outage.to_us) + _patience_us(world)


def _patience_us(world: World) -> int:
    """Return how long an owner waits for an edge's next batch, in microseconds."""
    return round(world.steps.grace_s * 1e6) + world.steps.slide_us


# ---- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scored:
    """The estimated values whose truth is known.

    Attributes:
        where: bool[steps of the CSV, n], which values these are.
        off: float64[values], the absolute error of each value, in the unit of its sensor.
        bound: float64[values], the half width of the band that was promised, in the same unit.
        count: how many bounds hold, and in how many outages.
    """

    where: Mask
    off: Floats
    bound: Floats
    count: BoundCount


def score(delivery: Delivery, world: World) -> Scored:
    """Compare the estimated values with the windows of the CSV."""
    rows = delivery.rows(world.truth)
    where = delivery.estimated[rows] & ~np.isnan(world.truth.values)
    off = np.abs(delivery.mean[rows] - world.truth.values)[where]
    bound = delivery.bound[rows][where]
    starts = np.diff(where.astype(np.int8), axis=0, prepend=0) > 0
    edges = [sensor.edge for sensor in world.table.sensors]
    began = Counter((edges[sensor], int(step)) for step, sensor in zip(*np.nonzero(starts), strict=True))
    first = np.maximum.accumulate(np.where(starts, np.arange(len(where))[:, np.newaxis], 0), axis=0)
    lost, missed = Counter(first[where].tolist()), Counter(first[where][off > bound].tolist())
    return Scored(where, off, bound, BoundCount(len(off), int((off <= bound).sum()), began, lost, missed))
