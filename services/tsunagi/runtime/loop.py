"""Runs a service until its end: signals set a flag, errors become exit codes, and every error is logged or printed."""

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
"""The exit code of a service that ended in good order. The other exit codes are `FAILED` and `REFUSED`."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals by which a service is asked to end."""


class StopFlag:
    """A flag that SIGTERM and SIGINT set. A loop looks at it between two short waits.

    It is a context manager, which restores the former signal handlers at its end. Outside the main thread, where Python
    allows no handlers, it is a plain flag.

    Args:
        install: whether to install signal handlers.
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
        """Return whether the service was asked to end."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask the service to end."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; return whether the service was asked to end."""
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
    """Run a service with the configured settings, and end this process with its exit code.

    Args:
        name: the name of the process, such as that of a node or an edge. Its deaths are counted by this name
            (tsunagi.runtime.deaths).
        service: runs the service until its end, and returns its exit code or None.
    """

    def live() -> int | None:
        # Every command line imports this module. So these modules are imported only when a service runs.
        from tsunagi.runtime.deaths import no_vain_starts  # noqa: PLC0415
        from tsunagi.runtime.settings import load  # noqa: PLC0415

        settings = load()
        with no_vain_starts(settings.state, name):
            return service(settings)

    sys.exit(run_service(live))


def run_service(main: Callable[[], int | None]) -> int:
    """Run a service, and return its exit code.

    It is `DONE`, or what `main` returned, after a clean end. It is `REFUSED` if the configuration or the input cannot
    be used: those errors are ValueErrors of this project (ConfigError, SensorsError, SourceError, ModelError), and
    their message is printed without a traceback. It is `FAILED` for any other error, which is logged; an error that is
    not foreseen is logged with its traceback.
    """
    try:
        return main() or DONE
    except KeyboardInterrupt:
        return DONE
    except Exception as error:  # noqa: BLE001 - every error becomes a line and an exit code
        ending = explain(error)
        if ending.code == REFUSED:
            sys.stderr.write(f"{ending.text}\n")
        elif ending.known and not debugging():
            structlog.get_logger().error("failed", error=ending.text, kind=type(error).__name__)
        else:
            structlog.get_logger().exception("failed")
        return ending.code
