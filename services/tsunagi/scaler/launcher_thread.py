"""Runs the launcher in a thread of its own, so that a slow daemon or cloud does not hold up the scaler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from structlog.stdlib import BoundLogger

from tsunagi.scaler.launcher import Launcher

LOOK_S = 0.5
"""Time between two questions to the launcher about what runs, in seconds."""

STOP_S = 5.0
"""Shortest time between two requests to stop the same worker, in seconds."""


class LauncherThread:
    """Carries out launches and stops one after the other. Times are monotonic seconds of the caller's clock.

    Attributes:
        running: name -> type of the workers, by the launcher's last answer; None if it has not answered or cannot tell.
    """

    def __init__(self, launcher: Launcher, logger: BoundLogger) -> None:
        self.running: Mapping[str, str] | None = None
        self._launcher = launcher
        self._logger = logger
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")
        self._launches: dict[str, tuple[str, Future[Any]]] = {}
        self._stops: dict[str, Future[Any]] = {}
        self._stopped_at: dict[str, float] = {}
        self._look: Future[Mapping[str, str]] | None = None
        self._look_at = 0.0
        self._covered: set[str] = set()

    def look(self, now: float) -> list[str]:
        """Update `running`; return the names whose launches have failed since the last call."""
        failed = self._reap({name: future for name, (_, future) in self._launches.items()}, "launch failed")
        for name in failed:
            del self._launches[name]
        self._reap(self._stops, "stop failed")
        self._stops = {name: future for name, future in self._stops.items() if not future.done()}
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            # Calls are carried out in order: the answer lacks only what was launched after the question.
            for name in self._covered:
                self._launches.pop(name, None)
            try:
                found = look.result()
            except Exception as error:  # noqa: BLE001 - whatever a launcher raises, the scaler must go on
                self._logger.warning("the launcher does not say what runs", detail=str(error))
                self.running = None
            else:
                self.running = dict(found) | {name: kind for name, (kind, _) in self._launches.items()}
        if self._look is None and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._covered = set(self._launches)
            self._look = self._submit(self._launcher.running)
        return failed

    def launch(self, name: str, kind: str) -> None:
        """Start a worker, in the launcher's thread."""
        self._launches[name] = kind, self._submit(self._launcher.launch, name, kind)
        if self.running is not None:
            self.running = dict(self.running) | {name: kind}

    def stop(self, name: str, now: float) -> bool:
        """Stop a worker, in the launcher's thread; return whether it is asked (not if it was a moment ago)."""
        if name in self._stops or now - self._stopped_at.get(name, -STOP_S) < STOP_S:
            return False
        self._stopped_at[name] = now
        self._stops[name] = self._submit(self._launcher.stop, name)
        return True

    def close(self) -> None:
        """Wait for the calls under way, then release the launcher; the workers go on."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._launcher.close()

    def _submit(self, call: Callable[..., Any], *arguments: str) -> Future[Any]:
        return self._pool.submit(call, *arguments)

    def _reap(self, futures: Mapping[str, Future[Any]], event: str) -> list[str]:
        failed = []
        for name, future in futures.items():
            error = future.exception() if future.done() and not future.cancelled() else None
            if error is not None:
                self._logger.warning(event, node=name, detail=str(error))
                failed.append(name)
        return failed
