"""Processes with pid files: what is signalled is what was started, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tsunagi.installation import CHECKOUT
from tsunagi.local.up import System
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.processes import Process, ProcessError

SLEEP = (sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)",
)
# A child in a process group of its own, as Spark's Python daemon makes one.
CHILD = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(60)"
PARENT = (sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])")


def started(state: Path, command: tuple[str, ...], node: str = "n1") -> tuple[Process, str]:
    """Start a command and wait for its first line."""
    process = processes.spawn(state, node, "worker", command, dict(os.environ))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        text = processes.log_file(state, node).read_text()
        if text.endswith("\n"):
            return process, text.strip()
        time.sleep(0.01)
    raise AssertionError("it did not start")


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_start_find_stop(tmp_path: Path) -> None:
    process, _ = started(tmp_path, SLEEP)
    assert processes.find(tmp_path, "n1") == process
    assert processes.list_processes(tmp_path) == [process]
    assert processes.alive(process)
    with pytest.raises(ProcessError, match=f"n1 runs already .pid {process.pid}"):
        processes.spawn(tmp_path, "n1", "worker", SLEEP, dict(os.environ))
    assert processes.terminate([process]) == []
    assert not processes.alive(process)
    processes.forget(tmp_path, "n1")
    assert processes.find(tmp_path, "n1") is None


def test_a_pid_that_is_somebody_elses_is_never_signalled(tmp_path: Path) -> None:
    process, _ = started(tmp_path, SLEEP)
    boot, ticks = process.born.split("/")
    for other in (f"{boot}/{int(ticks) - 1}", f"{boot}/", f"0{boot[1:]}0/{ticks}", ""):
        stale = replace(process, node="old", born=other)
        assert not processes.alive(stale)
        assert not processes.send_signal(stale, signal.SIGKILL)
        assert not processes.kill(stale)
        assert processes.terminate([stale]) == []
    assert processes.alive(process)
    processes.kill(process)
    assert gone(process.pid)


def test_what_lived_before_the_machine_started_anew_has_no_session_here(tmp_path: Path) -> None:
    """A dead leader's session may be another's by then, which nobody must kill."""
    process, child = started(tmp_path, PARENT)
    processes.kill(process, session=False)
    assert gone(process.pid)
    assert processes.members(replace(process, born="another/1")) == []
    assert [member.pid for member in processes.members(process)] == [int(child)]
    processes.kill(process)
    assert gone(int(child))


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_a_process_is_known_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """The kernel tells a start as a time of day by the clock of now: `down` found nobody after a step, nine ran on."""
    process, _ = started(tmp_path, SLEEP)
    told = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: told(self) + step_s)
    assert processes.alive(process)
    stopped = System(Settings(state=tmp_path), None, lambda _line: None).stop(broker=False)
    assert stopped == (["n1"], [], [])
    assert gone(process.pid)


def test_who_is_not_seen_to_end_keeps_his_file_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = started(tmp_path, SLEEP)
    processes.pid_file(tmp_path, "n2").write_text("{")
    monkeypatch.setattr(processes, "_sent", lambda _process, _number: False)  # another user's: no right to signal it
    monkeypatch.setattr(processes, "terminate", partial(processes.terminate, timeout_s=0.05))
    monkeypatch.setattr(processes, "GONE_S", 0.05)
    ended, _, left = System(Settings(state=tmp_path), None, lambda _line: None).stop(broker=False)
    assert ended == []
    assert left[0] == f"n1 (pid {process.pid})"
    assert "n2.json" in left[1]
    assert processes.find(tmp_path, "n1") == process
    monkeypatch.undo()
    processes.kill(process)


def test_what_does_not_stop_is_killed(tmp_path: Path) -> None:
    process, _ = started(tmp_path, STUBBORN)
    assert processes.terminate([process], timeout_s=0.1) == [process]
    assert gone(process.pid)


def test_a_stopped_process_is_killed(tmp_path: Path) -> None:
    process, _ = started(tmp_path, SLEEP)
    processes.send_signal(process, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert processes.terminate([process], timeout_s=0.1) == [process]
    assert gone(process.pid)


def test_the_whole_session_is_killed(tmp_path: Path) -> None:
    process, child = started(tmp_path, PARENT)
    assert len(processes.members(process)) == 2
    processes.kill(process)
    assert gone(process.pid)
    assert gone(int(child))


def test_what_a_dead_leader_left_behind_is_killed(tmp_path: Path) -> None:
    process, child = started(tmp_path, PARENT)
    processes.kill(process, session=False)
    assert gone(process.pid)
    assert psutil.pid_exists(int(child))
    processes.terminate([process])
    assert gone(int(child))


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"node": "n1"}), json.dumps({"node": "n1", "pid": "x"})])
def test_a_damaged_pid_file_is_no_process(tmp_path: Path, text: str) -> None:
    processes.pid_file(tmp_path, "n1").parent.mkdir()
    processes.pid_file(tmp_path, "n1").write_text(text)
    assert processes.find(tmp_path, "n1") is None
    assert processes.list_processes(tmp_path) == []


@pytest.mark.slow
def test_a_detached_process_whose_starter_died_too_early_enrols_itself(tmp_path: Path) -> None:
    """Between the start of a process and its pid file its starter may be killed: nobody would find it any more."""
    (tmp_path / "pids").mkdir()
    code = (
        "import sys, time; from pathlib import Path; from tsunagi.system.processes import enrol; "
        f"enrol(Path({str(tmp_path)!r}), 'n1', 'worker'); time.sleep(60)"
    )
    detached = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, cwd=CHECKOUT)
    attached = subprocess.Popen([sys.executable, "-c", code.replace("n1", "n2")], cwd=CHECKOUT)
    try:
        deadline = time.monotonic() + 30
        while processes.find(tmp_path, "n1") is None and time.monotonic() < deadline:
            time.sleep(0.05)
        found = processes.find(tmp_path, "n1")
        assert found is not None
        assert found.pid == detached.pid
        assert processes.alive(found)
        assert processes.find(tmp_path, "n2") is None  # somebody's terminal
    finally:
        for child in (detached, attached):
            child.kill()
            child.wait()
