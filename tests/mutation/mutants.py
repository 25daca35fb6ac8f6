"""One-token changes of a module's functions, as compiled code."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

Change = Callable[[Any], None]
"""What changes a node in place."""

Key = tuple[str, int]
"""A function that stands in no other function: its qualified name, and its first line with decorators."""

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
}
TIME = re.compile(r"(_S|_s|^now)$")
"""A limit of seconds may or may not hold at its very end: nothing rests on it, so `<` does not become `<=` there."""

NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGED = frozenset({"debug", "info", "warning", "error", "exception"})
"""A call of one of these is not removed: what is logged promises nothing."""


@dataclass(frozen=True)
class Mutant:
    """A module with one token changed.

    Attributes:
        function: qualified name of the function that differs.
        lines: first and last line of what differs; a test counts if it passes one of them.
        before, after: the statement, or the part of it, that differs.
        code: the function, compiled.
    """

    module: str
    function: str
    lines: tuple[int, int]
    before: str
    after: str
    key: Key
    code: CodeType

    @property
    def name(self) -> tuple[str, str, str, str]:
        """Return what stays the same while other lines change."""
        return self.module, self.function, self.before, self.after


def functions(module: CodeType) -> Iterator[tuple[Key, CodeType]]:
    """Yield the functions of a module and of its classes."""
    for found in module.co_consts:
        if isinstance(found, CodeType):
            if found.co_flags & 0x2:  # CO_NEWLOCALS: a function, not the body of a class
                yield (found.co_qualname, found.co_firstlineno), found
            else:
                yield from functions(found)


def mutants(module: str, path: Path, order: random.Random, among: Container[str] | None = None) -> Iterator[Mutant]:
    """Yield, in random order, the mutants that change a function; what a module or class says itself stays.

    Args:
        among: only those whose `before` is in it; None = all.
    """
    tree = ast.parse(path.read_text())
    whole = dict(functions(compile(tree, str(path), "exec")))
    parts = list(enumerate(_parts(tree)))
    if among is not None:
        parts = [(index, found) for index, found in parts if ast.unparse(found[1]) in among]
    changes = [(index, change) for index, (node, _) in parts for change in _changes(node)]
    order.shuffle(changes)
    for index, change in changes:
        changed = copy.deepcopy(tree)
        node, part = list(_parts(changed))[index]
        before = ast.unparse(part)
        lines = part.lineno, getattr(node, "end_lineno", part.lineno)
        change(node)
        after = ast.unparse(part)
        ast.fix_missing_locations(changed)
        for key, code in functions(compile(changed, str(path), "exec")):
            if code != whole[key]:
                yield Mutant(module, key[0], lines, before, f"not {before}" if after == before else after, key, code)


def _parts(tree: ast.AST, part: ast.stmt | ast.expr | None = None) -> Iterator[tuple[ast.AST, ast.stmt | ast.expr]]:
    """Yield each node with the simple statement, or the expression of a compound one, that it is of."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.keyword) and child.arg == "strict":
            continue  # of `zip`: a check of ourselves
        of = part
        if isinstance(child, ast.stmt):
            of = None if hasattr(child, "body") else child
        elif of is None and isinstance(child, ast.expr):
            of = child
        if of is not None:
            yield child, of
        elif isinstance(child, ast.If | ast.While):
            yield child, child.test
        yield from _parts(child, of)


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield what changes a node of this kind."""
    match node:
        case ast.Break():
            yield _put("__class__", ast.Continue)
        case ast.Continue():
            yield _put("__class__", ast.Break)
        case ast.Constant(value=bool() as value):
            yield _put("value", not value)
        case ast.Constant(value=int() as value):
            yield _put("value", value + 1)
        case ast.Constant(value=float() as value):
            yield _put("value", 2.0 * value or 1.0)
        case ast.Name(id=name) if name in NAMES:
            yield _put("id", NAMES[name])
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield _put("value", ast.Constant(None))
        case ast.Expr(value=ast.Call(func=func)) if getattr(func, "attr", "") not in LOGGED:
            yield _put("__class__", ast.Pass)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign(target=ast.Attribute()):
            yield _put("__class__", ast.Pass)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _put("operand", ast.UnaryOp(ast.Not(), operand))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield _put("test", ast.UnaryOp(ast.Not(), node.test))
    yield from _operators(node)


def _operators(node: ast.AST) -> Iterator[Change]:
    """Yield what puts another operator into an expression."""
    match node:
        case ast.Compare(ops=ops):
            timed = any(TIME.search(name) for name in map(_name, ast.walk(node)))
            for place, op in enumerate(ops):
                for other in OPERATORS[type(op)][timed and len(OPERATORS[type(op)]) > 1 :]:
                    yield _put("ops", [*ops[:place], other(), *ops[place + 1 :]])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op):
            for other in OPERATORS.get(type(op), ()):
                yield _put("op", other())


def _put(field: str, value: Any) -> Change:
    return lambda node: setattr(node, field, value)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", ""))
