"""What is disturbed now, on disk: a run that was killed itself is cleaned up by the next one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """The faults that are set, each a dictionary of JSON values, by container id.

    Args:
        path: its file; there is one only while something is set.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return what is set."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, container: str, **entry: Any) -> None:  # noqa: ANN401 - whatever JSON takes
        """Write down what is about to be set, before it is."""
        self._write(self.entries() | {container: entry})

    def strike(self, container: str) -> None:
        """It has been taken back."""
        self._write({name: entry for name, entry in self.entries().items() if name != container})

    def _write(self, entries: dict[str, dict[str, Any]]) -> None:
        if not entries:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(json.dumps(entries), encoding="utf-8")
        scratch.replace(self._path)
