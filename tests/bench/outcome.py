"""What every benchmark leaves: one JSON object, in one line of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsunagi.runtime.marked import empty, mark


def fresh(work: Path) -> None:
    """Make a directory, or empty one that a bench has made.

    Raises:
        SystemExit: it holds what no bench has written.
    """
    empty(work, ("*",))
    if not mark(work):
        raise SystemExit(f"{work}: not empty, and not of an earlier run")


def write(found: Mapping[str, Any], out: Path) -> None:
    """Write it; the directory need not be there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found) + "\n", encoding="utf-8")
