"""Expressions whose names and types are known, and their values on columns.

An expression is a tree of constants, columns and calls of functions. Two expressions are equal if they are written
alike; what occurs twice is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from tsunagi.query.functions import Function, function
from tsunagi.query.values import Column, Floats, Kind, Spread, constant


@dataclass(frozen=True, slots=True)
class Constant:
    """One value; None is NULL."""

    kind: Kind
    value: float | int | bool | str | None

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        return repr(self.value) if self.kind is Kind.TEXT else str(self.value)


@dataclass(frozen=True, slots=True)
class Reference:
    """A column, by the name that it has among the columns of the input."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other expressions."""

    kind: Kind
    name: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        if len(self.arguments) == 2 and not self.name.isidentifier():
            return f"({self.arguments[0]} {self.name} {self.arguments[1]})"
        return f"{self.name}({', '.join(map(str, self.arguments))})"


Expression = Constant | Reference | Call
TRUE = Constant(Kind.BOOLEAN, value=True)
"""The condition that every row fulfils."""


@dataclass(slots=True)
class Evaluation:
    """The columns on which expressions are evaluated, and what has been computed from them already.

    Args:
        columns: the columns by name, each of `rows` rows or constant.
        functions: the functions of one's own, by name.
    """

    columns: Mapping[str, Column]
    rows: int
    functions: Mapping[str, Function] = field(default_factory=lambda: MappingProxyType({}))
    _known: dict[Expression, Column] = field(default_factory=dict)

    def evaluate(self, expression: Expression) -> Column:
        """Return the values of an expression, [rows]; those of a constant are [] (see `Column.full`)."""
        found = self._known.get(expression)
        if found is None:
            found = self._known[expression] = self._evaluate(expression)
        return found

    def _evaluate(self, expression: Expression) -> Column:
        if isinstance(expression, Constant):
            return constant(expression.kind, expression.value)
        if isinstance(expression, Reference):
            return self.columns[expression.name]
        called = self.functions.get(expression.name) or function(expression.name)
        found = called.compute([self.evaluate(item) for item in expression.arguments])
        if found.kind is not expression.kind:
            found = replace(found, kind=expression.kind, values=found.values.astype(expression.kind.dtype))
        if found.spread is not None and expression.name in _LINEAR:
            found = self._linear(expression, found)
        return found

    def _linear(self, expression: Expression, found: Column) -> Column:
        """Return the column with the spread of a sum in which no term stands twice: the ends of x - x are (0, 0)."""
        terms = linear_terms(expression)
        if expression in terms:  # it is no sum
            return found
        low: Floats = np.zeros(found.values.shape)
        high, sd = low, low
        for term, factor in terms.items():
            column = self.evaluate(term)
            if column.spread is None or not factor:
                continue
            below = np.maximum(column.values - column.spread.low, 0.0)
            above = np.maximum(column.spread.high - column.values, 0.0)
            low = low + abs(factor) * (below if factor > 0 else above)
            high = high + abs(factor) * (above if factor > 0 else below)
            sd = sd + abs(factor) * column.spread.sd
        if not (low.any() or high.any() or sd.any()):
            return found.bare()
        values = found.values.astype(np.float64)
        return replace(found, spread=Spread(values - low, values + high, sd))

    def condition(self, expression: Expression) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return where a condition holds: (it holds, it certainly holds, it possibly holds), each bool[rows].

        NULL counts as false. The last two are None where no value is an estimate.
        """
        found = self.evaluate(expression).full(self.rows)
        present = found.present()
        holds = found.values.astype(np.bool_) & present
        if found.spread is None:
            return holds, None, None
        return holds, (found.spread.low > 0) & present, (found.spread.high > 0) & present


_LINEAR = frozenset({"+", "-", "negate", "*", "/"})
"""Functions that may be parts of a linear expression."""


@lru_cache(maxsize=4096)
def linear_terms(expression: Expression) -> Mapping[Expression, float]:
    """Return a linear expression's terms with their factors; an additive constant is left out.

    What is not linear is a term itself: ``2 * a - a + b * c + 1`` gives ``{a: 1, b * c: 1}``.
    """
    terms: dict[Expression, float] = {}
    for term, factor in _terms(expression, 1.0):
        terms[term] = terms.get(term, 0.0) + factor
    return MappingProxyType(terms)


def _terms(expression: Expression, factor: float) -> Iterator[tuple[Expression, float]]:
    if isinstance(expression, Constant):
        return
    if isinstance(expression, Call) and all(item.kind.numeric for item in expression.arguments):
        first, *others = expression.arguments
        if expression.name == "negate":
            yield from _terms(first, -factor)
            return
        if expression.name in ("+", "-"):
            yield from _terms(first, factor)
            yield from _terms(others[0], factor if expression.name == "+" else -factor)
            return
        if expression.name == "*" and isinstance(first, Constant) and _number(first):
            yield from _terms(others[0], factor * float(first.value))  # type: ignore[arg-type] # _number has seen it
            return
        if expression.name in ("*", "/") and isinstance(others[0], Constant) and _number(others[0]):
            by = float(others[0].value)  # type: ignore[arg-type]
            if expression.name == "*" or by:
                yield from _terms(first, factor * by if expression.name == "*" else factor / by)
                return
    yield expression, factor


def _number(expression: Constant) -> bool:
    return isinstance(expression.value, int | float) and not isinstance(expression.value, bool)


def references(expression: Expression) -> frozenset[str]:
    """Return the names of the columns that an expression reads."""
    if isinstance(expression, Reference):
        return frozenset({expression.name})
    if isinstance(expression, Call):
        return frozenset().union(*(references(item) for item in expression.arguments))
    return frozenset()


def renamed(expression: Expression, names: Mapping[str, Expression]) -> Expression:
    """Return the expression with other expressions in the place of columns."""
    if isinstance(expression, Reference):
        return names.get(expression.name, expression)
    if isinstance(expression, Call):
        return replace(expression, arguments=tuple(renamed(item, names) for item in expression.arguments))
    return expression


def conjuncts(expression: Expression) -> list[Expression]:
    """Return the conditions that AND joins."""
    if isinstance(expression, Call) and expression.name == "and":
        return [item for argument in expression.arguments for item in conjuncts(argument)]
    return [] if expression == TRUE else [expression]


def conjunction(conditions: list[Expression]) -> Expression:
    """Return one condition that holds where all of them hold."""
    found = conditions[0] if conditions else TRUE
    for item in conditions[1:]:
        found = Call(Kind.BOOLEAN, "and", (found, item))
    return found
