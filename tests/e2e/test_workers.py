"""Edges and owners of slots die, freeze and come back; every row is accounted for after each."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from tests.e2e.stream import STEPS, Inputs
from tests.e2e.system import Rig
from tests.e2e.verdict import Verdict, parsed, slot_sensors, validate, wait_exact
from tsunagi.broker.broker import Broker
from tsunagi.local.fleet import FRESH_S
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.messages import LogRecord
from tsunagi.slot.edges import NEVER

LOGGER = logging.getLogger(__name__)
FROZEN_S = 5.0
_CLOCK_US = 2000  # the log's times are milliseconds
_DECIDED_US = 2_000_000  # an EdgeOut stands in the log that long after its decision at most


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    system = Rig(tmp_path_factory.mktemp("workers"), inputs, servers=broker.servers, prefix="workers.")
    try:
        system.start()
        yield system
    finally:
        system.close()


def test_a_killed_edge_is_recovered_meanwhile_and_exact_again_afterwards(rig: Rig) -> None:
    edge = "edge-1"
    rig.kill_edge(edge)
    rig.advance()
    dead_until_us = time.time_ns() // 1000
    rig.edge_back(edge)
    verdict = wait_exact(rig, [edge], lambda: validate(rig))
    own = slot_sensors(rig, edge)
    killed_us = rig.down[edge][-1]
    # Its last batches may have been on their way.
    assert verdict.estimated(own, killed_us + 400_000, dead_until_us) == 1.0
    assert verdict.error_sd() < 0.5
    assert {item["edge"] for item in verdict.checked.findings.not_sent if item["steps"]} >= {edge}


def test_a_killed_owner_is_replaced_and_the_slot_protected_again(rig: Rig) -> None:
    """The secondary hears of the death by its connection to the owner, and writes what is missing at once."""
    rig.wait_protected()
    found = rig.fleet.of_slot(0, "standby")
    assert found is not None
    owner, secondary = rig.watches[0].owner, found[0]
    port = rig.fleet.beats[owner].message.metrics_port
    standby = psutil.Process(rig.process(secondary).pid)
    rig.wait(
        lambda: any(item.raddr[1:] == (port,) for item in standby.net_connections("tcp")),
        "the secondary's connection to the owner",
    )
    kill = rig.kill_owner(0)
    successor = rig.wait_owner(0, kill.epoch)
    assert successor != kill.node
    rig.wait_protected()
    rig.advance()
    said = [line["detail"] for line in rig.lines(secondary) if line.get("event") == "speculation begins"]
    assert f"{owner} has ended a connection" in said
    verdict = validate(rig)
    assert_taken_over(verdict, 0, kill.node)


def test_a_frozen_owner_that_thaws_changes_nothing_and_stands_by_again(rig: Rig) -> None:
    rig.wait_protected()
    zombie, epoch = rig.watches[1].owner, rig.watches[1].epoch
    rig.signal(zombie, signal.SIGSTOP)
    successor = rig.wait_owner(1, epoch)
    assert successor != zombie
    time.sleep(FROZEN_S)  # the fault itself: it stays frozen that long after the takeover
    thawed_us = time.time_ns() // 1000
    rig.signal(zombie, signal.SIGCONT)

    def roles() -> list[str]:
        beat = rig.fleet.beats[zombie]
        if beat.appended_us < thawed_us or beat.age_s(time.time_ns() // 1000) > FRESH_S:
            return ["silent"]
        return [part.role for part in beat.message.slots if part.slot == 1]

    rig.wait(
        lambda: any(line.get("event") == "deposed" for line in rig.lines(zombie)), "the zombie to read of its fall"
    )
    rig.wait(lambda: set(roles()) <= {"standby"}, f"{zombie} to stand by, or to be free")
    rig.wait_protected()
    rig.advance()
    verdict = validate(rig)
    assert rig.watches[1].owner != zombie
    assert_taken_over(verdict, 1, zombie)
    counted, void = control_records(verdict, 1)
    fell_at = next(owner.offset for owner in verdict.checked.logs[1].owners if owner.epoch == epoch + 1)
    after = [control for control in counted if control.offset > fell_at]
    assert [control for control in after if control.writer == zombie] == []
    assert unjust_outs(verdict, 1, rig.down) == []
    LOGGER.info("void in slot 1: %s, of the zombie: %s", len(void), sum(item.writer == zombie for item in void))


def test_an_edge_and_the_owner_killed_at_once(rig: Rig) -> None:
    rig.wait_protected()
    edge = "edge-2"
    rig.kill_edge(edge)
    kill = rig.kill_owner(0)
    rig.wait_owner(0, kill.epoch)
    rig.advance()
    rig.edge_back(edge)
    rig.wait_protected()
    rig.advance()
    verdict = validate(rig)
    assert_taken_over(verdict, 0, kill.node)
    verdict.tell()


def test_owners_measure_whether_their_bounds_hold(rig: Rig) -> None:
    groups = sorted({sensor.group for sensor in rig.inputs.table.sensors})

    def counted(what: str) -> float:
        name = f"tsunagi_recovery_{what}_total"
        return sum(
            rig.metric(watch.owner, f'{name}{{group="{group}",slot="{slot}"}}')
            for slot, watch in enumerate(rig.watches)
            for group in groups
        )

    rig.wait(lambda: counted("truths") > 200, "200 truths of shadow failures")
    share = counted("truths_within") / counted("truths")
    assert share == pytest.approx(rig.settings.recovery.delta, abs=0.2)  # of a term's first steps


def test_the_outputs_of_every_slot_come_out_again_in_a_replay(rig: Rig) -> None:
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)
    assert len(said) == len(rig.watches)


def assert_taken_over(verdict: Verdict, slot: int, old_owner: str) -> None:
    last = [item for item in verdict.takeovers() if item["slot"] == slot][-1]
    assert last["from"] == old_owner
    assert last["detect_s"] is not None, "the new owner reported no takeover"


class Control(NamedTuple):
    """A control record, its place and its writer."""

    offset: int
    record: LogRecord
    writer: str


def control_records(verdict: Verdict, slot: int) -> tuple[list[Control], list[Control]]:
    """Return the control records of a slot's log that count, and those that are void."""
    epoch = 0
    counted: list[Control] = []
    void: list[Control] = []
    for record in verdict.logs[slot]:
        message = parsed(record)
        kind = None if message is None else message.WhichOneof("body")
        if message is None or kind is None or kind == "batch":
            continue
        valid = getattr(message, kind).epoch == (epoch + 1 if kind == "ownership" else epoch)
        epoch += valid and kind == "ownership"
        control = Control(record.offset, message, (record.key or b"").decode().removeprefix("!"))
        (counted if valid else void).append(control)
    return counted, void


