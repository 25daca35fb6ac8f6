"""Connections to owners: their end is a hint that the process may be dead, and nothing else is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tsunagi.runtime.messages import Heartbeat
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.worker import lifelines
from tsunagi.worker.lifelines import LOOK_S, Lifelines

SERVE = """
import sys, threading
from tsunagi.runtime.health import HealthServer, identity
server = HealthServer("127.0.0.1", 0, lambda: (True, ""), alive=identity(sys.argv[1], int(sys.argv[2])))
print(server.port, flush=True)
threading.Event().wait()
"""
PATIENCE_S = 30.0


class Owner:
    """A process of its own that serves its state as a worker does."""

    def __init__(self, node: str = "gw-1", incarnation: int = 7) -> None:
        command = [sys.executable, "-c", SERVE, node, str(incarnation)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self.port = int(said.readline())

    def die(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Watcher:
    """What the lines of a worker look at: one slot for which it stands by, and what is heard of its owner."""

    def __init__(self) -> None:
        self.lines = Lifelines()
        self.hints: list[tuple[str, int]] = []
        self.owner = "gw-1"
        self.stage = ReplicaStage.WATCH
        self.beats: dict[str, Heartbeat] = {}
        self.now = 0.0

    def beat(self, node: str) -> Heartbeat | None:
        return self.beats.get(node)

    def hint(self, node: str, incarnation: int, now: float) -> None:
        del now
        self.hints.append((node, incarnation))

    def hear(self, owner: Owner, incarnation: int = 7) -> None:
        self.beats["gw-1"] = Heartbeat(
            node="gw-1", incarnation=incarnation, metrics_host="127.0.0.1", metrics_port=owner.port
        )

    def look(self) -> None:
        self.now += LOOK_S
        self.lines.watch([self], self, self.now)  # type: ignore[arg-type,list-item]

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            self.look()
            time.sleep(0.005)


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.die()


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher()
    yield made
    made.lines.close()


HELD: list[bool] = []


@pytest.fixture(autouse=True)
def _note_held(monkeypatch: pytest.MonkeyPatch) -> None:
    HELD.clear()
    is_there = lifelines._is_there

    def noted(*arguments: Any) -> bool:
        found = is_there(*arguments)
        HELD.append(found)
        return found

    monkeypatch.setattr(lifelines, "_is_there", noted)


def test_the_death_of_an_owners_process_is_a_hint(owner: Owner, watcher: Watcher) -> None:
    watcher.hear(owner)
    watcher.wait(lambda: HELD == [True])
    for _ in range(20):
        watcher.look()
    assert watcher.hints == []
    owner.die()
    watcher.wait(lambda: watcher.hints)
    assert watcher.hints == [("gw-1", 7)]


def test_a_process_that_cannot_be_reached_or_is_another_one_is_none(owner: Owner, watcher: Watcher) -> None:
    watcher.hear(owner, incarnation=8)
    watcher.wait(lambda: HELD == [False])
    owner.die()
    watcher.hear(owner, incarnation=9)  # nobody listens there any more
    watcher.look()
    time.sleep(0.1)
    watcher.look()
    assert watcher.hints == []


def test_a_connection_that_is_given_up_is_none(owner: Owner, watcher: Watcher) -> None:
    watcher.hear(owner)
    watcher.wait(lambda: HELD == [True])
    watcher.stage = ReplicaStage.OWN
    watcher.look()
    owner.die()
    time.sleep(0.1)
    watcher.look()
    assert watcher.hints == []


def test_who_leaves_in_good_order_or_says_no_port_is_not_watched(owner: Owner, watcher: Watcher) -> None:
    watcher.hear(owner)
    watcher.beats["gw-1"].leaving = True
    watcher.look()
    watcher.hear(owner)
    watcher.beats["gw-1"].metrics_port = 0
    watcher.look()
    watcher.owner = ""
    watcher.look()
    assert not any(thread.name == "lifeline gw-1" for thread in threading.enumerate())
