"""The checker: accounts for every row between the CSV and the ordered results.

It is a pure function of what was collected, so that tests can try it: a run in which one output is missing, doubled,
swapped or altered must not pass. It shares no code with the edges, the replicas or the Spark job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.audit.delivery import Delivery, deliver
from tsunagi.audit.evidence import (
    Aside,
    AuditedOutput,
    Batch,
    Collected,
    Kill,
    SlotLog,
    read_asides,
    read_outputs,
    read_slot_log,
)
from tsunagi.audit.outputs import OutputBook
from tsunagi.audit.promises import check_promises
from tsunagi.audit.rules import (
    COLUMNS,
    Mask,
    accuse_altered,
    accuse_invented,
    accuse_second,
    accuse_values,
    close,
    identical,
    lost_text,
)
from tsunagi.audit.sources import check_sources
from tsunagi.audit.tally import Findings
from tsunagi.audit.truth import World, queries
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.log import LATE, Record


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings, and the decoded run from which figures and charts are made.

    Attributes:
        logs: the decoded log of each slot.
        outputs: the outputs of each slot in `recovered`, without repeats.
        delivery: the results as a reader gets them.
    """

    findings: Findings
    logs: Mapping[int, SlotLog]
    outputs: Mapping[int, Sequence[AuditedOutput]]
    delivery: Delivery


def check(collected: Collected, world: World) -> Checked:
    """Account for every row.

    Args:
        collected: the whole topics, the kills and the outages of the run.
        world: what must have come out of the run.
    """
    findings = Findings()
    logs = {slot: read_slot_log(slot, records) for slot, records in collected.tuples.items()}
    check_sources(logs, collected, world, findings)
    outputs = {
        slot: distinct_outputs(slot, records, collected.placement, world, findings)
        for slot, records in collected.recovered.items()
    }
    delivery = deliver(collected.results, world, findings)
    _check_steps(delivery, world, findings)
    asides = {(aside.slot, aside.offset): aside for aside in read_asides(collected.late, collected.dead_letters)}
    gone = _check_tuples(logs, asides, delivery, findings)
    gone |= _check_estimates(logs, outputs, delivery, collected, world, findings)
    findings.lost += int(gone.sum())
    _check_queries(delivery, world, findings)
    _check_kills(logs, collected.kills, world, findings)
    check_promises(logs, outputs, asides, delivery, collected, world, findings)
    return Checked(findings, logs, outputs, delivery)


def distinct_outputs(
    slot: int, records: Sequence[Record], placement: Sensors, world: World, findings: Findings
) -> list[AuditedOutput]:
    """Check (f): drop repeats by name, as readers of `recovered` do.

    Names must rise, steps must have no gap, and repeats must be equal.
    """
    book = OutputBook(slot, placement, findings, kept=None, scale=world.scale if len(world.scale) else None)
    return [output for output in read_outputs(slot, records) if book.take(output)]


def _check_steps(delivery: Delivery, world: World, findings: Findings) -> None:
    """Check (c): every group has every step from the first to the last of the CSV.

    Only the two ends are looked at here: `BlockBook` has already reported gaps between blocks.
    """
    truth = world.truth
    for group in sorted({world.group(sensor.id) for sensor in world.table.sensors}):
        steps = delivery.steps(group) or [truth.last_step + 1]
        missing = [*range(truth.first_step, min(steps)), *range(max(steps) + 1, truth.last_step + 1)]
        if missing:
            findings.amiss(
                "missing blocks",
                f"results: group {group!r}: {len(missing)} steps have no block, first {missing[0]}",
                len(missing),
            )


def _check_tuples(
    logs: Mapping[int, SlotLog], asides: Mapping[tuple[int, int], Aside], delivery: Delivery, findings: Findings
) -> Mask:
    """Check (b): every tuple of the log is in exactly one place: a result with its value, `late` or `dead-letters`.

    Returns:
        bool[steps, n]: which tuples are nowhere.
    """
    claimed = np.zeros(delivery.present.shape, dtype=bool)
    gone = np.zeros(delivery.present.shape, dtype=bool)
    refused: list[Batch] = []
    for slot, slot_log in logs.items():
        for offset in slot_log.unreadable:
            if (slot, offset) not in asides:
                findings.amiss("unreadable", f"tuples/{slot}, offset {offset}: not readable, and not in dead-letters")
        for batch in slot_log.batches:
            aside = asides.get((slot, batch.offset))
            if aside is not None:
                refused.append(batch)
                findings.late += len(batch.sensor) if aside.topic == LATE else 0
                findings.dead += len(batch.sensor) if aside.topic != LATE else 0
            elif len(batch.sensor):
                _check_batch(batch, delivery, claimed, gone, findings)
    for batch in refused:
        row = delivery.row(batch.step)
        if row is not None:
            both = delivery.measured[row, batch.sensor] & ~claimed[row, batch.sensor]
            if both.any():
                findings.double(f"{batch.place}: set aside, and in the results as well", int(both.sum()))
                claimed[row, batch.sensor] = True
    invented = delivery.measured & ~claimed
    for row in np.flatnonzero(invented.any(axis=1)).tolist():
        step = delivery.first_step + row
        accuse_invented(f"results, step {step}", np.flatnonzero(invented[row]).tolist(), findings)
    return gone


