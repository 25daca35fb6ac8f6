"""Keeps enough workers alive: launches one for each that is missing, under a fresh name."""

from __future__ import annotations

from collections.abc import Collection

from structlog.stdlib import BoundLogger

from services.scaler.launcher import Launcher

RETRY_S = 1.0
"""Between two launches when the first one came to nothing."""


class Crew:
    """Counts workers alive and booting against the number wanted. Times are monotonic seconds."""

    def __init__(
        self, wanted: int, boot_s: float, settle_s: float, launcher: Launcher, logger: BoundLogger, now: float
    ) -> None:
        self._wanted = wanted
        self._boot_s = boot_s
        self._launcher = launcher
        self._logger = logger
        self._quiet_until = now + settle_s  # others may be starting workers too
        self._booting: dict[str, float] = {}
        self._number = 0
        self.launched = 0

    def keep(self, alive: Collection[str], known: Collection[str], now: float) -> None:
        """Launch what is missing.

        Args:
            alive: workers that live.
            known: all names ever heard; a fresh one is none of them.
        """
        for name, since in list(self._booting.items()):
            if name in alive or now - since > self._boot_s:
                del self._booting[name]
            elif not self._launcher.booting(name):
                del self._booting[name]
                self._quiet_until = max(self._quiet_until, now + RETRY_S)  # it died at once, and so may the next one
        if now < self._quiet_until:
            return
        while len(alive) + len(self._booting) < self._wanted:
            name = self._fresh(known)
            self._booting[name] = now
            self.launched += 1
            self._logger.info("launching a worker", node=name, alive=len(alive), wanted=self._wanted)
            try:
                self._launcher.launch(name)
            except Exception as error:  # noqa: BLE001 - a launcher may fail in any way, the scaler must not
                self._logger.warning("launch failed", node=name, detail=str(error))
                self._quiet_until = now + RETRY_S
                del self._booting[name]
                return

    def _fresh(self, known: Collection[str]) -> str:
        while True:
            self._number += 1
            name = f"worker-{self._number}"
            if name not in known and not self._launcher.booting(name):
                return name
