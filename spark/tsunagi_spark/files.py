"""The driver's thread that writes the files of `[results] files`; see tsunagi.runtime.result_files."""

from __future__ import annotations

import threading

import structlog

from tsunagi.runtime import metrics
from tsunagi.runtime.log import Log
from tsunagi.runtime.result_files import ResultFiles
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import TableFollower

_CLOSE_S = 10.0
"""Longest wait for the end of the thread, in seconds."""


class FilesThread:
    """Writes the files in a thread until it is closed.

    Raises:
        ConfigError, LogError: as in `ResultFiles`.
        SensorsError: as in `TableFollower`.
    """

    def __init__(self, log: Log, settings: Settings) -> None:
        self._followed = TableFollower(log, settings)
        self._files = ResultFiles(log, settings, self._followed.poll)
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="files", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread. Results that are in no file yet are in the topic."""
        self._stopping.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                before = self._files.rows
                self._files.poll()
                metrics.SPARK_FILE_ROWS.inc(self._files.rows - before)
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` raises it
            structlog.get_logger("tsunagi.spark").exception("results' files ended")
            self._failure = error
        finally:
            self._files.close()
            self._followed.close()
