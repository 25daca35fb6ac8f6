"""`docs/howto/operators.md` shows what is tested here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = Path(__file__).with_name("example_operator.py")


def blocks() -> list[str]:
    text = (ROOT / "docs" / "howto" / "operators.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_is_the_tested_operator() -> None:
    code = EXAMPLE.read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert code in [block for block in blocks() if "class Smooth" in block]


@pytest.mark.parametrize("word", ["check_operator", "Pipeline"])
def test_the_tests_that_it_recommends_run(word: str) -> None:
    (block,) = [block for block in blocks() if word in block]
    names: dict[str, Any] = {}
    exec(block.replace("plant.smooth", "tests.unit.slot.example_operator"), names)
    assert word in names
