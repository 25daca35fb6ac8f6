"""Gives the expressions of a query their types: resolves columns, functions and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn

from sqlglot import exp

from tsunagi.query.aggregates import FUNCTIONS as AGGREGATES
from tsunagi.query.aggregates import QUANTILE, AggregateFunction
from tsunagi.query.catalog import KINDS, Catalog
from tsunagi.query.errors import QueryError, listed, near
from tsunagi.query.expressions import TRUE, Call, Constant, Expression, Reference
from tsunagi.query.functions import BUCKET, Function, find, function, function_names
from tsunagi.query.plan import Measure, SourcePlan
from tsunagi.query.syntax import MICROSECONDS, place_of
from tsunagi.query.text_functions import TIME_UNITS, TRUNCATED_UNITS, read_time, regular
from tsunagi.query.values import Kind

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "and",
    exp.Or: "or",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.RegexpLike: "REGEXP_MATCHES",
    exp.DPipe: "||",
}
"""Operators of two operands, as functions."""
_EXPECTED = {"and": "two conditions", "or": "two conditions", "not": "a condition"}
"""What operators expect, for messages, where their function does not say it in the words of a query."""


@dataclass(slots=True)
class Scope:
    """What the expressions of one query may name.

    Attributes:
        sources: the sources of FROM so far, by alias.
        groups: the expressions of GROUP BY; None = the expressions are of rows, before grouping.
        measures: the aggregates found so far.
    """

    catalog: Catalog
    source: str
    sources: dict[str, SourcePlan] = field(default_factory=dict)
    groups: tuple[Expression, ...] | None = None
    measures: list[Measure] = field(default_factory=list)

    def fail(self, node: exp.Expr, problem: str) -> NoReturn:
        """Raise an error at a part of the query."""
        raise QueryError(place_of(node, self.source), problem)

    # ---- entry points

    def bind(self, node: exp.Expr) -> Expression:
        """Return the expression that a part of the query stands for.

        Raises:
            QueryError: a name is unknown or ambiguous, types do not fit, or CQL has no such thing.
        """
        if self.groups is not None:
            whole = self._as_group(node)
            if whole is not None:
                return whole
        for kind, bind in self._BINDERS.items():
            if isinstance(node, kind):
                return bind(self, node)
        return self.fail(node, f"found {node.sql()[:60]!r}: CQL has no {node.key.upper()} here")

    def condition(self, node: exp.Expr, what: str) -> Expression:
        """Return a condition.

        Raises:
            QueryError: it is something else.
        """
        found = self.bind(node)
        if found.kind is not Kind.BOOLEAN:
            self.fail(node, f"{what}: found {node.sql()[:60]!r} of type {found.kind.value}, expected a condition")
        return found

    def _of_rows(self) -> Scope:
        """Return the scope of rows, before grouping."""
        return Scope(self.catalog, self.source, self.sources)

    def _as_group(self, node: exp.Expr) -> Expression | None:
        """Return the reference to the expression of GROUP BY that this is; None if it is none of them."""
        if self.has_aggregate(node):
            return None
        found = self._of_rows().bind(node)
        if isinstance(found, Constant):
            return found
        if self.groups is not None and found in self.groups:
            return Reference(found.kind, f"group.{self.groups.index(found)}")
        if isinstance(found, Reference):
            self.fail(node, f"column {node.sql()} is neither in GROUP BY nor in an aggregate")
        return None

    # ---- parts

    def _column(self, node: exp.Column) -> Expression:
        name, alias = str(node.name), str(node.table)
        if alias:
            source = self.sources.get(alias)
            if source is None:
                self.fail(node, f"found {alias}.{name}, but FROM has no {alias}{near(alias, self.sources)}")
            if name not in source.columns:
                self.fail(node, _no_column(f"{alias}.{name}", source.name, name, source.columns))
            return source.reference(name)
        found = [source for source in self.sources.values() if name in source.columns]
        if len(found) > 1:
            places = listed(f"{source.alias}.{name}" for source in found)
            self.fail(node, f"column {name} is ambiguous; expected one of {places}")
        if not found:
            columns = {column: None for source in self.sources.values() for column in source.columns}
            self.fail(node, _no_column(name, listed(source.name for source in self.sources.values()), name, columns))
        return found[0].reference(name)

    def _literal(self, node: exp.Literal) -> Expression:
        text = str(node.this)
        if node.is_string:
            return Constant(Kind.TEXT, text)
        return Constant(Kind.BIGINT, int(text)) if text.isdigit() else Constant(Kind.DOUBLE, float(text))

    def _binary(self, node: exp.Expr) -> Expression:
        name = next(name for kind, name in _OPERATORS.items() if type(node) is kind)
        one, other = self.bind(node.this), self.bind(node.expression)
        if name in ("+", "-") and one.kind is Kind.TIMESTAMP and other.kind is Kind.INTERVAL:
            name = "later" if name == "+" else "earlier"
        return self.call(node, name, (one, other))

    def call(self, node: exp.Expr, name: str, arguments: Sequence[Expression], known: Function | None = None) -> Call:
        """Return a call of a function, after its types were checked."""
        arguments = _times(arguments)
        called = known or function(name)
        kind = called.result([argument.kind for argument in arguments])
        if kind is None:
            kinds = listed(argument.kind.value for argument in arguments)
            self.fail(node, f"{name}: found {kinds or 'nothing'}, expected {_EXPECTED.get(name, called.expected)}")
        self._check_constants(node, name, arguments)
        return Call(kind, name, tuple(arguments))

    def _check_constants(self, node: exp.Expr, name: str, arguments: Sequence[Expression]) -> None:
        """Refuse constants that a function could do nothing with."""
        texts = [item.value if isinstance(item, Constant) else None for item in arguments]
        if name.startswith("REGEXP_") and isinstance(texts[1], str) and regular(texts[1]) is None:
            self.fail(node, f"{name}: found {texts[1]!r}, expected a regular expression")
        if name == "DATE_TRUNC" and str(texts[0]).lower() not in TRUNCATED_UNITS:
            found = "no constant" if texts[0] is None else repr(texts[0])
            self.fail(node, f"DATE_TRUNC: found {found}, expected one of {listed(TRUNCATED_UNITS)}")

    def _not(self, node: exp.Expr) -> Expression:
        return self.call(node, "not", (self.bind(node.this),))

    def _negative(self, node: exp.Expr) -> Expression:
        found = self.bind(node.this)
        if isinstance(found, Constant) and found.kind.numeric and found.value is not None:
            return Constant(found.kind, -found.value)  # type: ignore[operator] # its kind is that of a number
        return self.call(node, "negate", (found,))

    def _is(self, node: exp.Is) -> Expression:
        found = self.bind(node.this)
        if isinstance(node.expression, exp.Null):
            return self.call(node, "is null", (found,))
        known = Call(Kind.BOOLEAN, "not", (Call(Kind.BOOLEAN, "is null", (found,)),))
        return self.call(node, "and", (known, self.call(node, "=", (found, self.bind(node.expression)))))

    def _between(self, node: exp.Between) -> Expression:
        found = self.bind(node.this)
        low = self.call(node, ">=", (found, self.bind(node.args["low"])))
        return self.call(node, "and", (low, self.call(node, "<=", (found, self.bind(node.args["high"])))))

    def _in(self, node: exp.In) -> Expression:
        if not node.expressions:
            self.fail(node, "IN: found a query, expected values: join the query instead")
        found = self.bind(node.this)
        conditions = [self.call(node, "=", (found, self.bind(item))) for item in node.expressions]
        whole: Expression = conditions[0]
        for condition in conditions[1:]:
            whole = self.call(node, "or", (whole, condition))
        return whole

    def _case(self, node: exp.Case) -> Expression:
        subject = None if node.this is None else self.bind(node.this)
        arguments: list[Expression] = []
        for branch in node.args["ifs"]:
            if subject is None:
                arguments.append(self.condition(branch.this, "WHEN"))
            else:
                arguments.append(self.call(branch, "=", (subject, self.bind(branch.this))))
            arguments.append(self.bind(branch.args["true"]))
        default = node.args.get("default")
        arguments.append(Constant(Kind.DOUBLE, None) if default is None else self.bind(default))
        return self.call(node, "case", _nulls(arguments, slice(1, None, 2), (-1,)))

    def _cast(self, node: exp.Expr) -> Expression:
        name = node.args["to"].sql().upper().partition("(")[0]
        kind = KINDS.get(name.replace("TIMESTAMPTZ", "TIMESTAMP"))
        if kind is None:
            self.fail(
                node, f"CAST: found type {name}, expected {listed(sorted({item.value for item in KINDS.values()}))}"
            )
        found = self.bind(node.this)
        if kind is Kind.TIMESTAMP and isinstance(found, Constant) and found.kind is Kind.TEXT:
            return self._time(node, str(found.value))
        return self.call(node, f"as {kind.value}", (found,))

    def _time(self, node: exp.Expr, text: str) -> Expression:
        try:
            return Constant(Kind.TIMESTAMP, read_time(text))
        except ValueError:
            self.fail(node, f"found {text!r}, expected a time such as '2026-01-31 12:00:00'")

    def _interval(self, node: exp.Interval) -> Expression:
        unit = str(node.args.get("unit") or "").upper().removesuffix("S")
        try:
            length = float(node.this.name) * MICROSECONDS[unit]
        except (KeyError, ValueError, AttributeError):
            self.fail(node, f"found {node.sql()!r}, expected INTERVAL and a number of SECONDS, MINUTES, HOURS or DAYS")
        return Constant(Kind.INTERVAL, round(length))

    def _extract(self, node: exp.Extract) -> Expression:
        unit = str(node.this.name).lower()
        if unit not in TIME_UNITS:
            self.fail(node, f"EXTRACT: found {unit}, expected {listed(TIME_UNITS)}{near(unit, TIME_UNITS)}")
        if unit == "epoch":
            return self.call(node, "EPOCH", (self.bind(node.expression),))
        return self.call(node, "extract", (Constant(Kind.TEXT, unit), self.bind(node.expression)))

    def _function(self, node: exp.Anonymous) -> Expression:
        name = str(node.name).upper()
        if self._is_aggregate(node):
            return self._measure(node, TRUE)
        found = self.catalog.function(name)
        if found is None:
            known = [*function_names(), *AGGREGATES, *self.catalog.functions, *self.catalog.aggregates]
            self.fail(node, f"function {node.name} is unknown{near(name, known)}")
        arguments = [self.bind(item) for item in node.expressions]
        return self.call(node, found.name if find(name) else name, _nulls(arguments, slice(None)), found)

    # ---- aggregates

    def _is_aggregate(self, node: exp.Anonymous) -> bool:
        name = str(node.name).upper()
        return name in AGGREGATES or name in self.catalog.aggregates

    def has_aggregate(self, node: exp.Expr) -> bool:
        """Return whether an aggregate is called somewhere in it."""
        return any(self._is_aggregate(item) for item in node.find_all(exp.Anonymous))

    def _filtered(self, node: exp.Filter) -> Expression:
        where = self._of_rows().condition(node.expression.this, "FILTER")
        if not isinstance(node.this, exp.Anonymous) or not self._is_aggregate(node.this):
            self.fail(node, "FILTER belongs behind an aggregate such as COUNT(*)")
        return self._measure(node.this, where)

    def _measure(self, node: exp.Anonymous, where: Expression) -> Expression:
        name = str(node.name).upper()
        if self.groups is None:
            self.fail(node, f"{name}: an aggregate cannot stand in WHERE, GROUP BY, a join or another aggregate")
        arguments = node.expressions
        distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
        if distinct:
            arguments = arguments[0].expressions
        share = None
        if name == QUANTILE and len(arguments) == 2:
            share, arguments = self._share(node, arguments[1]), arguments[:1]
        if len(arguments) != 1 or (name == QUANTILE and share is None):
            expected = "two: a number, and which quantile" if name == QUANTILE else "one"
            self.fail(node, f"{name}: found {len(arguments)} arguments, expected {expected}")
        if isinstance(arguments[0], exp.Star):
            if name != "COUNT" or distinct:
                self.fail(node, f"{name}: found *, expected a column")
            argument = None
        else:
            argument = self._of_rows().bind(arguments[0])
            self._check(node, name, argument, distinct=distinct)
        own = self.catalog.aggregates.get(name)
        if own is not None and argument is not None and not argument.kind.numeric:
            self.fail(node, f"{name}: found {argument.kind.value}, expected numbers")
        if share is not None and argument is not None:
            argument = self.call(node, BUCKET, (argument,))
        kind = None if argument is None or own is not None else argument.kind
        function = AggregateFunction(f"agg.{len(self.measures)}", AGGREGATES.get(name, name), kind, share)
        measure = Measure(function, argument, where, distinct, own)
        for known in self.measures:
            if _same(known, measure):
                return Reference(known.aggregate.result_kind, known.aggregate.name)
        self.measures.append(measure)
        return Reference(measure.aggregate.result_kind, measure.aggregate.name)

    def _share(self, node: exp.Anonymous, given: exp.Expr) -> float:
        """Return which quantile is meant."""
        found = self._of_rows().bind(given)
        share = found.value if isinstance(found, Constant) else None
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            self.fail(node, f"{QUANTILE}: found {given.sql()}, expected a number from 0 to 1 behind the column")
        return float(share)

    def _check(self, node: exp.Anonymous, name: str, argument: Expression, *, distinct: bool) -> None:
        if distinct and name != "COUNT":
            self.fail(node, f"{name}(DISTINCT ...): expected COUNT(DISTINCT ...)")
        if (
            name in ("SUM", "AVG", "STDDEV", "STDDEV_SAMP", "VARIANCE", "VAR_SAMP", QUANTILE)
            and not argument.kind.numeric
        ):
            self.fail(node, f"{name}: found {argument.kind.value}, expected a number")
        ordered = (Kind.DOUBLE, Kind.BIGINT, Kind.TIMESTAMP, Kind.TEXT)
        if name in ("MIN", "MAX", "FIRST", "LAST") and argument.kind not in ordered:
            self.fail(node, f"{name}: found {argument.kind.value}, expected a number, a time or a text")

    _BINDERS: ClassVar[dict[type[exp.Expr], Callable[..., Expression]]] = {
        exp.Paren: lambda scope, node: scope.bind(node.this),
        exp.Column: _column,
        exp.Literal: _literal,
        exp.Boolean: lambda _, node: Constant(Kind.BOOLEAN, bool(node.this)),
        exp.Null: lambda _scope, _node: Constant(Kind.DOUBLE, None),
        exp.Not: _not,
        exp.Neg: _negative,
        exp.Is: _is,
        exp.Between: _between,
        exp.In: _in,
        exp.Case: _case,
        exp.TryCast: _cast,
        exp.Cast: _cast,
        exp.Interval: _interval,
        exp.Extract: _extract,
        exp.Filter: _filtered,
        exp.Anonymous: _function,
        **dict.fromkeys(_OPERATORS, _binary),
    }
    """What binds each kind of node."""


def _same(one: Measure, other: Measure) -> bool:
    """Return whether two aggregates differ in nothing but the name of their states."""
    return replace(one, aggregate=other.aggregate) == other and replace(one.aggregate, name="") == replace(
        other.aggregate, name=""
    )


def _nulls(arguments: Sequence[Expression], *which: slice | tuple[int, ...]) -> list[Expression]:
    """Give a plain NULL among alternatives the kind of the others."""
    found = list(arguments)
    places = [place for part in which for place in (range(len(found))[part] if isinstance(part, slice) else part)]
    kinds = [found[place].kind for place in places if not _is_null(found[place])]
    if kinds:
        for place in places:
            if _is_null(found[place]):
                found[place] = Constant(kinds[0], None)
    return found


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Constant) and expression.value is None


def _times(arguments: Sequence[Expression]) -> Sequence[Expression]:
    """Read a constant text as a time where it stands beside a time."""
    if not any(argument.kind is Kind.TIMESTAMP for argument in arguments):
        return arguments
    found = []
    for argument in arguments:
        if isinstance(argument, Constant) and argument.kind is Kind.TEXT and argument.value is not None:
            try:
                found.append(Constant(Kind.TIMESTAMP, read_time(str(argument.value))))
                continue
            except ValueError:
                pass
        found.append(argument)  # type: ignore[arg-type] # an expression
    return found


def _no_column(found: str, source: str, name: str, columns: Mapping[str, object]) -> str:
    return f"column {found} is unknown; {source} has {listed(columns)}{near(name, columns)}"
