"""The checker: accounts row by row for everything between the CSV and the ordered results.

A pure function of what was collected, so that it is itself tested: a world in which one output is missing, doubled,
swapped or altered does not pass. It shares no code with the edges, the replicas or the Spark job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.demo.delivery import Delivery, deliver
from tsunagi.demo.evidence import (
    Aside,
    Batch,
    Collected,
    Kill,
    Output,
    SlotLog,
    read_asides,
    read_outputs,
    read_slot_log,
)
from tsunagi.demo.findings import Findings, Mask, World, close
from tsunagi.demo.promises import check_promises
from tsunagi.demo.sources import check_sources
from tsunagi.demo.truth import queries
from tsunagi.runtime.names import NO_NAME, Name

REPEAT_TOLERANCE_SD = 1e-6


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings, with the decoded run for figures and charts."""

    findings: Findings
    logs: Mapping[int, SlotLog]
    outputs: Mapping[int, Sequence[Output]]
    delivery: Delivery


def check(collected: Collected, world: World) -> Checked:
    """Account for every row.

    Args:
        collected: whole topics, kills and outages of the run.
        world: what must have come out.
    """
    findings = Findings()
    logs = {slot: read_slot_log(slot, records) for slot, records in collected.tuples.items()}
    check_sources(logs, collected, world, findings)
    outputs = {
        slot: distinct_outputs(read_outputs(slot, records), world, findings)
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


def distinct_outputs(outputs: Sequence[Output], world: World, findings: Findings) -> list[Output]:
    """(f): drop repeats by name, as readers of `recovered` do; names rise, steps are contiguous, repeats are equal."""
    kept: list[Output] = []
    by_name: dict[Name, Output] = {}
    last = NO_NAME
    for output in outputs:
        place = f"recovered/{output.slot}, name {tuple(output.name)}"
        if output.name in by_name:
            findings.repeats += 1
            if not _same_output(by_name[output.name], output, world):
                findings.wrong["repeats"] += 1
                findings.problem(f"{place}: repeated with other values or tags")
            continue
        by_name[output.name] = output
        if output.name < last:
            findings.wrong["recovered order"] += 1
            findings.problem(f"{place}: after {tuple(last)}")
            continue
        last = output.name
        if kept and output.generation != kept[-1].generation:
            findings.wrong["generation"] += 1
            findings.problem(f"{place}: the log's generation changed")
        if kept and output.step <= kept[-1].step:
            findings.duplicates += len(output.sensor)
            findings.problem(f"{place}: step {output.step} again, after step {kept[-1].step}")
            continue
        if kept and output.step != kept[-1].step + 1:
            findings.wrong["recovered steps"] += 1
            findings.problem(f"{place}: step {output.step} after step {kept[-1].step}")
        kept.append(output)
    return kept


def _same_output(first: Output, second: Output, world: World) -> bool:
    if first.step != second.step or not np.array_equal(first.sensor, second.sensor):
        return False
    if not np.array_equal(first.quality, second.quality):
        return False
    unit = np.ones(len(first.sensor)) if len(world.scale) == 0 else np.maximum(world.scale[first.sensor], 1e-12)
    columns = ((first.mean, second.mean), (first.sd, second.sd), (first.bound, second.bound))
    return all(bool((np.abs(a - b) <= REPEAT_TOLERANCE_SD * unit).all()) for a, b in columns)


def _check_steps(delivery: Delivery, world: World, findings: Findings) -> None:
    """(c): every group has every step from the first to the last of the CSV."""
    truth = world.truth
    for group in sorted({world.group(sensor.id) for sensor in world.table.sensors}):
        steps = delivery.steps(group)
        missing = sorted(set(range(truth.first_step, truth.last_step + 1)) - set(steps))
        if missing:
            findings.wrong["missing blocks"] += len(missing)
            findings.problem(f"results: group {group!r}: {len(missing)} steps have no block, first {missing[0]}")
        holes = steps[-1] - steps[0] + 1 - len(steps) if steps else 0
        if steps and holes > sum(steps[0] < step < steps[-1] for step in missing):
            findings.wrong["missing blocks"] += holes
            findings.problem(
                f"results: group {group!r}: {holes} steps between {steps[0]} and {steps[-1]} have no block"
            )


def _check_tuples(
    logs: Mapping[int, SlotLog], asides: Mapping[tuple[int, int], Aside], delivery: Delivery, findings: Findings
) -> Mask:
    """(b): every tuple of the log stands in exactly one place: a result with its value, `late` or `dead-letters`.

    Returns:
        bool[steps, n], the tuples that stand nowhere.
    """
    claimed = np.zeros(delivery.present.shape, dtype=bool)
    gone = np.zeros(delivery.present.shape, dtype=bool)
    refused: list[Batch] = []
    for slot, slot_log in logs.items():
        for offset in slot_log.unreadable:
            if (slot, offset) not in asides:
                findings.wrong["unreadable"] += 1
                findings.problem(f"tuples/{slot}, offset {offset}: not readable, and not in dead-letters")
        for batch in slot_log.batches:
            aside = asides.get((slot, batch.offset))
            if aside is not None:
                refused.append(batch)
                findings.late += len(batch.sensor) if aside.topic == "late" else 0
                findings.dead += len(batch.sensor) if aside.topic != "late" else 0
            elif len(batch.sensor):
                _check_batch(batch, delivery, claimed, gone, findings)
    for batch in refused:
        row = delivery.row(batch.step)
        if row is not None:
            both = delivery.measured[row, batch.sensor] & ~claimed[row, batch.sensor]
            if both.any():
                findings.duplicates += int(both.sum())
                findings.problem(f"tuples/{batch.slot}, offset {batch.offset}: set aside, and in the results as well")
                claimed[row, batch.sensor] = True
    invented = delivery.measured & ~claimed
    if invented.any():
        row, sensor = (int(i) for i in np.argwhere(invented)[0])
        findings.wrong["invented"] += int(invented.sum())
        findings.problem(
            f"results: step {delivery.first_step + row}, sensor {sensor}: tagged as measured, but no tuple says so"
        )
    return gone


def _check_batch(batch: Batch, delivery: Delivery, claimed: Mask, gone: Mask, findings: Findings) -> None:
    place = f"tuples/{batch.slot}, offset {batch.offset} ({batch.edge}, step {batch.step})"
    row = delivery.row(batch.step)
    if row is None:
        return  # neither a step of the CSV nor one of the results: reported as no whole window
    again = claimed[row, batch.sensor]
    if again.any():
        findings.duplicates += int(again.sum())
        findings.problem(f"{place}: a second batch of the step that is not set aside")
        return
    claimed[row, batch.sensor] = True
    there = delivery.measured[row, batch.sensor]
    if not there.all():
        gone[row, batch.sensor] |= ~there
        findings.problem(f"{place}: {int((~there).sum())} of its tuples are neither in the results nor set aside")
    wrong = there & ~close(delivery.mean[row, batch.sensor], batch.value)
    wrong |= there & (delivery.sd[row, batch.sensor] != 0)
    if wrong.any():
        findings.wrong["values"] += int(wrong.sum())
        findings.problem(f"{place}: sensor {int(batch.sensor[wrong][0])} has another value in the results")


def _check_estimates(
    logs: Mapping[int, SlotLog],
    outputs: Mapping[int, Sequence[Output]],
    delivery: Delivery,
    collected: Collected,
    world: World,
    findings: Findings,
) -> Mask:
    """(c): what was not measured in time is estimated if the model knows the sensor; results are what was recovered.

    Returns:
        bool[steps, n], the rows of the CSV's steps that are missing.
    """
    expected = np.zeros(delivery.present.shape, dtype=bool)
    for slot, slot_outputs in outputs.items():
        model_from = logs[slot].model_from if slot in logs else -1
        known = [sensor for sensor in sorted(world.modelled) if collected.placement[sensor] == slot]
        for output in slot_outputs:
            row = delivery.row(output.step)
            if row is None:
                continue  # after the last step of CSV and results
            expected[row, output.sensor] = True
            if model_from >= 0 and output.name.offset > model_from:
                expected[row, known] = True
            there = delivery.present[row, output.sensor]
            same = np.ones(len(output.sensor), dtype=bool)
            for ours, theirs in (
                (delivery.mean, output.mean),
                (delivery.sd, output.sd),
                (delivery.bound, output.bound),
            ):
                column = ours[row, output.sensor]
                same &= (column == theirs) | (np.isnan(column) & np.isnan(theirs))
            same &= delivery.quality[row, output.sensor] == output.quality
            if (there & ~same).any():
                findings.wrong["altered"] += int((there & ~same).sum())
                findings.problem(
                    f"results: step {output.step}: not the values of recovered/{slot}, name {tuple(output.name)}"
                )
    first = world.truth.first_step - delivery.first_step
    gone = expected & ~delivery.present
    gone[:first] = False
    gone[first + len(world.truth.values) :] = False
    if gone.any():
        row, sensor = (int(i) for i in np.argwhere(gone)[0])
        findings.problem(
            f"results: {int(gone.sum())} rows are missing, first step {delivery.first_step + row}, sensor {sensor}"
        )
    return gone


def _check_queries(delivery: Delivery, world: World, findings: Findings) -> None:
    """(d): q1, q2, q3, counted again from the results' own values."""
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
        findings.wrong["queries"] += int(wrong.sum())
        findings.problem(
            f"results: step {int(steps[row])}, sensor {sensor}: q1, q2, q3 are {found}, expected {expected}"
        )


def _check_kills(logs: Mapping[int, SlotLog], kills: Sequence[Kill], world: World, findings: Findings) -> None:
    """Every kill of an owner hit the one that the slot's log names, tuples were in flight, and somebody took over."""
    for kill in (item for item in kills if item.what == "owner"):
        slot_log = logs.get(kill.slot)
        owner = slot_log.owner_at(kill.at_us) if slot_log is not None else None
        if owner is None or owner.node != kill.node or kill.owner != kill.node:
            findings.wrong["kills"] += 1
            found = "nobody" if owner is None else f"{owner.node} (epoch {owner.epoch})"
            findings.problem(f"kill of {kill.node}: slot {kill.slot} was owned by {found}")
        if not in_flight(kill, world.steps.slide_us):
            findings.wrong["kills"] += 1
            findings.problem(f"kill of {kill.node}: no tuples were in flight")
        if slot_log is None or owner is None or slot_log.owners[-1].epoch <= owner.epoch:
            findings.wrong["kills"] += 1
            findings.problem(f"kill of {kill.node}: nobody took slot {kill.slot} over")


def in_flight(kill: Kill, slide_us: int) -> bool:
    """Return whether the killed owner had inputs that the downstream had not acknowledged, or that had just come."""
    return kill.log_end > kill.acked >= 0 or kill.at_us - kill.newest_us <= slide_us
