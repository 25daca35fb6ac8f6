"""No two public classes have the same name: whoever reads a name knows which class it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tsunagi.installation import CHECKOUT

ALLOWED: dict[str, str] = {}
"""Names that several public classes may have, each with the reason."""


def public_classes(source: str) -> list[str]:
    """Return the names of the public classes of a module."""
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def test_public_classes_are_found() -> None:
    source = "class A:\n    class Inner: ...\n\nclass _B: ...\n\n@decorated\nclass C(A): ...\n"
    assert public_classes(source) == ["A", "C"]


def test_no_public_class_has_the_name_of_another() -> None:
    assert CHECKOUT is not None
    modules: dict[str, list[str]] = defaultdict(list)
    for folder in ("services/tsunagi", "spark/tsunagi_spark"):
        for path in sorted((Path(CHECKOUT) / folder).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                for name in public_classes(path.read_text(encoding="utf-8")):
                    modules[name].append(path.relative_to(CHECKOUT).as_posix())
    repeated = {name: where for name, where in modules.items() if len(where) > 1}
    assert repeated.keys() - ALLOWED.keys() == set(), f"say in each name which class it is: {repeated}"
    assert ALLOWED.keys() <= repeated.keys(), "these need no exception"
