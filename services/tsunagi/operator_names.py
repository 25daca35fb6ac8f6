"""Turns operators as users give them in Python into the tables that `[query] operators` holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

LOCAL = "tsunagi_local_operators"
"""The name of a module that is made for classes which no `import` reaches: those that a function or a class defines."""

Given = str | type | Mapping[str, Any]
"""An operator as a user gives it: a name, a class, or a table with `use` (a name or a class) and options."""


class PipelineError(ValueError):
    """A pipeline cannot be made or run as it was given; the message says what was found and what was expected."""


def tables_of(operators: Iterable[Given]) -> list[dict[str, Any]]:
    """Return a table for each operator. Its `use` is a name by which this process can import the operator.

    Raises:
        PipelineError: an operator is neither a name nor a class.
    """
    return [_table(item) for item in operators]


def _table(item: Given) -> dict[str, Any]:
    table = dict(item) if isinstance(item, Mapping) else {"use": item}
    use = table.get("use")
    if isinstance(use, type):
        table["use"] = name_of(use)
    elif not isinstance(use, str):
        raise PipelineError(f"operators: found {item!r}, expected a name, a class, or a mapping with `use`")
    return table


def name_of(kind: type) -> str:
    """Return a name, as module:Class, by which this process can import a class."""
    module, name = kind.__module__, kind.__qualname__
    if getattr(sys.modules.get(module), name, None) is kind:
        return f"{module}:{name}"
    local = sys.modules.setdefault(LOCAL, ModuleType(LOCAL))
    name = kind.__name__
    while getattr(local, name, kind) is not kind:  # another class has the same name
        name += "_"
    setattr(local, name, kind)
    return f"{LOCAL}:{name}"


def importable(tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tables with names by which other processes can import the operators too.

    Raises:
        PipelineError: other processes cannot import one of the operators.
    """
    return [table | {"use": _elsewhere(table["use"])} for table in tables]


def _elsewhere(use: str) -> str:
    module, _, name = use.partition(":")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else LOCAL
    if module == LOCAL:
        raise PipelineError(
            f"operators: found {name}, a class of a function or of a session; expected one at the top of a module, "
            "which the workers can import"
        )
    return f"{module}:{name}" if name else use