def unjust_outs(verdict: Verdict, slot: int, killed: Mapping[str, Sequence[int]]) -> list[tuple[int, str]]:
    """Return (offset, edge) of the valid EdgeOuts of edges that were alive, and neither silent nor behind.

    Silence is measured by the log's times. A batch may land between the owner's decision and its EdgeOut, so the
    silence need not reach up to that. An edge whose heartbeats have stopped is put out after a shorter silence.

    Args:
        killed: edge -> times of its SIGKILLs, microseconds.
    """
    valid = {control.offset for control in control_records(verdict, slot)[0]}
    patience_us = STEPS.slide_us + round(STEPS.grace_s * 1e6)
    heard: dict[str, list[int]] = {}
    newest: dict[str, int] = {}
    found = []
    for record in verdict.logs[slot]:
        message = parsed(record)
        kind = None if message is None else message.WhichOneof("body")
        if message is not None and kind == "batch":
            heard.setdefault(message.batch.edge, []).append(record.appended_us)
            newest[message.batch.edge] = message.batch.step
        elif message is not None and kind == "edge_out" and record.offset in valid:
            out = message.edge_out
            since_us = record.appended_us - patience_us - _DECIDED_US
            times = [time_us for time_us in heard.get(out.edge, []) if time_us > since_us]
            gaps = np.diff([since_us, *times, record.appended_us])
            behind = newest.get(out.edge, 0) + STEPS.max_skew_steps < out.from_step
            dead = any(since_us < at_us <= record.appended_us for at_us in killed.get(out.edge, ()))
            if out.from_step != NEVER and gaps.max() < patience_us - _CLOCK_US and not behind and not dead:
                found.append((record.offset, out.edge))
    return found
