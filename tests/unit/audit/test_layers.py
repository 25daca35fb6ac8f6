"""The simulation's judge shares nothing with the judge of the demo and of chaos (the others: `make lint`)."""

from __future__ import annotations

import re
from pathlib import Path

CHECKER = Path(__file__).resolve().parents[2] / "simulation" / "checker.py"


def test_the_checker_is_independent() -> None:
    text = CHECKER.read_text(encoding="utf-8")
    assert re.search(r"(?m)^from tsunagi\.", text)
    assert not re.search(r"(?m)^\s*(?:from|import) tsunagi(?:\.| import )(?:audit|demo|chaos)\b", text)
