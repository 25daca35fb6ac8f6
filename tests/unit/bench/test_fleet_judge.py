"""The judge of a fleet finds what is lost, and nothing else: no value in `late`, and no takeover that takes long."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.bench.fleet_judge import false_takeovers, judge_results
from tsunagi.audit.evidence import Kill
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import LATE, RESULTS
from tsunagi.runtime.messages import EXACT, VERSION, Late, Recovered, ResultBlock, TupleBatch
from tsunagi.runtime.testing import MemoryLog

SENT = {step: np.array([1.0, 2.0, 3.0, 4.0]) for step in (10, 11, 12, 13)}


def results(but: dict[int, set[int]]) -> MemoryLog:
    """Return a log with the results of all steps, without those of some sensors by step."""
    log = MemoryLog(ManualClock(), {RESULTS: 1, LATE: 1})
    for step, values in SENT.items():
        ids = [sensor for sensor in range(len(values)) if sensor not in but.get(step, set())]
        mean, none = pack_floats([values[sensor] for sensor in ids]), pack_floats([0.0] * len(ids))
        block = ResultBlock(
            version=VERSION, query="readings", group="g", step=step, sensor=pack_sensors(ids), mean=mean
        )
        block.sd, block.bound, block.quality = none, none, bytes([EXACT]) * len(ids)
        block.q1, block.q2, block.q3 = pack_sensors([0] * len(ids)), pack_sensors([0] * len(ids)), none
        log.append(RESULTS, 0, b"", block.SerializeToString())
    return log


def test_values_that_stand_in_late_are_not_lost_whoever_put_them_there() -> None:
    log = results({11: {0, 1, 2}})
    batch, left = TupleBatch(step=11, sensor=pack_sensors([0])), Recovered(step=11, sensor=pack_sensors([1]))
    for late in (Late(version=VERSION, batch=batch), Late(version=VERSION, recovered=left)):
        log.append(LATE, 0, b"", late.SerializeToString())
    found = judge_results(log, SENT)
    assert (found["aside"], found["left_behind"], found["lost"]) == (1, 1, 1)
    assert (found["rows"], found["unfinished"]) == (13, 0)


def test_what_is_still_to_come_is_unfinished_and_not_lost() -> None:
    found = judge_results(results({12: {3}, 13: {0, 3}}), SENT)
    assert (found["lost"], found["unfinished"]) == (0, 2)


@pytest.mark.parametrize(("killed_s", "false"), [(1.0, 0), (30.0, 1), (-3.0, 1)])
def test_a_takeover_counts_from_when_it_began(tmp_path: Path, killed_s: float, false: int) -> None:
    """The owner was killed `killed_s` before the takeover began. It is logged when the new owner has caught up."""
    began_s, took_s = 1_000_000.0, 20.0
    line = {
        "event": "takeover",
        "time": datetime.fromtimestamp(began_s + took_s, UTC).isoformat(),
        "slot": 0,
        "reason": "silent",
        "old_owner": "gw-1",
        "promote_s": 0.5,
        "catch_up_s": took_s - 0.5,
    }
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "gw-2.log").write_text(json.dumps(line) + "\n")
    kill = Kill("owner", "gw-1", 1, round((began_s - killed_s) * 1e6), 0, 1, "gw-1", 0, 0)
    assert false_takeovers(tmp_path, [kill]) == false
