"""The launcher in its own thread: order, failures, and what is not known to it yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog

from tsunagi.scaler.launcher_thread import LOOK_S, STOP_S, LauncherThread

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
def pair() -> Iterator[tuple[LauncherThread, Launcher]]:
    launcher = Launcher()
    launcher_thread = LauncherThread(launcher, logger)
    yield launcher_thread, launcher
    launcher.gate.set()
    launcher_thread.close()
    assert launcher.closed


def look(launcher_thread: LauncherThread, until: Callable[[list[str]], bool]) -> list[str]:
    """Look again and again; return the failed launches."""
    failed: list[str] = []
    now, deadline = 0.0, time.monotonic() + 30
    while not until(failed):
        assert time.monotonic() < deadline
        now += LOOK_S
        failed += launcher_thread.look(now)
        time.sleep(0.01)
    return failed


def test_nothing_is_known_before_the_launcher_has_said_it(pair: tuple[LauncherThread, Launcher]) -> None:
    launcher_thread, launcher = pair
    launcher.workers["a"] = "small"
    assert launcher_thread.look(0.0) == []
    assert launcher_thread.running is None
    look(launcher_thread, lambda _: launcher_thread.running is not None)
    assert launcher_thread.running == {"a": "small"}


def test_a_worker_counts_from_the_moment_that_it_is_asked_for(pair: tuple[LauncherThread, Launcher]) -> None:
    launcher_thread, launcher = pair
    look(launcher_thread, lambda _: launcher_thread.running is not None)
    launcher.gate.clear()
    launcher_thread.look(1000.0)  # is asked before the launch, and answers after it
    launcher_thread.launch("b", "big")
    for turn in range(5):
        launcher_thread.look(1001.0 + turn)
        assert launcher_thread.running == {"b": "big"}
    launcher.gate.set()
    look(launcher_thread, lambda _: "b" in launcher.workers)
    assert look(launcher_thread, lambda _: launcher_thread.running == {"b": "big"}) == []


def test_a_launch_that_fails_is_told_once(pair: tuple[LauncherThread, Launcher]) -> None:
    launcher_thread, launcher = pair
    look(launcher_thread, lambda _: launcher_thread.running is not None)
    launcher.trouble = "refused"
    launcher_thread.launch("b", "big")
    assert look(launcher_thread, bool) == ["b"]
    launcher.trouble = ""
    look(launcher_thread, lambda _: launcher_thread.running == {})


def test_a_launcher_that_cannot_say_what_runs_leaves_it_unknown(pair: tuple[LauncherThread, Launcher]) -> None:
    launcher_thread, launcher = pair
    look(launcher_thread, lambda _: launcher_thread.running is not None)
    launcher.blind = True
    look(launcher_thread, lambda _: launcher_thread.running is None)
    launcher.blind = False
    look(launcher_thread, lambda _: launcher_thread.running == {})


def test_a_stop_is_asked_for_again_after_a_while_only(pair: tuple[LauncherThread, Launcher]) -> None:
    launcher_thread, launcher = pair
    launcher.workers["a"] = "small"
    launcher.trouble = "refused"
    assert launcher_thread.stop("a", 0.0)
    assert not launcher_thread.stop("a", 1.0)
    look(launcher_thread, lambda _: len(launcher.stops) == 1 and not launcher_thread._stops)
    assert not launcher_thread.stop("a", STOP_S - 0.1)
    launcher.trouble = ""
    assert launcher_thread.stop("a", STOP_S)
    look(launcher_thread, lambda _: launcher.workers == {})
