"""Commands are the top layer: nothing that they call imports them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tsunagi import installation

TOP = ("tsunagi.commands", "tsunagi.cli")


def imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also those that it imports in a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_nothing_below_imports_a_command() -> None:
    package = Path(installation.__file__).parent
    files = [*package.rglob("*.py"), *(package.parents[1] / "spark").rglob("*.py")]
    below = [file for file in files if file.parent.name != "commands" and file != package / "cli.py"]
    assert len(below) > 200
    assert not [
        f"{file}: {name}"
        for file in below
        for name in imported(file)
        if f"{name}.".startswith(tuple(f"{top}." for top in TOP))
    ]
    commands = (package / "commands").glob("*.py")
    assert not [
        f"{file}: {name}" for file in commands for name in imported(file) if f"{name}.".startswith("tsunagi.cli.")
    ]
