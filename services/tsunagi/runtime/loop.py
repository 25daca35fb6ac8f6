"""How a service runs and ends: signals set a flag, errors become exit codes, and nothing dies without a word."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import structlog

from tsunagi.runtime.explain import FAILED, REFUSED, debugging, explain

if TYPE_CHECKING:
    from tsunagi.runtime.settings import Settings

__all__ = ["DONE", "FAILED", "REFUSED", "StopFlag", "run_service", "serve"]

DONE = 0
"""Exit codes: ended in good order; anything unforeseen; the configuration or the input cannot be used."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Set by SIGTERM and SIGINT (or by hand); the loop looks at it between two bounded waits.

    A context manager: on leaving, the former signal handlers are back. Outside the main thread, where Python allows no
    handlers, it is a plain flag.
    """

    def __init__(self, *, install: bool = True) -> None:
        self._event = threading.Event()
        self._former: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        if install and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._former[number] = signal.signal(number, self._on_signal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def is_set(self) -> bool:
        """Return whether the service shall end."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask the service to end."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until asked to end, at most `timeout_s`; return whether asked."""
        return self._event.wait(timeout_s)

    def restore(self) -> None:
        """Put the former signal handlers back."""
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal ends the process at once: whoever sends it does not want to wait for a clean end.
        if self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._event.set()


def serve(name: str, service: Callable[[Settings], int | None]) -> NoReturn:
    """Run a service by the settings that are in force, and end this process with its exit code.

    Args:
        name: of the process (a node's, an edge's), by which its deaths are counted (tsunagi.runtime.deaths).
    """

    def live() -> int | None:
        # Every command line imports this module: what only a service needs is imported when it runs.
        from tsunagi.runtime.deaths import no_vain_starts  # noqa: PLC0415
        from tsunagi.runtime.settings import load  # noqa: PLC0415

        settings = load()
        with no_vain_starts(settings.state, name):
            return service(settings)

    sys.exit(run_service(live))


def run_service(main: Callable[[], int | None]) -> int:
    """Run a service and return its exit code.

    `DONE` (or what `main` returned) for a clean end. `REFUSED` for a configuration or input that cannot be used: those
    errors are ValueErrors of this project (ConfigError, SensorsError, SourceError, ModelError), whose message says it
    all, so it is printed without a traceback. `FAILED` for anything else, logged with its traceback.
    """
    try:
        return main() or DONE
    except KeyboardInterrupt:
        return DONE
    except Exception as error:  # noqa: BLE001 - the last line of defence: whatever it was becomes a line and an exit code
        ending = explain(error)
        if ending.code == REFUSED:
            sys.stderr.write(f"{ending.text}\n")
        elif ending.known and not debugging():
            structlog.get_logger().error("failed", error=ending.text, kind=type(error).__name__)
        else:
            structlog.get_logger().exception("failed")
        return ending.code
