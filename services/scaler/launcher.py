"""Who starts a worker that is missing. Another launcher is any class with this interface."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from services.local import processes
from services.runtime.settings import Settings


class Launcher(Protocol):
    """Starts workers; whether they live is read from their heartbeats, not asked of the launcher."""

    def launch(self, name: str) -> None:
        """Start a worker under this name.

        Raises:
            Exception: it cannot be started; the scaler logs it and tries again later.
        """

    def booting(self, name: str) -> bool:
        """Return whether a launched worker may still report (its process lives)."""


class NoLauncher:
    """For systems whose workers are started by somebody else (a supervisor, Docker, Kubernetes)."""

    def launch(self, name: str) -> None:
        del name

    def booting(self, name: str) -> bool:
        del name
        return False


class LocalLauncher:
    """Starts workers as processes of this machine."""

    def __init__(self, settings: Settings, config: Path | None) -> None:
        self._settings = settings
        self._config = config

    def launch(self, name: str) -> None:
        processes.start(self._settings, self._config, name, "worker", ["gateway", "run", "--node", name])

    def booting(self, name: str) -> bool:
        found = processes.find(self._settings.state, name)
        return found is not None and processes.alive(found)


def make_launcher(settings: Settings, config: Path | None) -> Launcher:
    """Make the launcher that `[scaler] launcher` names."""
    return LocalLauncher(settings, config) if settings.scaler.launcher == "local" else NoLauncher()
