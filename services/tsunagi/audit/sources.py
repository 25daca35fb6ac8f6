"""Check (a) of the checker: compares what the edges sent with the CSV."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tsunagi.audit.evidence import Batch, Collected, SlotLog
from tsunagi.audit.rules import close
from tsunagi.audit.tally import Findings
from tsunagi.audit.truth import World


def check_sources(logs: Mapping[int, SlotLog], collected: Collected, world: World, findings: Findings) -> None:
    """Check that each edge sent what the CSV says, and that it was dead when it did not send."""
    truth, placement = world.truth, collected.placement
    for slot, slot_log in logs.items():
        findings.tuples_in += sum(len(batch.sensor) for batch in slot_log.batches)
        by_edge: dict[str, dict[int, list[Batch]]] = {}
        for batch in slot_log.batches:
            by_edge.setdefault(batch.edge, {}).setdefault(batch.step, []).append(batch)
        for edge in world.table.edges:
            ids = np.array(
                [sensor.id for sensor in world.table.of_edge(edge) if placement[sensor.id] == slot], dtype=np.intp
            )
            if len(ids) == 0:
                continue
            sent = by_edge.pop(edge, {})
            missing = []
            for step in range(truth.first_step, truth.last_step + 1):
                expected = truth.row(step)[ids]
                wanted = ids[~np.isnan(expected)]
                if step not in sent:
                    missing.append(step)
                for batch in sent.pop(step, []):
                    same = len(batch.sensor) == len(wanted) and bool((batch.sensor == wanted).all())
                    if not same or not close(batch.value, truth.row(step)[wanted]).all():
                        findings.amiss("windows", f"{batch.place}: not what the CSV says")
            for step, batches in sent.items():
                if any(len(batch.sensor) for batch in batches):
                    findings.amiss(
                        "windows", f"slot {slot}: {edge} sent step {step}, which is no whole window of the CSV"
                    )
            _account_missing(edge, slot, missing, ids, collected, world, findings)
        for edge in by_edge:
            findings.problem(f"slot {slot}: batches of {edge!r}, an edge without sensors in this slot")


def _account_missing(
    edge: str,
    slot: int,
    missing: list[int],
    ids: npt.NDArray[np.intp],
    collected: Collected,
    world: World,
    findings: Findings,
) -> None:
    slide_us = world.steps.slide_us
    for outage in (item for item in collected.outages if item.edge == edge):
        # The last windows may have ended just before the kill. The first windows after the outage need new readings.
        until_us = world.back_us(outage.to_us)
        inside = [step for step in missing if outage.from_us - slide_us <= step * slide_us <= until_us]
        if inside:
            tuples = int(sum((~np.isnan(world.truth.row(step)[ids])).sum() for step in inside))
            findings.not_sent.append(
                {
                    "edge": edge,
                    "slot": slot,
                    "from_step": inside[0],
                    "to_step": inside[-1],
                    "steps": len(inside),
                    "tuples": tuples,
                }
            )
            if len(inside) != inside[-1] - inside[0] + 1:
                findings.amiss(
                    "not sent", f"slot {slot}: {edge} sent some steps between {inside[0]} and {inside[-1]}, not all"
                )
        missing = [step for step in missing if step not in inside]
    if missing:
        findings.lose(
            f"slot {slot}: {edge} was alive, but {len(missing)} of its steps are not in the log, first {missing[0]}",
            int(sum((~np.isnan(world.truth.row(step)[ids])).sum() for step in missing)),
        )
