"""Services as detached processes; each has a pid file, a log file and a session of its own.

A pid file also keeps when the process began, in the kernel's own count (tsunagi.runtime.birth). So a pid that meanwhile
belongs to another process is never signalled, and a living process is recognised whatever the clock says. A service
leads a session. What it starts (Spark: a JVM and Python workers) stays in that session even where it changes its
process group, so the session is what is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tsunagi.installation import import_path
from tsunagi.runtime.birth import boot_id, born
from tsunagi.runtime.marked import mark
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings
from tsunagi.runtime.threads import fix_arithmetic

TERMINATE_S = 15.0
"""A service has this many seconds to stop after SIGTERM; then it is killed."""
GONE_S = 5.0
"""Longest wait for the end of a process that was killed, in seconds. Only one that waits for a disk takes longer."""

_POLL_S = 0.02
"""Time between two looks whether processes have ended, in seconds."""


class ProcessError(RuntimeError):
    """A process cannot be started or stopped as asked. The message says which one and why."""


@dataclass(frozen=True, slots=True)
class Process:
    """One service of this machine.

    Attributes:
        node: name of the service in the log and in its files.
        role: worker | edge | spark | scaler | broker.
        born: boot id and start ticks (`tsunagi.runtime.birth.born`); without ticks if the process ended at once.
    """

    node: str
    role: str
    pid: int
    born: str
    command: tuple[str, ...] = ()


def pid_file(state: Path, node: str) -> Path:
    """Return the path of the pid file of `node`."""
    return state / "pids" / f"{node}.json"


def log_file(state: Path, node: str) -> Path:
    """Return the path of the log file of `node`."""
    return state / "logs" / f"{node}.log"


def logged(state: Path, event: str) -> Iterator[dict[str, Any]]:
    """Yield the lines that services have logged with this event, as dictionaries, file by file."""
    for file in sorted((state / "logs").glob("*.log")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                fields = json.loads(line)
                if isinstance(fields, dict) and fields.get("event") == event:
                    yield fields


def start(
    settings: Settings,
    config: Path | None,
    node: str,
    role: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start ``tsunagi ARGUMENTS`` detached from this terminal; its output is appended to the node's log.

    Args:
        config: the configuration file that the service reads; None means the one that this process reads.
        environment: environment variables that are added to those of this process, or replace them.

    Raises:
        ProcessError: the node runs already.
    """
    command = (sys.executable, "-m", "tsunagi.cli", *arguments)
    variables = dict(os.environ)
    variables["PYTHONPATH"] = import_path(variables.get("PYTHONPATH"))
    variables["PYTHONUNBUFFERED"] = "1"
    fix_arithmetic(variables)
    if config is not None:
        variables[CONFIG_VARIABLE] = str(config.resolve())
    variables.update(environment or {})
    return spawn(settings.state, node, role, command, variables)


def group_of(state: os.PathLike[str], node: str) -> int:
    """Return the id of a group for a node's process, which root gives it. Very likely no other process is in the group.

    The group gives no rights. It marks the process's packets (tsunagi.chaos.cut).
    """
    place = f"{Path(state).resolve()}/{node}".encode()
    return 1_000_000_000 + zlib.crc32(place) % 1_000_000_000


