"""Makes the launcher that the settings name."""

from __future__ import annotations

from pathlib import Path

from tsunagi.runtime.settings import Settings
from tsunagi.scaler.launcher import Launcher, LocalLauncher, NoLauncher


def make_launcher(settings: Settings, config: Path | None) -> Launcher:
    """Return the launcher that `[scaler] launcher` names.

    Raises:
        LauncherError: it cannot be used here.
    """
    if settings.scaler.launcher == "docker":
        from tsunagi.scaler.docker_launcher import DockerLauncher  # the library is slow to import

        return DockerLauncher(settings)
    return LocalLauncher(settings, config) if settings.scaler.launcher == "local" else NoLauncher()
