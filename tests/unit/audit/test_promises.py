"""What a run promises beyond its rows: every judge fails on what is planted, and passes what has a cause."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.audit import small_world
from tests.unit.audit.small_world import IsLate, SmallWorld
from tsunagi.audit.bounds import BoundCount, too_few_hold, worth
from tsunagi.audit.check import check
from tsunagi.audit.delivery import Delivery
from tsunagi.audit.evidence import AuditedOutput, OwnershipTerm, SlotLog
from tsunagi.audit.promises import _check_terms, score
from tsunagi.audit.tally import Findings
from tsunagi.audit.truth import Truth, World
from tsunagi.runtime.columns import floats, pack_floats
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import (
    BOUNDED,
    EXACT,
    VERSION,
    DeadLetter,
    Late,
    LogRecord,
    Ownership,
    Recovered,
    ResultBlock,
)
from tsunagi.runtime.names import Name
from tsunagi.runtime.sensors import Sensor, SensorTable

SLOW_US = 800_000
"""Longer than a slide and the grace."""


def findings(small: SmallWorld, *, ended_us: int = 0, undisturbed: bool = True) -> Findings:
    collected = replace(small.collected(), ended_us=ended_us)
    return check(collected, replace(small.world, undisturbed=undisturbed)).findings


# ---- late and dead


def from_step(edge: str, slot: int, first: int) -> IsLate:
    return lambda *batch: batch[:2] == (edge, slot) and batch[2] >= first


def at_steps(edge: str, slot: int, *numbers: int) -> IsLate:
    return lambda *batch: batch[:2] == (edge, slot) and batch[2] in numbers


@pytest.mark.parametrize("edge", ["edge-1", "edge-2"])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("first", [17, 22])
def test_every_batch_of_a_living_edge_refused_from_a_step_on(tmp_path: Path, edge: str, slot: int, first: int) -> None:
    small = small_world.make(tmp_path, late=from_step(edge, slot, first))
    found = findings(small)
    assert 0 < found.wrong["late"] <= found.late
    assert found.slow == found.lost == 0
    assert f" tuples of {edge}, which lived, went to late (closed)" in found.problems[0]
    assert findings(small, undisturbed=False).ok  # it is somebody else's to explain


def test_one_batch_that_came_in_time_is_enough(tmp_path: Path) -> None:
    found = findings(small_world.make(tmp_path, late=at_steps("edge-1", 0, 20)))
    assert found.wrong == {"late": found.late}


@pytest.mark.parametrize(
    ("edge", "number"),
    [("edge-1", 0), ("edge-1", 3), ("edge-2", 16), ("edge-2", 18)],
    ids=["starts"] * 2 + ["back"] * 2,
)
def test_an_edge_that_starts_or_is_back_may_miss_its_first_steps(tmp_path: Path, edge: str, number: int) -> None:
    found = findings(small_world.make(tmp_path, late=at_steps(edge, 1, number)))
    assert found.late > 0
    assert found.ok, found.problems


@pytest.mark.parametrize(("until", "ok"), [(14, True), (20, False)])
def test_an_edge_that_is_not_let_in_yet_may_wait_a_while(tmp_path: Path, until: int, ok: bool) -> None:
    small = small_world.make(tmp_path, late=at_steps("edge-1", 1, *range(until)))
    small.recovered[1], small.results = [], {}  # (without any edge its outputs have no names to tell)
    assert ("late" not in findings(small).wrong) == ok


def test_another_edges_outage_explains_nothing(tmp_path: Path) -> None:
    assert findings(small_world.make(tmp_path, late=at_steps("edge-1", 1, 16))).wrong["late"] > 0


def test_a_batch_is_slow_once_its_step_need_not_wait_for_it_any_more(tmp_path: Path) -> None:
    grace_us = round(small_world.STEPS.grace_s * 1e6)
    late = at_steps("edge-1", 1, 20)
    assert findings(small_world.make(tmp_path, late=late, late_us=grace_us + 50_000)).slow == 2
    assert findings(small_world.make(tmp_path, late=late, late_us=grace_us - 50_000)).wrong["late"] == 2


def test_few_batches_may_come_into_the_log_too_late_for_their_steps_but_not_many(tmp_path: Path) -> None:
    few = findings(small_world.make(tmp_path, late=at_steps("edge-1", 1, 20), late_us=SLOW_US))
    assert few.ok, few.problems
    assert few.slow == few.late == 2
    many = findings(small_world.make(tmp_path, late=from_step("edge-1", 1, 20), late_us=SLOW_US))
    assert many.wrong == {"slow": many.late}


def test_a_dead_letter_has_no_excuse(tmp_path: Path) -> None:
    small = small_world.make(tmp_path, late=at_steps("edge-2", 1, 16))
    (late,) = small.late
    offset = Late.FromString(late.value or b"").offset
    letter = DeadLetter(version=VERSION, topic="tuples", partition=1, offset=offset, reason="damaged")
    collected = replace(small.collected(), late=[], dead_letters=[replace(late, value=letter.SerializeToString())])
    found = check(collected, small.world).findings
    assert found.wrong == {"dead-letters": found.dead}
    assert "damaged" in found.problems[0]


@pytest.mark.parametrize("topic", ["late", "dead-letters"])
def test_what_is_set_aside_must_have_stood_in_the_log(tmp_path: Path, topic: str) -> None:
    small = small_world.make(tmp_path)
    end = len(small.tuples[1])
    late, letter = Late(slot=1, offset=end), DeadLetter(topic="tuples", partition=1, offset=end)
    if topic == "late":
        small.late.append(replace(small.late[-1], value=late.SerializeToString()))
    dead = [] if topic == "late" else [replace(small.late[-1], value=letter.SerializeToString())]
    found = check(replace(small.collected(), dead_letters=dead), small.world).findings
    assert found.wrong == {"asides": 1}


def test_rows_that_came_too_late_for_their_results_are_no_tuples_set_aside(tmp_path: Path) -> None:
    small = small_world.make(tmp_path)
    output = Recovered.FromString(small.recovered[0][-1].value or b"")
    late = Late(slot=0, offset=output.offset, reason="frontier", recovered=output)
    small.late.append(replace(small.late[-1], value=late.SerializeToString()))
    assert findings(small).ok
    assert findings(small).late == 2


# ---- owners


def take_over(small: SmallWorld, slot: int, epoch: int, node: str) -> Record:
    """Let a slot change its owner at the end of its log, where no output follows."""
    log = small.tuples[slot]
    body = LogRecord(version=VERSION, ownership=Ownership(epoch=epoch, node=node, generation=small_world.GENERATION))
    log.append(Record("tuples", slot, len(log), log[-1].appended_us + 1_000, b"", body.SerializeToString()))
    return log[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "epoch"), [(0, 3), (1, 2)])
def test_a_change_of_owner_that_no_kill_caused(tmp_path: Path, slot: int, epoch: int) -> None:
    small = small_world.make(tmp_path)
    record = take_over(small, slot, epoch, "sec-2")
    found = findings(small)
    assert found.wrong == {"owner changes": 1}
    assert f"(epoch {epoch}, reason not known) at {record.appended_us}" in found.problems[0]
    assert findings(small, undisturbed=False).ok
    assert findings(small, ended_us=record.appended_us).ok  # the services were stopped in good order
    assert not findings(small, ended_us=record.appended_us + 1).ok


def test_the_kill_of_another_node_is_no_cause(tmp_path: Path) -> None:
    small = small_world.make(tmp_path)
    record = take_over(small, 1, 2, "sec-2")
    small.kills.append(replace(small.kills[-1], node="sec-1", owner="sec-1", at_us=record.appended_us - 500))
    assert findings(small).wrong["owner changes"] == 1


@pytest.mark.parametrize(("place", "epoch"), [(3, 2), (-1, 1), (-1, 3)], ids=["too early", "deposed", "nobody's"])
def test_an_output_of_another_term_than_its_inputs(tmp_path: Path, place: int, epoch: int) -> None:
    small = small_world.make(tmp_path)
    records = small.recovered[0]
    message = Recovered.FromString(records[place].value or b"")
    message.epoch = epoch
    records[place] = replace(records[place], value=message.SerializeToString())
    assert findings(small).wrong == {"epoch": 1}
    assert findings(small, undisturbed=False).wrong == {"epoch": 1}


# ---- bounds


def shrink(records: list[Record], kind: type[Recovered | ResultBlock]) -> None:
    for place, record in enumerate(records):
        message = kind.FromString(record.value or b"")
        message.bound = pack_floats(floats(message.bound) * 1e-9)
        records[place] = replace(record, value=message.SerializeToString())


def test_bounds_none_of_which_holds(tmp_path: Path) -> None:
    small = small_world.make(tmp_path)
    for slot in (0, 1):
        shrink(small.recovered[slot], Recovered)
        shrink(small.results[slot], ResultBlock)
    found = findings(small)
    assert found.wrong == {"bounds": 1}
    assert findings(small, undisturbed=False).ok


def estimated(sensors: int, outages: int, held: float, *, length: int = 4) -> tuple[Delivery, World]:
    """Return results in which each sensor has so many outages, and in a share of these, drawn evenly, bounds hold."""
    steps = outages * (length + 1)
    table = SensorTable(tuple(Sensor(i, f"s{i}", "edge-1") for i in range(sensors)))
    truth = Truth(0, np.zeros((steps, sensors)), np.ones((steps, sensors), dtype=np.int64))
    delivery = Delivery.empty(0, steps, sensors)
    delivery.present[:] = True
    down = np.arange(steps) % (length + 1) != 0
    delivery.quality[down] = BOUNDED
    order = np.arange(outages * sensors).reshape(outages, sensors)
    holds = (order + 1) * held // 1 > order * held // 1
    delivery.mean[:] = np.where(np.repeat(holds, length + 1, axis=0), 0.5, 2.0)
    delivery.bound[:] = 1.0
    return delivery, World(table, truth, small_world.STEPS, frozenset(range(sensors)), 1)


@pytest.mark.parametrize(
    ("sensors", "outages", "held", "ok"),
    [
        (100, 10, 0.9, True),
        (100, 10, 0.86, True),
        (100, 10, 0.76, False),
        (10, 10, 0.7, False),
        (10, 1, 0.8, True),  # of ten, two may well miss
        (10, 1, 0.3, False),
        (27, 1, 19 / 27, True),  # sensors that fail together miss together
        (27, 1, 13 / 27, False),
        (54, 2, 79 / 108, True),  # two long outages of an edge: many values, and little that they say
        (27, 10, 19 / 27, False),
        (2, 1, 0.5, True),
        (1, 1, 0.0, True),
        (4, 1, 0.0, False),
    ],
)
@pytest.mark.parametrize("length", [1, 40])
def test_bounds_count_by_outages_of_a_sensor(sensors: int, outages: int, held: float, ok: bool, length: int) -> None:
    delivery, world = estimated(sensors, outages, held, length=length)
    scored = score(delivery, world)
    assert scored.count.outages == sensors * outages
    assert len(scored.off) == scored.count.outages * length
    assert scored.count.coverage == pytest.approx(held)
    found = Findings()
    score(delivery, world).count.judge(world.delta, found)
    assert found.ok == ok
    assert found.wrong["bounds"] == (not ok)


@pytest.mark.parametrize(
    ("together", "values"), [([], 0), ([1], 1), ([1] * 30, 30), ([11], 8.46), ([11, 11], 16.9), ([10_000], 33.2)]
)
@pytest.mark.parametrize("length", [1, 40])
def test_sensors_that_fail_together_are_worth_less_than_others(together: list[int], values: float, length: int) -> None:
    assert worth((sensors, sensors * length) for sensors in together) == pytest.approx(values, rel=0.01)


def test_a_share_that_one_long_outage_decides_is_worth_little_more_than_that_outage() -> None:
    """Ten outages of one step beside one of a hundred: all that is known of the share comes from the long one."""
    alone = worth([(27, 2700)])
    short = worth([(27, 27)] * 10)
    together = worth([(27, 2700), *[(27, 27)] * 10])
    assert alone < together < 1.3 * alone
    assert short > 9 * alone
    assert too_few_hold(0.7, short, 0.9)
    assert not too_few_hold(0.7, together, 0.9)


def test_edges_that_go_out_at_one_step_miss_together() -> None:
    """Two edges are late when the machine stands still for a moment. That is one surprise, and not two."""
    apart = BoundCount(535, 340, Counter({("edge-1", 7): 53, ("edge-2", 90): 54}), Counter({7: 265, 90: 270}))
    at_once = BoundCount(535, 340, Counter({("edge-1", 7): 53, ("edge-2", 7): 54}), Counter({7: 535}))
    assert at_once.worth == pytest.approx(worth([(107, 535)]))
    assert at_once.worth < 0.7 * apart.worth
    assert at_once.outages == apart.outages == 107
    for count, found in ((apart, 1), (at_once, 0)):
        findings = Findings()
        count.judge(0.9, findings)
        assert findings.wrong.total() == found


def test_without_estimates_no_bound_is_judged() -> None:
    delivery, world = estimated(3, 1, 0.0)
    delivery.quality[:] = EXACT
    found = Findings()
    score(delivery, world).count.judge(world.delta, found)
    assert found.ok


@pytest.mark.parametrize(("epoch", "well"), [(9, True), (2, False)])
def test_the_term_of_an_owner_that_began_its_slot_anew_is_the_one_it_claimed(epoch: int, *, well: bool) -> None:
    owners = [OwnershipTerm(0, 1, "gw-1", 0, 1), OwnershipTerm(0, 9, "gw-2", 10, 2)]
    none = np.empty(0)
    ids, quality = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.uint8)
    output = AuditedOutput(0, 1, Name(12, 0), epoch, 5, 3, ids, none, none, quality, none)
    findings = Findings()
    _check_terms({0: SlotLog(0, owners=owners)}, {0: [output]}, findings)
    assert findings.wrong["epoch"] == (0 if well else 1)
