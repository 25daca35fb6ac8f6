"""Computes the figures of a run: errors of recovered values, takeovers and the silence of slots, and latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tsunagi.audit.check import Checked
from tsunagi.audit.delivery import Delivery
from tsunagi.audit.evidence import Collected
from tsunagi.audit.promises import score
from tsunagi.audit.rules import Mask
from tsunagi.audit.silence import silence_s
from tsunagi.audit.truth import Truth, World
from tsunagi.recovery.coverage import Coverage, levels
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import BOUNDED

AFTER_S = 4.0
"""The silence of a slot is measured from the kill until this long after the new owner's claim, in seconds. By then a
new owner has long caught up."""
NEVER_US = 1 << 62
"""Stands for the end of a takeover that nobody finished, in microseconds. It is later than any time."""


class RowLatencies(NamedTuple):
    """The latencies of the rows that the live reader saw of the CSV's steps, in the order of event time.

    Attributes:
        at_s: float64[rows], the event time, in seconds since 1970.
        seconds: float64[rows], the time from the append of the step's last input until its result was read.
        quiet: bool[rows], whether no owner of a slot was dead or being replaced while the row was on its way.
    """

    at_s: Floats
    seconds: Floats
    quiet: Mask


def recovered_figures(delivery: Delivery, world: World, delta: float) -> dict[str, Any]:
    """Return the errors of the estimated values, compared with the windows of the CSV.

    `values` is the number of estimates, and `outages` that of the outages of a sensor from which they come. `rmse` is
    in the units of the sensors, and `nrmse` in the standard deviation of each sensor. `coverage` is the share of bounds
    that hold, `coverage_by` is the same share by kinds of estimates (`tsunagi.recovery.coverage`), and `delta` is the
    promised share. `bounded` is the number of values that are tagged `bounded`.
    """
    scored = score(delivery, world)
    off = scored.off
    unit = np.broadcast_to(world.scale, scored.where.shape)[scored.where]
    rows = delivery.rows(world.truth)
    quality = delivery.quality[rows][scored.where]
    within = np.zeros(scored.where.shape, dtype=bool)
    within[scored.where] = off <= scored.bound
    coverage = Coverage(1, scored.where.shape[1])
    level = levels(delivery.mean[rows], world.truth.values, world.scale)
    coverage.add_table(delivery.estimated[rows], scored.where, within, level)
    return {
        "values": len(off),
        "outages": scored.count.outages,
        "rmse": _root_mean_square(off),
        "nrmse": _root_mean_square(off[unit > 0] / unit[unit > 0]),
        "coverage": scored.count.coverage,
        "coverage_by": coverage.shares(),
        "delta": delta,
        "bounded": int((quality == BOUNDED).sum()),
    }


def _root_mean_square(values: Floats) -> float | None:
    return float(np.sqrt(np.mean(values**2))) if len(values) else None


def takeovers(checked: Checked, collected: Collected, slide_us: int) -> list[dict[str, Any]]:
    """Return every change of owner after the first, with the times that the new owner itself has measured."""
    found = []
    for slot, slot_log in sorted(checked.logs.items()):
        for before, owner in pairwise(slot_log.owners):
            kill = collected.kill_of(before, owner)
            note = collected.note(owner)
            from_us = kill.at_us if kill is not None else owner.appended_us
            written_us = [output.written_us for output in checked.outputs.get(slot, ())]
            # After its last output a slot does not count as silent, because the stream is over.
            to_us = min(owner.appended_us + round(AFTER_S * 1e6), max(written_us, default=from_us))
            found.append(
                {
                    "slot": slot,
                    "epoch": owner.epoch,
                    "from": before.node,
                    "to": owner.node,
                    "cause": collected.cause(before, owner) or "none",
                    "reason": note.get("reason"),
                    "at_us": owner.appended_us,
                    "detect_s": note.get("detect_s"),
                    "promote_s": note.get("promote_s"),
                    "catch_up_s": note.get("catch_up_s"),
                    "silence_s": silence_s(written_us, from_us, to_us, slide_us),
                }
            )
    return found


def takeover_spans(checked: Checked, collected: Collected) -> list[tuple[int, int]]:
    """Return the spans from the kill of an owner until its successor had caught up, in microseconds since 1970.

    There is one span for each slot that the owner had. If the owner had no successor, the span ends at `NEVER_US`.
    """
    spans, succeeded = [], set()
    for slot_log in checked.logs.values():
        for before, owner in pairwise(slot_log.owners):
            kill = collected.kill_of(before, owner)
            if kill is not None:
                succeeded.add(kill)
                behind_s = float(collected.note(owner).get("catch_up_s") or 0.0)
                spans.append((kill.at_us, owner.appended_us + round(behind_s * 1e6)))
    alone = (kill for kill in collected.kills if kill.what == "owner" and kill not in succeeded)
    return spans + [(kill.at_us, NEVER_US) for kill in alone]


def latency_rows(checked: Checked, truth: Truth, collected: Collected) -> RowLatencies:
    """Return the latency of each row, and whether a takeover may have affected it."""
    read_us = {(read.partition, read.offset): read.read_us for read in collected.reads}
    spans = takeover_spans(checked, collected)
    times: list[float] = []
    seconds: list[float] = []
    quiet: list[bool] = []
    for blocks in checked.delivery.blocks.values():
        for block in blocks:
            seen = read_us.get((block.partition, block.offset))
            if seen is not None and truth.first_step <= block.step <= truth.last_step:
                rows = len(block.sensor)
                times.extend([block.event_time_us / 1e6] * rows)
                seconds.extend([(seen - block.appended_us) / 1e6] * rows)
                quiet.extend([all(seen < first or block.appended_us > last for first, last in spans)] * rows)
    order = np.argsort(times, kind="stable")
    return RowLatencies(
        np.array(times, dtype=np.float64)[order],
        np.array(seconds, dtype=np.float64)[order],
        np.array(quiet, dtype=bool)[order],
    )


def latency_figures(latencies: Floats) -> dict[str, float | int | None]:
    """Return the median (p50), the 99th percentile (p99) and the greatest latency, in seconds."""
    if len(latencies) == 0:
        return {"p50": None, "p99": None, "max": None, "rows": 0}
    p50, p99 = (float(x) for x in np.quantile(latencies, [0.5, 0.99]))
    return {"p50": p50, "p99": p99, "max": float(latencies.max()), "rows": len(latencies)}


def finite(value: Any) -> Any:  # noqa: ANN401 - whatever json takes
    """Return the value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
