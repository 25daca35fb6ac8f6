"""Keeps on disk which faults are set, so that the next run can clean up after one that was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """The faults that are set: a dictionary of JSON values for each container id.

    Args:
        path: the file of the journal. It exists only while a fault is set.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the faults that are set, by container id."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, container: str, **entry: Any) -> None:  # noqa: ANN401 - whatever JSON takes
        """Write down a fault before it is set."""
        self._write(self.entries() | {container: entry})

    def strike(self, container: str) -> None:
        """Remove the fault of a container, after it was taken back."""
        self._write({name: entry for name, entry in self.entries().items() if name != container})

    def _write(self, entries: dict[str, dict[str, Any]]) -> None:
        if not entries:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(json.dumps(entries), encoding="utf-8")
        scratch.replace(self._path)
