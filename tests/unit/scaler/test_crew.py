"""How missing workers are launched; the launcher is the test's, and so is time."""

from __future__ import annotations

import structlog

from services.scaler.crew import RETRY_S, Crew
from services.scaler.launcher import NoLauncher

BOOT_S = 20.0
SETTLE_S = 8.0
logger = structlog.wrap_logger(structlog.testing.CapturingLogger(), processors=[])


class Launcher:
    def __init__(self) -> None:
        self.launched: list[str] = []
        self.running: set[str] = set()
        self.trouble: str = ""
        self.dies_at_once = False

    def launch(self, name: str) -> None:
        if self.trouble:
            raise OSError(self.trouble)
        self.launched.append(name)
        if not self.dies_at_once:
            self.running.add(name)

    def booting(self, name: str) -> bool:
        return name in self.running


def make(wanted: int = 3) -> tuple[Crew, Launcher]:
    launcher = Launcher()
    return Crew(wanted, BOOT_S, SETTLE_S, launcher, logger, 0.0), launcher


def test_it_launches_what_is_missing_once_others_have_had_their_time() -> None:
    crew, launcher = make()
    crew.keep({"gw-1"}, {"gw-1"}, SETTLE_S - 0.1)
    assert launcher.launched == []
    crew.keep({"gw-1"}, {"gw-1"}, SETTLE_S)
    assert launcher.launched == ["worker-1", "worker-2"]
    crew.keep({"gw-1"}, {"gw-1"}, SETTLE_S + 5.0)
    assert len(launcher.launched) == 2
    crew.keep({"gw-1", "worker-1", "worker-2"}, {"gw-1", "worker-1", "worker-2"}, SETTLE_S + 6.0)
    assert len(launcher.launched) == 2


def test_a_dead_worker_is_replaced_under_a_fresh_name() -> None:
    crew, launcher = make(wanted=1)
    crew.keep(set(), {"worker-1", "worker-3"}, 10.0)
    crew.keep({"worker-2"}, {"worker-1", "worker-2", "worker-3"}, 11.0)
    crew.keep(set(), {"worker-1", "worker-2", "worker-3"}, 12.0)
    assert launcher.launched == ["worker-2", "worker-4"]


def test_one_that_does_not_report_in_time_is_given_up() -> None:
    crew, launcher = make(wanted=1)
    crew.keep(set(), set(), 10.0)
    crew.keep(set(), set(), 10.0 + BOOT_S)
    assert len(launcher.launched) == 1
    crew.keep(set(), set(), 10.0 + BOOT_S + 0.1)
    assert len(launcher.launched) == 2


def test_one_that_dies_at_once_is_launched_again_but_not_at_every_turn() -> None:
    crew, launcher = make(wanted=1)
    launcher.dies_at_once = True
    for turn in range(100):
        crew.keep(set(), set(), 10.0 + 0.05 * turn)
    assert 3 <= len(launcher.launched) <= 5.0 / RETRY_S + 1


def test_a_launch_that_fails_is_tried_again_later() -> None:
    crew, launcher = make(wanted=2)
    launcher.trouble = "no more machines"
    crew.keep(set(), set(), 10.0)
    crew.keep(set(), set(), 10.0 + RETRY_S / 2)
    launcher.trouble = ""
    crew.keep(set(), set(), 10.0 + RETRY_S - 0.01)
    assert launcher.launched == []
    crew.keep(set(), set(), 10.0 + RETRY_S)
    assert len(launcher.launched) == 2


def test_without_a_launcher_nothing_boots() -> None:
    launcher = NoLauncher()
    launcher.launch("worker-1")
    assert not launcher.booting("worker-1")
