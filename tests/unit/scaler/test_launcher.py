"""Workers as processes of this machine, and who makes which launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tsunagi.runtime.birth import born
from tsunagi.runtime.settings import ScalerSettings, Settings
from tsunagi.scaler import launcher as module
from tsunagi.scaler.launcher import LocalLauncher, NoLauncher
from tsunagi.scaler.launchers import make_launcher
from tsunagi.system import processes
from tsunagi.system.processes import Process

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
STUBBORN = (sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalLauncher:
    """Return one whose workers only sleep; what it would have run stands in their pid files."""

    def start(settings: Settings, config: Path | None, node: str, role: str, arguments: list[str]) -> Process:
        del config
        made = processes.spawn(settings.state, node, role, (*SLEEP, *arguments), dict(os.environ))
        assert made.command[-len(arguments) :] == tuple(arguments)
        return made

    monkeypatch.setattr(processes, "start", start)
    return LocalLauncher(Settings(state=tmp_path), None)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_is_launched_found_by_another_launcher_and_stopped(launcher: LocalLauncher, tmp_path: Path) -> None:
    launcher.launch("small-1", "small")
    launcher.launch("worker-1", "local")
    again: Any = LocalLauncher(Settings(state=tmp_path), None)
    try:
        assert again.running() == {"small-1": "small", "worker-1": "local"}
        again.stop("small-1")
        wait(lambda: again.running() == {"worker-1": "local"})
        again.stop("nobody")
    finally:
        for process in processes.list_processes(tmp_path):
            processes.kill(process)


@pytest.mark.slow
def test_one_that_does_not_stop_is_killed(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(STUBBORN, start_new_session=True)
    processes.record(tmp_path, Process("small-1", "worker", child.pid, born(child.pid), STUBBORN))
    try:
        time.sleep(0.5)
        launcher.stop("small-1")
        assert child.poll() is None
        monkeypatch.setattr(module, "KILL_S", -1.0)
        launcher.stop("small-1")
        assert child.wait(30) < 0
    finally:
        child.kill()
        child.wait()


def test_other_processes_of_the_system_are_no_workers(launcher: LocalLauncher, tmp_path: Path) -> None:
    processes.record(tmp_path, Process("edge-1", "edge", os.getpid(), born(os.getpid()), ()))
    assert launcher.running() == {}


def test_the_settings_name_the_launcher(tmp_path: Path) -> None:
    assert isinstance(make_launcher(Settings(scaler=ScalerSettings(launcher="none")), None), NoLauncher)
    made = make_launcher(Settings(state=tmp_path, scaler=ScalerSettings(launcher="local")), None)
    assert isinstance(made, LocalLauncher)
    nobody = NoLauncher()
    nobody.launch("worker-1", "local")
    nobody.stop("worker-1")
    assert nobody.running() == {}