def spawn(state: Path, node: str, role: str, command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Start a command as the leader of a new session and write its pid file.

    Raises:
        ProcessError: the node runs already.
    """
    running = find(state, node)
    if running is not None and alive(running):
        raise ProcessError(f"{node} runs already (pid {running.pid}, {pid_file(state, node)})")
    mark(state)
    for directory in (state / "pids", state / "logs"):
        directory.mkdir(parents=True, exist_ok=True)
    with log_file(state, node).open("ab") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=dict(environment),
            extra_groups=[*os.getgroups(), group_of(state, node)] if os.geteuid() == 0 else None,
        )
    process = Process(node, role, child.pid, born(child.pid) or f"{boot_id()}/", tuple(command))
    # A thread waits for the child. Otherwise a child that dies while this process lives would stay a zombie with a pid.
    threading.Thread(target=child.wait, name=f"reap-{node}", daemon=True).start()
    record(state, process)
    return process


def record(state: Path, process: Process) -> None:
    """Write a pid file, completely or not at all."""
    file = pid_file(state, process.node)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps(asdict(process)), encoding="utf-8")
    scratch.replace(file)


def enrol(state: Path, node: str, role: str) -> None:
    """Write the pid file of this process if `spawn` detached it and there is none.

    The process that started it may have died before it wrote the file; without one nobody would find this process.
    """
    detached = (state / "pids").is_dir() and os.getsid(0) == os.getpid()
    if detached and find(state, node) is None:
        own = psutil.Process()
        with contextlib.suppress(OSError):  # a state directory that cannot be written has no pid files
            record(state, Process(node, role, own.pid, born(own.pid), tuple(own.cmdline())))


def forget(state: Path, node: str) -> None:
    """Remove the pid file of a node, if there is one."""
    pid_file(state, node).unlink(missing_ok=True)


def find(state: Path, node: str) -> Process | None:
    """Return what the node's pid file says, whether the process lives or not; None if no file can be read."""
    try:
        fields = json.loads(pid_file(state, node).read_text(encoding="utf-8"))
        return Process(
            str(fields["node"]),
            str(fields["role"]),
            int(fields["pid"]),
            str(fields["born"]),
            tuple(str(word) for word in fields["command"]),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def list_processes(state: Path) -> list[Process]:
    """Return the processes of all pid files by name, whether they live or not."""
    files = sorted((state / "pids").glob("*.json"))
    found = (find(state, file.stem) for file in files)
    return [process for process in found if process is not None]


def unreadable(state: Path) -> list[Path]:
    """Return the pid files that cannot be read: they are damaged, or of another version."""
    return [file for file in sorted((state / "pids").glob("*.json")) if find(state, file.stem) is None]


def alive(process: Process) -> bool:
    """Return whether this very process still runs; a zombie does not."""
    return _same(process) is not None


def send_signal(process: Process, number: int, *, session: bool = False) -> bool:
    """Send a signal to the process, or to all of its session; return whether any process received it."""
    if not session:
        same = _same(process)
        if same is None:
            return False
        return _sent(same, number)
    return sum(_sent(member, number) for member in members(process)) > 0


def _sent(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return True


def kill(process: Process, number: int = signal.SIGKILL, *, session: bool = True) -> bool:
    """Kill the process at once, then whatever else lives in its session; return whether anything was killed."""
    hit = send_signal(process, number)
    return (session and send_signal(process, number, session=True)) or hit


def members(process: Process) -> list[psutil.Process]:
    """Return the living processes of the session that the process leads or has led, the leader first."""
    leader = _same(process)
    if leader is None and (born(process.pid) or not process.born.startswith(f"{boot_id()}/")):
        return []  # the pid belongs to another process, or to the time before the last boot; so may the session
    found = [] if leader is None else [leader]
    for pid in psutil.pids():
        if pid == process.pid:
            continue
        try:
            if os.getsid(pid) == process.pid and born(pid):
                found.append(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def terminate(processes: Sequence[Process], timeout_s: float = TERMINATE_S) -> list[Process]:
    """Ask the processes to stop and wait; then kill what is left of them and of their sessions, and wait for its end.

    Returns:
        The processes that had to be killed. What `members` still finds belongs to another user, or waits for a disk.
    """
    for process in processes:
        send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    waiting = [process for process in processes if alive(process)]
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waiting = [process for process in waiting if alive(process)]
    for process in processes:
        kill(process)
    deadline = time.monotonic() + GONE_S
    while any(members(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return waiting


def _same(process: Process) -> psutil.Process | None:
    if born(process.pid) != process.born:
        return None
    try:
        return psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        return None


def tail(state: Path, node: str, lines: int = 5) -> Iterator[str]:
    """Yield the last lines of a node's log, for messages that say why it died."""
    try:
        text = log_file(state, node).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()[-lines:]
