"""What the state machine of a replica keeps to, read from its source."""

from __future__ import annotations

import ast
import inspect

from tsunagi.standby import replica
from tsunagi.standby.replica import Replica

MOST_REWRITTEN = 10
"""A class that rewrites more of its own attributes has more states than anybody can think through."""


def assigned(function: ast.FunctionDef) -> set[str]:
    """Return the attributes of `self` that a method assigns."""
    found = set()
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    found.add(part.attr)
    return found


def methods() -> dict[str, set[str]]:
    (body,) = (node for node in ast.parse(inspect.getsource(replica)).body if getattr(node, "name", "") == "Replica")
    assert isinstance(body, ast.ClassDef)
    return {node.name: assigned(node) for node in body.body if isinstance(node, ast.FunctionDef)}


def test_a_replica_rewrites_few_of_its_attributes() -> None:
    rewritten = set().union(*(names for name, names in methods().items() if name != "__init__"))
    assert "_handler" in rewritten
    assert len(rewritten) <= MOST_REWRITTEN


def test_a_stage_is_entered_in_one_place() -> None:
    assert [name for name, names in methods().items() if "_handler" in names] == ["__init__", "_go_on"]


def test_the_heartbeats_read_what_the_loop_has_published() -> None:
    source = inspect.getsource(Replica.beat)
    assert "_shared" not in source
    assert "self._published" in source
