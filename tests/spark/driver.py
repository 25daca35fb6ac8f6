"""`tsunagi spark run` as a process that a test starts, kills and stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
"""A machine that also runs the other tests takes this long at worst; what never comes fails all the same."""


class Driver:
    """`tsunagi spark run` as a process."""

    def __init__(self, config: Path, log: Path, **environment: str) -> None:
        self._log = log.open("ab")
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tsunagi.cli", "--config", str(config), "spark", "run"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=self._log,
            stdout=self._log,
            env=os.environ | environment,
        )

    def family(self) -> list[psutil.Process]:
        """Return what it has started: the JVM and its Python workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """End it with SIGKILL; what it has started must end by itself."""
        family = self.family()
        assert any(process.name() == "java" for process in family)
        self.process.kill()
        self.process.wait(60)
        alive = psutil.wait_procs(family, timeout=60)[1]
        assert alive == [], f"left behind: {alive}"

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End whatever is left of it."""
        family = self.family() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for process in psutil.wait_procs(family, timeout=60)[1]:
            process.kill()
        self._log.close()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for: {what}"
        time.sleep(0.05)
