"""How long a module may be."""

from __future__ import annotations

from pathlib import Path

from tsunagi.installation import CHECKOUT

MOST_LINES = 500
"""Longest module, in lines: a longer one holds more than one idea, and nobody reads it to its end."""
LONGER = {
    "services/tsunagi/slot/slot.py",
    "services/tsunagi/worker/host.py",
}
"""Modules that are still longer. The list only shrinks: whoever splits one of them takes it off."""


def test_no_module_is_longer_than_500_lines() -> None:
    assert CHECKOUT is not None
    lengths: dict[str, int] = {}
    for folder in ("services", "spark", "deploy", "tests"):
        for path in (Path(CHECKOUT) / folder).rglob("*.py"):
            if not path.name.endswith("_pb2.py"):
                lengths[path.relative_to(CHECKOUT).as_posix()] = path.read_text(encoding="utf-8").count("\n")
    longer = {name for name, length in lengths.items() if length > MOST_LINES}
    assert sorted(longer - LONGER) == [], f"split these along what they do: more than {MOST_LINES} lines"
    assert sorted(LONGER - longer) == [], "no longer that long (or gone): take these off the list LONGER"
