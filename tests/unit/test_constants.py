"""Every constant of a module says what it is: a text below it, or a comment on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tsunagi.installation import CHECKOUT

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
SAID_INSIDE = {"Counter", "Gauge", "Histogram", "TypeVar"}
"""Calls that make a constant which needs no text: a metric has its help text, a type variable its bound."""


def without_text(source: str) -> Iterator[str]:
    """Yield the constants of a module that have neither a text below them nor a comment above or beside them."""
    lines, body = source.split("\n"), ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=False):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) in SAID_INSIDE:
            continue
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        constants = [name for name in names if CONSTANT.fullmatch(name)]
        text = (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        )
        comment = lines[statement.lineno - 2].startswith("#") or re.search(r"  # (?!noqa)", lines[statement.lineno - 1])
        if constants and not text and not comment:
            yield ", ".join(constants)


def test_a_constant_without_a_text_is_found() -> None:
    source = (
        'A = 1\nB = 2\n"""The second."""\n# The third.\nC = 3\nD: float = 4  # The fourth.\n_E, F = 5, 6\nlower = 7\n'
    )
    assert list(without_text(source)) == ["A", "_E, F"]


def test_every_constant_has_a_text() -> None:
    assert CHECKOUT is not None
    missing: dict[str, list[str]] = {}
    for folder in ("services/tsunagi", "spark/tsunagi_spark"):
        for path in sorted((Path(CHECKOUT) / folder).rglob("*.py")):
            found = [] if path.name.endswith("_pb2.py") else list(without_text(path.read_text(encoding="utf-8")))
            if found:
                missing[path.relative_to(CHECKOUT).as_posix()] = found
    assert missing == {}, "say in a text below each of these what it is, its unit and why it has this value"
