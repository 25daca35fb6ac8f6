"""What happens without a cause is a finding; what a disturbance, or the plan, explains is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.audit.flow import EDGES, STEP_US, Flow
from tsunagi.audit.causes import AFTER_US, Disturbance, Judge
from tsunagi.audit.evidence import Aside, AuditedOutput, Batch
from tsunagi.audit.late import Refused
from tsunagi.audit.tally import Tally
from tsunagi.runtime.log import DEAD_LETTERS, LATE, PLAN, TUPLES
from tsunagi.runtime.messages import BOUNDED, Assignment, DeadLetter, Late, Plan
from tsunagi.runtime.names import Name

NOBODY = Disturbance("spark", False, frozenset(), 0, 1 << 62)
"""A disturbance, all the time, that explains nothing."""


def found(flow: Flow, cause: Disturbance = NOBODY) -> dict[str, int]:
    """Judge the round so far; return what is wrong."""
    flow.ledger.after(cause)
    return dict(flow.ledger.tally.wrong)


def refuse(flow: Flow, edge: str, *, topic: str = LATE, after_us: int = 100_000) -> None:
    """Write a step whose batch of one edge comes after it has closed, and is set aside."""
    step = flow.step
    flow.now_us = step * STEP_US
    others = [flow.batch(other, step) for other in EDGES if other != edge]
    for record in others:
        flow.ledger.take(record)
    output = flow.output(step, offset=others[-1].offset, out=(edge,))
    flow.take(output, flow.block(output, "a"), flow.block(output, "b"))
    flow.now_us += after_us
    record = flow.batch(edge, step)
    flow.ledger.take(record)
    if topic == LATE:
        flow.take(Late(version=1, slot=0, offset=record.offset, reason="closed"))
    else:
        letter = DeadLetter(version=1, topic=TUPLES, partition=0, offset=record.offset, reason="damaged")
        flow.ledger.take(flow.record(DEAD_LETTERS, letter.SerializeToString()))
    flow.step = step + 1


def cause(flow: Flow, node: str, *, broker: bool = False, owned: tuple[int, ...] = ()) -> Disturbance:
    """Return a disturbance of the present time."""
    return Disturbance(node, broker, frozenset(owned), flow.now_us - STEP_US, flow.now_us + STEP_US)


# ---- owners


def test_a_change_of_owner_without_a_cause() -> None:
    flow = Flow()
    flow.ledger.take(flow.ownership(2, "sec-1"))
    assert found(flow) == {"owner changes": 1}
    assert f"gw-1 -> sec-1 (epoch 2, reason not known) at {flow.now_us}" in flow.ledger.tally.problems[-1]
    flow.go_on()
    assert found(flow) == {"owner changes": 1}  # it counts once


@pytest.mark.parametrize(
    ("node", "broker", "ok"), [("gw-1", False, True), ("sec-1", False, False), ("kafka", True, True)]
)
def test_only_its_owner_or_the_broker_costs_a_slot_its_owner(node: str, broker: bool, ok: bool) -> None:
    flow = Flow()
    flow.ledger.take(flow.ownership(2, "sec-1"))
    assert (found(flow, cause(flow, node, broker=broker)) == {}) == ok


@pytest.mark.parametrize(("early_us", "ok"), [(0, True), (AFTER_US, True), (AFTER_US + STEP_US + 1, False)])
def test_a_disturbance_explains_what_follows_it_shortly(early_us: int, ok: bool) -> None:
    flow = Flow()
    flow.ledger.take(flow.ownership(2, "sec-1"))
    now = cause(flow, "gw-1")
    assert (found(flow, replace(now, from_us=0, to_us=now.to_us - early_us)) == {}) == ok
    flow = Flow()
    flow.ledger.take(flow.ownership(2, "sec-1"))
    assert found(flow, replace(now, from_us=flow.now_us + 1)) == {"owner changes": 1}  # it came after


@pytest.mark.parametrize("first", ["plan", "change"])
def test_a_move_that_the_plan_asks_for_is_a_cause_once(first: str) -> None:
    flow = Flow()
    move = Plan(version=1, assignment=Assignment(slot=0, owner="sec-1", serial=4, reason="move"))
    plan = flow.record(PLAN, move.SerializeToString())
    change = flow.ownership(2, "sec-1")
    for record in (plan, change) if first == "plan" else (change, plan):
        flow.ledger.take(record)
    assert found(flow) == {}
    flow.ledger.take(flow.ownership(3, "gw-1"))
    flow.ledger.take(flow.ownership(4, "sec-1"))
    assert found(flow) == {"owner changes": 2}


# ---- late and dead


@pytest.mark.parametrize("topic", [LATE, DEAD_LETTERS])
@pytest.mark.parametrize("edge", list(EDGES))
def test_batches_of_a_living_edge_that_are_set_aside(topic: str, edge: str) -> None:
    flow = Flow()
    for _ in range(4):
        refuse(flow, edge, topic=topic)
    assert found(flow)[topic] == 8
    assert found(flow)[topic] == 8
    assert flow.ledger.counts()["aside"] == 4


@pytest.mark.parametrize(
    ("node", "broker", "owned", "ok"),
    [
        ("edge-1", False, (), True),
        ("edge-2", False, (), False),
        ("kafka", True, (), True),
        ("gw-1", False, (0,), True),
        ("sec-1", False, (1,), False),
    ],
)
def test_who_was_disturbed_decides(node: str, broker: bool, owned: tuple[int, ...], ok: bool) -> None:
    flow = Flow()
    refuse(flow, "edge-1")
    assert (LATE not in found(flow, cause(flow, node, broker=broker, owned=owned))) == ok


def test_few_may_come_into_the_log_too_late_but_not_many() -> None:
    flow = Flow()
    flow.go_on(60)
    refuse(flow, "edge-1", after_us=900_000)
    assert found(flow) == {}
    assert flow.ledger.counts()["slow"] == 2
    for _ in range(20):
        refuse(flow, "edge-1", after_us=900_000)
    assert found(flow) == {"slow": flow.ledger.counts()["slow"]}


@pytest.mark.parametrize(("after_us", "ok"), [(450_000, False), (550_000, True), (750_000, True)])
def test_a_batch_is_slow_once_its_step_need_not_wait_for_it_any_more(after_us: int, ok: bool) -> None:
    flow = Flow()
    flow.go_on(60)
    refuse(flow, "edge-1", after_us=after_us)  # its step waits 0.5 s
    assert found(flow) == ({} if ok else {LATE: 2})
    if not ok:
        assert "0.450 to 0.450 s after their times" in flow.ledger.tally.problems[-1]


# ---- bounds


def judged(outages: int, held: int, length: int, sensors: int = 1) -> dict[str, int]:
    """Let an edge have outages. In each of them bounds hold of `held` sensors; of one sensor, in the first `held`."""
    tally = Tally()
    judge = Judge(tally, 500_000, 0.9)
    judge.cause(Disturbance("kafka", True, frozenset(), 0, 1 << 62))
    items = []
    number, one = np.arange(sensors, dtype=np.uint32), np.ones(sensors)
    for outage in range(outages):
        good = number < held if sensors > 1 else np.full(1, outage < held)
        for step in range(outage * (length + 1), outage * (length + 1) + length):
            batch = Batch(0, step, step * STEP_US, "edge-1", 1, step, number, np.where(good, 0.5, 2.0))
            quality = np.full(sensors, BOUNDED, dtype=np.uint8)
            output = AuditedOutput(0, 7, Name(step, 0), 1, step, 0, number, 0 * one, one, quality, one)
            items.append(Refused(batch, Aside(LATE, 0, step, "closed"), output))
    judge.refused(items, STEP_US, 1_000_000)
    judge.refused(items, STEP_US, 1_000_000)  # said again, it counts once
    assert not tally.wrong
    judge.finish()
    assert judge.bounds.outages == outages * sensors
    assert judge.bounds.values == outages * length * sensors
    assert judge.bounds.held == held * length * (outages if sensors > 1 else 1)
    return dict(tally.wrong)


@pytest.mark.parametrize(("outages", "held", "ok"), [(100, 90, True), (100, 70, False), (10, 8, True), (4, 0, False)])
@pytest.mark.parametrize("length", [1, 30])
def test_bounds_count_by_outages_of_a_sensor(outages: int, held: int, ok: bool, length: int) -> None:
    assert judged(outages, held, length) == ({} if ok else {"bounds": 1})


@pytest.mark.parametrize(("outages", "held", "ok"), [(1, 19, True), (1, 13, False), (10, 19, False), (10, 24, True)])
@pytest.mark.parametrize("length", [1, 30])
def test_sensors_that_fail_together_miss_together(outages: int, held: int, ok: bool, length: int) -> None:
    assert judged(outages, held, length, sensors=27) == ({} if ok else {"bounds": 1})


def test_a_late_batch_is_the_truth_of_what_was_estimated() -> None:
    flow = Flow()
    for _ in range(4):
        refuse(flow, "edge-1")
    found(flow, cause(flow, "kafka", broker=True))
    assert (flow.ledger.counts()["bounds"], flow.ledger.counts()["bounds_held"]) == (8, 8)


def test_the_untouched_flow_has_no_findings() -> None:
    flow = Flow()
    flow.go_on(60)
    assert found(flow) == {}
