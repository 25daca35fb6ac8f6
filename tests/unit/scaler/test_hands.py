"""The launcher in its own thread: order, failures, and what is not known to it yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog

from tsunagi.scaler.hands import LOOK_S, STOP_S, Hands

logger = structlog.wrap_logger(structlog.testing.CapturingLogger(), processors=[])


class Launcher:
    """Starts nothing; every call waits for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.workers: dict[str, str] = {}
        self.trouble = ""
        self.blind = False
        self.stops: list[str] = []
        self.closed = False

    def launch(self, name: str, kind: str) -> None:
        self.gate.wait(30)
        if self.trouble:
            raise OSError(self.trouble)
        self.workers[name] = kind

    def running(self) -> Mapping[str, str]:
        self.gate.wait(30)
        if self.blind:
            raise OSError("no daemon")
        return dict(self.workers)

    def stop(self, name: str) -> None:
        self.stops.append(name)
        if self.trouble:
            raise OSError(self.trouble)
        del self.workers[name]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pair() -> Iterator[tuple[Hands, Launcher]]:
    launcher = Launcher()
    hands = Hands(launcher, logger)
    yield hands, launcher
    launcher.gate.set()
    hands.close()
    assert launcher.closed


def look(hands: Hands, until: Callable[[list[str]], bool]) -> list[str]:
    """Look again and again; return the failed launches."""
    failed: list[str] = []
    now, deadline = 0.0, time.monotonic() + 30
    while not until(failed):
        assert time.monotonic() < deadline
        now += LOOK_S
        failed += hands.look(now)
        time.sleep(0.01)
    return failed


def test_nothing_is_known_before_the_launcher_has_said_it(pair: tuple[Hands, Launcher]) -> None:
    hands, launcher = pair
    launcher.workers["a"] = "small"
    assert hands.look(0.0) == []
    assert hands.running is None
    look(hands, lambda _: hands.running is not None)
    assert hands.running == {"a": "small"}


def test_a_worker_counts_from_the_moment_that_it_is_asked_for(pair: tuple[Hands, Launcher]) -> None:
    hands, launcher = pair
    look(hands, lambda _: hands.running is not None)
    launcher.gate.clear()
    hands.look(1000.0)  # is asked before the launch, and answers after it
    hands.launch("b", "big")
    for turn in range(5):
        hands.look(1001.0 + turn)
        assert hands.running == {"b": "big"}
    launcher.gate.set()
    look(hands, lambda _: "b" in launcher.workers)
    assert look(hands, lambda _: hands.running == {"b": "big"}) == []


def test_a_launch_that_fails_is_told_once(pair: tuple[Hands, Launcher]) -> None:
    hands, launcher = pair
    look(hands, lambda _: hands.running is not None)
    launcher.trouble = "refused"
    hands.launch("b", "big")
    assert look(hands, bool) == ["b"]
    launcher.trouble = ""
    look(hands, lambda _: hands.running == {})


def test_a_launcher_that_cannot_say_what_runs_leaves_it_unknown(pair: tuple[Hands, Launcher]) -> None:
    hands, launcher = pair
    look(hands, lambda _: hands.running is not None)
    launcher.blind = True
    look(hands, lambda _: hands.running is None)
    launcher.blind = False
    look(hands, lambda _: hands.running == {})


def test_a_stop_is_asked_for_again_after_a_while_only(pair: tuple[Hands, Launcher]) -> None:
    hands, launcher = pair
    launcher.workers["a"] = "small"
    launcher.trouble = "refused"
    assert hands.stop("a", 0.0)
    assert not hands.stop("a", 1.0)
    look(hands, lambda _: len(launcher.stops) == 1 and not hands._stops)
    assert not hands.stop("a", STOP_S - 0.1)
    launcher.trouble = ""
    assert hands.stop("a", STOP_S)
    look(hands, lambda _: launcher.workers == {})
