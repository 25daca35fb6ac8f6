"""The broker itself dies: by SIGKILL for ten seconds, and because it can write no more."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stream import STEPS, Inputs
from tests.e2e.system import Rig
from tests.e2e.verdict import Verdict, batches, tuples_of, validate
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.local.up import local_broker

LOGGER = logging.getLogger(__name__)
AWAY_S = 10.0
LATE_SHARE = 0.01


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, inputs: Inputs) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("outage"), inputs, servers=f"127.0.0.1:{free_port()}")
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def own_broker(rig: Rig) -> Broker:
    broker = local_broker(rig.settings)
    assert broker is not None
    return broker


def test_what_edges_spool_while_the_broker_is_dead_arrives_in_its_steps(rig: Rig) -> None:
    rig.wait_protected()
    running = rig.pids()
    before = {slot: watch.epoch for slot, watch in enumerate(rig.watches)}
    broker = own_broker(rig)
    killed_us = time.time_ns() // 1000
    broker.kill()
    time.sleep(AWAY_S)  # the fault itself
    broker.start()
    broker.wait_ready()
    back_us = time.time_ns() // 1000
    rig.advance()
    rig.wait_protected()
    verdict = validate(rig)
    assert rig.pids() == running
    spooled, late = spool(verdict, killed_us, back_us)
    changes = {slot: watch.epoch - before[slot] for slot, watch in enumerate(rig.watches)}
    LOGGER.info("killed: %s tuples spooled, %s late; changes of owner by slot: %s", spooled, late, changes)
    verdict.tell()
    assert spooled > 0
    assert late <= LATE_SHARE * spooled


def test_a_broker_that_can_write_no_more_says_why_and_the_rest_waits_for_it(rig: Rig) -> None:
    rig.wait_protected()
    running = rig.pids()
    broker = own_broker(rig)
    assert broker.pid is not None
    room = Path(broker.directory, "broker.log").stat().st_size + 65536  # its last words must still fit
    killed_us = time.time_ns() // 1000
    # No file of the broker may grow beyond this: what a full disk says, without a disk and without root.
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (room, room))
    rig.wait(lambda: broker.pid is None, "the broker's end")
    why = broker.explain().splitlines()[0]
    LOGGER.info(why)
    assert str(broker.directory) in why
    assert "no room" in why
    broker.start()
    broker.wait_ready()
    back_us = time.time_ns() // 1000
    rig.advance()
    rig.wait_protected()
    verdict = validate(rig)
    assert rig.pids() == running
    spooled, late = spool(verdict, killed_us, back_us)
    LOGGER.info("full: %s tuples spooled, %s late", spooled, late)
    verdict.tell()


def spool(verdict: Verdict, from_us: int, to_us: int) -> tuple[int, int]:
    """Return (tuples of the steps that ended in that time, those of them that are in `late`)."""
    inside = [
        letter
        for slot, records in verdict.logs.items()
        for letter in batches(slot, records)
        if from_us <= letter.batch.step * STEPS.slide_us <= to_us
    ]
    late = [letter for letter in inside if (letter.slot, letter.offset) in verdict.asides]
    return sum(map(tuples_of, inside)), sum(map(tuples_of, late))
