"""What the judge may build on, and who may build on the judge."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TSUNAGI = ROOT / "services" / "tsunagi"
BELOW = {"audit", "runtime", "recovery", "slot", "system", "replay"}
"""Parts of the system that the judge may use; of `replay` it takes the rule that begins a term."""


def parts(*paths: Path) -> set[str]:
    """Return the packages and modules right below `tsunagi` that these files import."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module == "tsunagi":
                names = [f"tsunagi.{alias.name}" for alias in node.names]
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("tsunagi.")}
    return found


def test_the_judge_uses_nothing_that_it_judges_or_that_runs_it():
    assert parts(*(TSUNAGI / "audit").glob("*.py")) <= BELOW


@pytest.mark.parametrize(("package", "other"), [("demo", "chaos"), ("chaos", "demo")])
def test_the_demo_and_chaos_do_not_use_each_other(package: str, other: str):
    found = parts(*(TSUNAGI / package).glob("*.py"))
    assert "audit" in found
    assert other not in found


@pytest.mark.parametrize(
    "path", [*sorted((TSUNAGI / "replay").glob("*.py")), ROOT / "tests" / "simulation" / "checker.py"]
)
def test_other_judges_are_independent(path: Path):
    assert not parts(path) & {"audit", "demo", "chaos"}
