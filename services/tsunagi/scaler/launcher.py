"""The interface to whoever starts and stops workers. Any class that has it is a launcher (docs/howto/elastic.md)."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tsunagi.runtime.settings import LOCAL, Settings
from tsunagi.system import processes

KILL_S = 15.0
"""A worker that still runs this many seconds after it was told to stop is killed."""


class LauncherError(ValueError):
    """The launcher that the settings name cannot be used here. The message says why."""


class Launcher(Protocol):
    """Starts and stops workers. Whether they live is read from their heartbeats, not asked of the launcher.

    It is called from one thread, which is not the scaler's own, so a call may take time. It keeps no list of what it
    has started: `running` asks the machine, the daemon or the cloud, so that a restarted scaler finds the workers of
    the one before it.
    """

    def launch(self, name: str, kind: str) -> None:
        """Start a worker of this type under this name.

        Raises:
            Exception: the worker cannot be started; the scaler logs it and tries again later.
        """

    def running(self) -> Mapping[str, str]:
        """Return name -> type of the workers that it has started and that still run; remove what is left of the others.

        Raises:
            Exception: nobody can tell; the scaler then neither launches nor stops anything.
        """

    def stop(self, name: str) -> None:
        """Ask a worker to stop, and return at once. Later calls, while the worker still runs, may use force.

        Raises:
            Exception: the worker cannot be stopped; the scaler logs it and tries again later.
        """

    def close(self) -> None:
        """Release what the launcher holds; its workers go on."""


class NoLauncher:
    """The launcher of systems whose workers somebody else starts (a supervisor, Docker, Kubernetes)."""

    def launch(self, name: str, kind: str) -> None:
        del name, kind

    def running(self) -> Mapping[str, str]:
        return {}

    def stop(self, name: str) -> None:
        del name

    def close(self) -> None:
        """Do nothing: nothing is held."""


class LocalLauncher:
    """Starts workers as processes of this machine. It takes every worker of its state directory for its own.

    A worker keeps the `rate` limit of its type (`[scaler.sizes]`) by itself.
    """

    def __init__(self, settings: Settings, config: Path | None) -> None:
        self._settings = settings
        self._config = config
        self._told: dict[str, float] = {}

    def launch(self, name: str, kind: str) -> None:
        arguments = ["gateway", "run", "--node", name]
        if kind != LOCAL:
            arguments += ["--type", kind]
        processes.start(self._settings, self._config, name, "worker", arguments)

    def running(self) -> Mapping[str, str]:
        found = [item for item in processes.list_processes(self._settings.state) if item.role == "worker"]
        living = {item.node: _kind(item.command) for item in found if processes.alive(item)}
        self._told = {name: at for name, at in self._told.items() if name in living}
        return living

    def stop(self, name: str) -> None:
        process = processes.find(self._settings.state, name)
        if process is None:
            return
        told = self._told.setdefault(name, time.monotonic())
        if time.monotonic() - told > KILL_S:
            processes.kill(process)
        else:
            processes.send_signal(process, signal.SIGTERM)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _kind(command: tuple[str, ...]) -> str:
    return command[command.index("--type") + 1] if "--type" in command[:-1] else LOCAL