def _check_batch(batch: Batch, delivery: Delivery, claimed: Mask, gone: Mask, findings: Findings) -> None:
    row = delivery.row(batch.step)
    if row is None:
        return  # it is a step of neither the CSV nor the results; `check_sources` has reported it as no whole window
    again = claimed[row, batch.sensor]
    if again.any():
        accuse_second(batch, findings)
        return
    claimed[row, batch.sensor] = True
    there = delivery.measured[row, batch.sensor]
    if not there.all():
        gone[row, batch.sensor] |= ~there
        findings.problem(lost_text(batch, int((~there).sum()), "results"))
    wrong = there & ~close(delivery.mean[row, batch.sensor], batch.value)
    wrong |= there & (delivery.sd[row, batch.sensor] != 0)
    if wrong.any():
        accuse_values(batch, batch.sensor[wrong], "results", findings)


def _check_estimates(
    logs: Mapping[int, SlotLog],
    outputs: Mapping[int, Sequence[AuditedOutput]],
    delivery: Delivery,
    collected: Collected,
    world: World,
    findings: Findings,
) -> Mask:
    """Check (c): every value that was not measured in time is estimated, provided that the model knows the sensor.

    The rows of `results` must also equal those of `recovered`.

    Returns:
        bool[steps, n]: which rows of the CSV's steps are missing.
    """
    expected = np.zeros(delivery.present.shape, dtype=bool)
    for slot, slot_outputs in outputs.items():
        model_from = logs[slot].model_from if slot in logs else -1
        known = [sensor for sensor in sorted(world.modelled) if collected.placement[sensor] == slot]
        for output in slot_outputs:
            row = delivery.row(output.step)
            if row is None:
                continue  # the step is after the last one of the CSV and of the results
            expected[row, output.sensor] = True
            if model_from >= 0 and output.name.offset > model_from:
                expected[row, known] = True
            columns = [(getattr(delivery, name)[row, output.sensor], getattr(output, name)) for name in COLUMNS]
            same = np.logical_and.reduce([identical(ours, theirs) for ours, theirs in columns])
            changed = delivery.present[row, output.sensor] & ~same
            if changed.any():
                accuse_altered(output.step, output.sensor[changed], findings)
    rows = delivery.rows(world.truth)
    gone = expected & ~delivery.present
    gone[: rows.start] = gone[rows.stop :] = False
    if gone.any():
        row, sensor = (int(i) for i in np.argwhere(gone)[0])
        findings.problem(
            f"results: {int(gone.sum())} rows are missing, first step {delivery.first_step + row}, sensor {sensor}"
        )
    return gone


def _check_queries(delivery: Delivery, world: World, findings: Findings) -> None:
    """Check (d): q1, q2 and q3 are the same when they are counted again from the values of the results."""
    thresholds = np.array([sensor.threshold for sensor in world.table.sensors])
    with np.errstate(invalid="ignore"):
        above = delivery.mean > thresholds
    steps = delivery.first_step + np.arange(len(delivery.present), dtype=np.int64)
    q1, q2, q3 = queries(steps, delivery.present, above, world.steps.slide_us, world.range_us)
    same = (delivery.q1 == q1) & (delivery.q2 == q2) & close(delivery.q3, q3)
    wrong = delivery.present & ~same
    if wrong.any():
        row, sensor = (int(i) for i in np.argwhere(wrong)[0])
        found = (int(delivery.q1[row, sensor]), int(delivery.q2[row, sensor]), float(delivery.q3[row, sensor]))
        expected = (int(q1[row, sensor]), int(q2[row, sensor]), float(q3[row, sensor]))
        findings.amiss(
            "queries",
            f"results: step {int(steps[row])}, sensor {sensor}: q1, q2, q3 are {found}, expected {expected}",
            int(wrong.sum()),
        )


def _check_kills(logs: Mapping[int, SlotLog], kills: Sequence[Kill], world: World, findings: Findings) -> None:
    """Check the kills of owners.

    Each must have hit the owner that the slot's log names, while tuples were in flight, and somebody must have taken
    the slot over.
    """
    for kill in (item for item in kills if item.what == "owner"):
        slot_log = logs.get(kill.slot)
        owner = slot_log.owner_at(kill.at_us) if slot_log is not None else None
        if owner is None or owner.node != kill.node or kill.owner != kill.node:
            found = "nobody" if owner is None else f"{owner.node} (epoch {owner.epoch})"
            findings.amiss("kills", f"kill of {kill.node}: slot {kill.slot} was owned by {found}")
        if not in_flight(kill, world.steps.slide_us):
            findings.amiss("kills", f"kill of {kill.node}: no tuples were in flight")
        if slot_log is None or owner is None or slot_log.owners[-1].epoch <= owner.epoch:
            findings.amiss("kills", f"kill of {kill.node}: nobody took slot {kill.slot} over")


def in_flight(kill: Kill, slide_us: int) -> bool:
    """Return whether the killed owner had inputs that were not acknowledged yet, or that had come within a slide."""
    return kill.log_end > kill.acked >= 0 or kill.at_us - kill.newest_us <= slide_us
