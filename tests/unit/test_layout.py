"""How long a module may be."""

from __future__ import annotations

from pathlib import Path

from tsunagi.installation import CHECKOUT

MOST_LINES = 500
"""Longest module, in lines: a longer one holds more than one idea, and nobody reads it to its end."""


def test_no_module_is_longer_than_500_lines() -> None:
    assert CHECKOUT is not None
    lengths: dict[str, int] = {}
    for folder in ("services", "spark", "deploy", "tests"):
        for path in (Path(CHECKOUT) / folder).rglob("*.py"):
            if not path.name.endswith("_pb2.py"):
                lengths[path.relative_to(CHECKOUT).as_posix()] = path.read_text(encoding="utf-8").count("\n")
    longer = sorted(name for name, length in lengths.items() if length > MOST_LINES)
    assert longer == [], f"split these along what they do: more than {MOST_LINES} lines"
