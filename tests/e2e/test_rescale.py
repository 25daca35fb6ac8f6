"""Workers come and go while the system runs, also while one of them dies; every row is accounted for."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.stream import Inputs
from tests.e2e.system import SLOTS, Rig
from tests.e2e.verdict import validate
from tsunagi.broker.broker import Broker
from tsunagi.replay.slots import replay_slots
from tsunagi.runtime.settings import LOCAL
from tsunagi.scaler.by_hand import ask
from tsunagi.system import processes

LOGGER = logging.getLogger(__name__)
BIG = "big"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, broker: Broker, inputs: Inputs) -> Iterator[Rig]:
    scaler = {
        "workers": 2,
        "launcher": "local",
        "boot_s": 60.0,
        "sizes": {BIG: {"rate": 4000.0}, LOCAL: {"rate": 1000.0}},
    }
    system = Rig(
        tmp_path_factory.mktemp("rescale"),
        inputs,
        servers=broker.servers,
        prefix="rescale.",
        changes={"scaler": scaler},
    )
    try:
        system.start()
        yield system
    finally:
        system.close()


def kinds(rig: Rig) -> Counter[str]:
    """Return how many workers live, by type; of those that run alone."""
    running = set(rig.pids())
    return Counter(BIG if name.startswith(BIG) else LOCAL for name in rig.fleet.fresh("worker") if name in running)


def scale(rig: Rig, wanted: Mapping[str, int]) -> None:
    """Ask for so many workers, and wait until there are as many and all slots are protected by them."""
    ask(rig.settings, None, [f"{kind}={count}" for kind, count in wanted.items()], LOGGER.info)
    rig.wait(lambda: kinds(rig) == Counter(wanted), f"workers {wanted}")
    rig.wait_protected()
    rig.advance()


def test_workers_come_and_go_and_nothing_is_lost_doubled_or_reordered(rig: Rig) -> None:
    for wanted in ({LOCAL: 2}, {LOCAL: 4}, {LOCAL: 1, BIG: 1}):
        scale(rig, wanted)
    validate(rig).tell()
    moves = [note for note in rig.notes() if note["reason"] == "move"]
    LOGGER.info("moves %s", json.dumps(moves))
    assert moves, rig.report("no slot was moved by a planned takeover")
    assert all(note["pause_s"] is not None for note in moves)
    owners = {rig.watches[slot].owner for slot in range(SLOTS)}
    assert owners <= set(rig.pids())


def test_a_scaler_that_is_killed_half_way_leaves_no_orphan(rig: Rig) -> None:
    scale(rig, {LOCAL: 2, BIG: 0})
    ask(rig.settings, None, [f"{LOCAL}=4"], LOGGER.info)
    rig.wait(lambda: len(workers(rig)) > 2, "a launch")
    processes.kill(rig.process("scaler"))
    processes.forget(rig.settings.state, "scaler")
    ask(rig.settings, None, [f"{LOCAL}=2"], LOGGER.info)
    processes.start(rig.settings, rig.config, "scaler", "scaler", ["scaler", "run"])
    rig.wait(lambda: kinds(rig) == Counter({LOCAL: 2}) and len(workers(rig)) == 2, "two workers, no more processes")
    rig.wait_protected()
    rig.advance()
    validate(rig)


def test_a_second_scaler_started_by_mistake_does_no_harm(rig: Rig) -> None:
    scale(rig, {LOCAL: 2})
    before = sorted(workers(rig))
    first = rig.process("scaler")
    processes.start(rig.settings, rig.config, "scaler-2", "scaler", ["scaler", "run"])
    try:
        rig.wait(lambda: not processes.alive(first), "the end of the first scaler")
        said = "\n".join(processes.tail(rig.settings.state, "scaler"))
        assert "another scaler of this name began later" in said
        assert f"pid {rig.process('scaler-2').pid}" in said
        processes.forget(rig.settings.state, "scaler")
        scale(rig, {LOCAL: 3})
        assert len(workers(rig)) == 3
        assert set(before) <= set(workers(rig))
        scale(rig, {LOCAL: 2})
        assert any(line.get("event") == "stopping a worker" for line in rig.lines("scaler-2"))
    finally:
        processes.kill(rig.process("scaler-2"))
        processes.forget(rig.settings.state, "scaler-2")
    processes.start(rig.settings, rig.config, "scaler", "scaler", ["scaler", "run"])
    validate(rig)


def test_a_worker_dies_while_slots_move(rig: Rig) -> None:
    scale(rig, {LOCAL: 2})
    for victim in ("old", "new"):
        ask(rig.settings, None, [f"{LOCAL}=2", f"{BIG}=1"], LOGGER.info)
        rig.wait(lambda: kinds(rig)[BIG] == 1, "a big worker")
        (big,) = (name for name in workers(rig) if name.startswith(BIG))
        owner = rig.watches[0].owner
        ask(rig.settings, None, [f"{LOCAL}=0", f"{BIG}=2"], LOGGER.info)
        began = time.monotonic()
        rig.signal(owner if victim == "old" and owner != big else big, signal.SIGKILL)
        rig.wait(lambda: kinds(rig) == Counter({BIG: 2}), "two big workers and no others")
        LOGGER.info("two big workers %.1f s after the kill of the %s one", time.monotonic() - began, victim)
        rig.wait_protected()
        rig.advance()
        validate(rig)
        scale(rig, {LOCAL: 2, BIG: 0})
    said: list[str] = []
    assert replay_slots(rig.settings, (), said.append) == 0, "\n".join(said)


def workers(rig: Rig) -> list[str]:
    """Return the workers whose processes live."""
    living = rig.pids()  # before the list, since the scaler may launch one in between
    roles = {item.node: item.role for item in processes.list_processes(rig.settings.state)}
    return [node for node in living if roles.get(node) == "worker"]
