"""Judges what a fleet that one process plays has got out: against what it has sent, by what stands in the topics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.system import spread
from tsunagi.audit.evidence import Kill
from tsunagi.audit.silence import silence_s
from tsunagi.runtime.columns import Floats, floats, octets, sensors
from tsunagi.runtime.log import LATE, RECOVERED, RESULTS, Log
from tsunagi.runtime.messages import EXACT, UNMODELLED, Late
from tsunagi.runtime.results import is_of_query, parse_block
from tsunagi.standby.promotion import DEATHS
from tsunagi.system import processes
from tsunagi.system.topics import read_partition

WATCHED_US = 5_000_000
"""A slot's silence is looked for until this long after the kill of its owner, microseconds."""


SMALL = 1e-9
"""A measured value that differs by less is the one that was sent."""
CAUSED_US = 10_000_000
"""A takeover this long after the kill of the old owner, at most, is due to it, microseconds."""


def judge_results(log: Log, sent: Mapping[int, Floats]) -> dict[str, int]:
    """Compare `results` with what was sent; return counts.

    Steps count from the first to the last of which every value that was sent has a row.

    Args:
        sent: by step, float64[n]: each sensor's value; NaN = its edge was silent.

    Returns:
        rows: all of readings, measured or recovered.
        lost: values that were sent, have no row, and do not stand in `late`.
        aside: values that have no row and stand in `late`: they came after their step had closed, and no model was in
            force yet by which they could be recovered.
        left_behind: values that have no row and stand in outputs in `late`: their slot had been left behind.
        doubled: rows of a step that the sensor had a row of.
        reordered: rows that come behind a row of a later step of the sensor.
        wrong: measured rows with another value than the one sent.
        late: values that were sent and came out recovered, since they came after their step had closed.
        unfinished: steps behind the last one of these.
    """
    begin, end = min(sent), max(sent) + 1
    n = len(sent[begin])
    truth = np.stack([sent.get(step, np.full(n, np.nan)) for step in range(begin, end)])
    count, last = np.zeros(truth.shape, dtype=np.uint8), np.full(n, -1, dtype=np.int64)
    found = dict.fromkeys(("rows", "doubled", "reordered", "wrong", "late"), 0)
    for partition in range(log.partitions(RESULTS)):
        for record in read_partition(log, RESULTS, partition):
            block = parse_block(record.value)
            if is_of_query(block) or not begin <= block.step < end:
                continue
            ids, place = sensors(block.sensor), block.step - begin
            measured = np.isin(octets(block.quality), (EXACT, UNMODELLED))
            found["rows"] += len(ids)
            found["doubled"] += int((count[place, ids] > 0).sum())
            found["reordered"] += int((last[ids] > place).sum())
            found["wrong"] += int((measured & ~(np.abs(floats(block.mean) - truth[place, ids]) < SMALL)).sum())
            found["late"] += int((~measured & np.isfinite(truth[place, ids])).sum())
            count[place, ids] += 1
            last[ids] = np.maximum(last[ids], place)
    rowless = np.isfinite(truth) & (count == 0)
    whole = np.flatnonzero(rowless.sum(axis=1) == 0)
    aside, left = np.zeros_like(rowless), np.zeros_like(rowless)
    for record in read_partition(log, LATE, 0):
        late = Late.FromString(record.value or b"")
        said, where = (late.batch, aside) if late.HasField("batch") else (late.recovered, left)
        if begin <= said.step < end:
            where[said.step - begin, sensors(said.sensor)] = True
    left &= ~aside
    judged = slice(whole[0], whole[-1])
    each = {"lost": ~(aside | left), "aside": aside, "left_behind": left}
    counts = {name: int((rowless & which)[judged].sum()) for name, which in each.items()}
    return found | counts | {"unfinished": len(truth) - 1 - int(whole[-1])}


def silences(log: Log, kills: list[Kill], slide_us: int) -> dict[str, Any]:
    """Return how long each slot whose owner was killed wrote nothing, less a step, seconds."""
    taken = []
    for slot in sorted({kill.slot for kill in kills}):
        times = [record.appended_us for record in read_partition(log, RECOVERED, slot)]
        mine = [kill for kill in kills if kill.slot == slot]
        taken += [silence_s(times, kill.at_us, kill.at_us + WATCHED_US, slide_us) for kill in mine]
    return {"kills": len(kills), "silence_s": spread([value for value in taken if value is not None])}


def false_takeovers(state: Path, kills: list[Kill]) -> int:
    """Return how many owners were taken for dead that nobody had killed, by what their successors logged.

    They log a takeover when they have caught up, which takes long where there is much to make up for.
    """
    found = 0
    for item in processes.logged(state, "takeover"):
        took_s = item["promote_s"] + item["catch_up_s"]
        at_us = (datetime.fromisoformat(item["time"]).timestamp() - took_s) * 1e6
        caused = any(kill.node == item["old_owner"] and 0 < at_us - kill.at_us < CAUSED_US for kill in kills)
        found += item["reason"] in DEATHS and not caused
    return found
