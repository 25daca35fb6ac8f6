"""Makes plans of statements: resolves FROM, pushes conditions to their sources, and finds what joins compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sqlglot import exp

from tsunagi.query.aggregates import QUANTILE
from tsunagi.query.binding import Scope
from tsunagi.query.catalog import READINGS, Catalog, taken
from tsunagi.query.errors import QueryError, listed, near
from tsunagi.query.expressions import (
    TRUE,
    Call,
    Expression,
    Reference,
    conjunction,
    conjuncts,
    references,
)
from tsunagi.query.plan import Join, QueryPlan, SourcePlan, Window
from tsunagi.query.syntax import (
    CreateFunction,
    CreateQuery,
    CreateStream,
    Statement,
    WindowSpec,
    alias_of,
    parse,
)

_REFUSED = {
    "limit": "LIMIT",
    "offset": "OFFSET",
    "order": "ORDER BY: results are in the order of time; ORDER WITHIN names within what",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "with_": "WITH: give each query a name by CREATE VIEW",
    "laterals": "LATERAL",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
    "sample": "TABLESAMPLE",
    "into": "INTO",
}
"""Parts of SQL's SELECT that CQL does not have, by sqlglot's names."""


@dataclass(frozen=True, slots=True)
class Program:
    """Queries that belong together, each after those that it reads."""

    catalog: Catalog
    queries: Mapping[str, QueryPlan]

    @property
    def published(self) -> list[QueryPlan]:
        """The queries whose rows go to `results`."""
        return [plan for plan in self.queries.values() if plan.published]


def make_program(
    texts: Sequence[tuple[str, str]], step_us: int, catalog: Catalog | None = None, before: Program | None = None
) -> Program:
    """Return what texts of queries mean.

    Args:
        texts: (name of the text, text), such as the files of `[query] files`.
        step_us: length of a step, microseconds.
        before: queries that are there already.

    Raises:
        QueryError: a query cannot be understood.
    """
    program = before or Program(catalog or Catalog(), MappingProxyType({}))
    for source, text in texts:
        for statement in parse(text, source):
            program = _with(program, statement, source, step_us)
    return program


def _with(program: Program, statement: Statement, source: str, step_us: int) -> Program:
    if isinstance(statement, CreateStream):
        if statement.name in program.queries:
            raise taken(statement.place, f"query {statement.name}")
        return replace(program, catalog=program.catalog.with_stream(statement))
    if isinstance(statement, CreateFunction):
        return replace(program, catalog=program.catalog.with_function(statement))
    if statement.name in program.queries:
        raise taken(statement.place, f"query {statement.name}")
    if statement.name in program.catalog.streams and statement.name != READINGS:
        raise taken(statement.place, f"stream {statement.name}")
    plan = _Planner(program, source, step_us).plan(statement)
    return replace(program, queries=MappingProxyType({**program.queries, plan.name: plan}))


class _Planner:
    def __init__(self, program: Program, source: str, step_us: int) -> None:
        self._program = program
        self._step_us = step_us
        self._scope = Scope(program.catalog, source)

    def plan(self, statement: CreateQuery) -> QueryPlan:
        """Return the plan of one query."""
        select, scope = statement.select, self._scope
        self._refuse(select)
        joined = self._from(statement)
        joins = [self._added(table, join) for table, join in joined][1:]
        where = select.args.get("where")
        conditions = [] if where is None else conjuncts(scope.condition(where.this, "WHERE"))
        found_joins, conditions = self._with_equalities([join for join in joins if join is not None], conditions)
        conditions = self._pushed(found_joins, conditions)
        grouping = self._grouping(select)
        groups = tuple(scope.bind(node) for node in grouping)
        selected = self._projections(select)
        having = select.args.get("having")
        grouped = bool(grouping) or having is not None or any(scope.has_aggregate(node) for node, _ in selected)
        self._check_bounded([table for table, _ in joined], grouped=grouped)
        if grouped:
            scope.groups = groups
        outputs = self._outputs(selected)
        sources = tuple(scope.sources.values())
        # HAVING may add measures.
        condition = TRUE if having is None else scope.condition(having.this, "HAVING")
        self._check_choices(select)
        return QueryPlan(
            name=statement.name,
            published=statement.published,
            streaming=statement.streaming,
            text=statement.text,
            sources=sources,
            joins=tuple(found_joins),
            where=conjunction(conditions),
            grouped=grouped,
            groups=groups,
            having=condition,
            measures=tuple(scope.measures),
            outputs=MappingProxyType(outputs),
            distinct=select.args.get("distinct") is not None,
            within=tuple(self._within(node, outputs) for node in statement.within),
            period=math.gcd(*(source.period for source in sources)),
        )

    def _refuse(self, select: exp.Select) -> None:
        """Refuse parts of SQL that CQL does not have."""
        for key, what in _REFUSED.items():
            part = select.args.get(key)
            if part:
                node = part[0] if isinstance(part, list) else part
                self._scope.fail(node if isinstance(node, exp.Expr) else select, f"CQL has no {what}")

    def _from(self, statement: CreateQuery) -> list[tuple[exp.Expr, exp.Join | None]]:
        """Return what stands in FROM: (stream or query, how it is joined)."""
        from_ = statement.select.args.get("from_")
        if from_ is None:
            raise QueryError(statement.place, f"query {statement.name}: expected FROM")
        return [(from_.this, None), *((join.this, join) for join in statement.select.args.get("joins") or [])]

    def _added(self, table: exp.Expr, join: exp.Join | None) -> Join | None:
        """Add a source to the scope, and return how it is joined to those before it."""
        source = self._source(table)
        if source.alias in self._scope.sources:
            self._scope.fail(table, f"{source.alias} stands twice in FROM; expected an alias for each")
        self._scope.sources[source.alias] = source
        return None if join is None else self._join(join, source)

    def _outputs(self, selected: Sequence[tuple[exp.Expr, str]]) -> dict[str, Expression]:
        outputs: dict[str, Expression] = {}
        for node, name in selected:
            if name in outputs:
                self._scope.fail(node, f"column {name} stands twice in SELECT; expected an alias by AS")
            outputs[name] = self._scope.bind(node)
        return outputs

    def _check_bounded(self, tables: Sequence[exp.Expr], *, grouped: bool) -> None:
        """Refuse a query that would keep all rows of a stream."""
        for table, source in zip(tables, self._scope.sources.values(), strict=True):
            alone = grouped and len(tables) == 1
            if source.window is not None and source.window.kind == "unbounded" and not alone:
                self._scope.fail(
                    table,
                    f"[RANGE UNBOUNDED] over {source.name} would keep every row for ever; expected [RANGE n UNIT], or "
                    "GROUP BY over this stream alone",
                )

    def _check_choices(self, select: exp.Select) -> None:
        """Refuse quantiles, and the least of texts, of all that has ever come: the different values would be kept."""
        unbounded = any(
            source.window is not None and source.window.kind == "unbounded" for source in self._scope.sources.values()
        )
        names = [item.aggregate.function for item in self._scope.measures if item.aggregate.choice is not None]
        if unbounded and names:
            what = names[0] if names[0] == QUANTILE else f"{names[0]} of texts"
            self._scope.fail(select, f"{what} over [RANGE UNBOUNDED]: expected [RANGE n UNIT] or [ROWS n]")

    # ---- FROM

    def _source(self, table: exp.Expr) -> SourcePlan:
        scope = self._scope
        name, alias = str(table.name), alias_of(table) or str(table.name)
        spec = table.args.get("when")
        stream = self._program.catalog.streams.get(name)
        # `readings` may be the name of a query, too; in FROM the name is that of the stream.
        query = self._program.queries.get(name) if stream is None else None
        if query is not None:
            if not query.is_stream:
                if spec is not None:
                    scope.fail(table, f"{name} is a relation, which has no window; expected no brackets behind it")
                return SourcePlan(alias, name, None, MappingProxyType(query.columns), period=query.period)
            columns = MappingProxyType(query.columns)
            return self._windowed(table, SourcePlan(alias, name, Window(), columns, period=query.period), spec, None)
        if stream is None:
            known = [*self._program.catalog.streams, *self._program.queries]
            scope.fail(table, f"stream or query {name} is unknown{near(name, known)}; there are {listed(known)}")
        return self._windowed(table, SourcePlan(alias, name, Window(), stream.columns), spec, stream.key or None)

    def _windowed(self, table: exp.Expr, source: SourcePlan, spec: WindowSpec | None, key: str | None) -> SourcePlan:
        if spec is None or spec.args["kind"] == "now":
            return source
        kind, length, slide = spec.args["kind"], spec.args.get("length"), spec.args.get("slide")
        if kind == "unbounded":
            return replace(source, window=Window("unbounded"))
        if kind == "rows":
            keys = tuple(self._key(node, source) for node in spec.args.get("keys") or [])
            if not keys and key is None:
                self._scope.fail(table, f"[ROWS n] over {source.name}: expected [PARTITION BY columns ROWS n]")
            keys = keys or (source.reference(str(key)),)
            return replace(source, window=Window("rows", int(length or 1), slide or 1, keys))
        lengths = []
        for what, wanted in (("RANGE", length), ("SLIDE", slide)):
            if wanted is not None and wanted % self._step_us:
                self._scope.fail(
                    spec, f"{what}: found {wanted / 1e6:g} s, expected a multiple of a step, {self._step_us / 1e6:g} s"
                )
            lengths.append(None if wanted is None else wanted // self._step_us)
        slid = lengths[1] or 1
        period = math.lcm(source.period, slid) if lengths[1] else source.period
        return replace(source, window=Window("range", int(lengths[0] or 1), slid), period=period)

    def _key(self, node: exp.Expr, source: SourcePlan) -> Reference:
        """Return a column of PARTITION BY."""
        if str(node.name) not in source.columns:
            self._scope.fail(
                node,
                f"PARTITION BY: column {node.name} is unknown; {source.name} has "
                f"{listed(source.columns)}{near(str(node.name), source.columns)}",
            )
        return source.reference(str(node.name))

    def _join(self, node: exp.Join, source: SourcePlan) -> Join:
        side, kind = (node.side or "").upper(), (node.kind or "").upper()
        if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER", "CROSS"):
            self._scope.fail(node, f"found {side} {kind} JOIN, expected JOIN or LEFT JOIN".replace("  ", " "))
        conditions: list[Expression] = []
        for name in node.args.get("using") or []:
            left = [
                other for other in self._scope.sources.values() if other is not source and name.name in other.columns
            ]
            if len(left) != 1 or name.name not in source.columns:
                self._scope.fail(name, f"USING: column {name.name} is not on both sides, or ambiguous")
            conditions.append(self._scope.call(name, "=", (left[0].reference(name.name), source.reference(name.name))))
        if node.args.get("on") is not None:
            conditions += conjuncts(self._scope.condition(node.args["on"], "ON"))
        return _split(source, conditions, "left" if side == "LEFT" else "inner")

    # ---- WHERE

    def _with_equalities(self, joins: list[Join], conditions: list[Expression]) -> tuple[list[Join], list[Expression]]:
        """Move conditions of WHERE that compare a source with those before it into its join."""
        sources = list(self._scope.sources.values())
        found = []
        for place, join in enumerate(joins):
            source, earlier = sources[place + 1], sources[: place + 1]
            if join.kind == "left":
                found.append(join)
                continue
            seen = {other.alias for other in earlier} | {source.alias}
            mine = [
                item
                for item in conditions
                if source.alias in _aliases(item) and _aliases(item) <= seen and len(_aliases(item)) > 1
            ]
            conditions = [item for item in conditions if item not in mine]
            more = _split(source, mine, "inner")
            found.append(
                Join(
                    join.kind,
                    join.left + more.left,
                    join.right + more.right,
                    conjunction([*conjuncts(join.where), *conjuncts(more.where)]),
                )
            )
        return found, conditions

    def _pushed(self, joins: Sequence[Join], conditions: list[Expression]) -> list[Expression]:
        """Move conditions on one source alone to that source, unless a left join would see other rows then."""
        outer = {
            source.alias
            for source, join in zip(list(self._scope.sources.values())[1:], joins, strict=True)
            if join.kind == "left"
        }
        left = []
        for item in conditions:
            aliases = _aliases(item)
            if len(aliases) == 1 and not aliases & outer:
                (alias,) = aliases
                source = self._scope.sources[alias]
                self._scope.sources[alias] = replace(source, where=conjunction([*conjuncts(source.where), item]))
            else:
                left.append(item)
        return left

    # ---- SELECT

    def _projections(self, select: exp.Select) -> list[tuple[exp.Expr, str]]:
        """Return the projections with their names; a star is each column of the sources."""
        found: list[tuple[exp.Expr, str]] = []
        for node in select.expressions:
            starred = node.is_star and not isinstance(node, exp.Anonymous | exp.Alias)
            if starred:
                wanted = str(node.table) if isinstance(node, exp.Column) else ""
                if wanted and wanted not in self._scope.sources:
                    self._scope.fail(
                        node, f"found {wanted}.*, but FROM has no {wanted}{near(wanted, self._scope.sources)}"
                    )
                for alias, source in self._scope.sources.items():
                    if wanted in ("", alias):
                        found += [(exp.column(name, table=alias), name) for name in source.columns]
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            found.append((inner, alias_of(node) if isinstance(node, exp.Alias) else _default_name(inner)))
        if not found:
            self._scope.fail(select, "SELECT: expected at least one column")
        return found

    def _grouping(self, select: exp.Select) -> list[exp.Expr]:
        group = select.args.get("group")
        if group is None:
            return []
        if any(group.args.get(key) for key in ("cube", "rollup", "grouping_sets", "totals", "all")):
            self._scope.fail(group, "GROUP BY: CQL has no CUBE, ROLLUP or GROUPING SETS")
        aliases = {alias_of(node): node.this for node in select.expressions if isinstance(node, exp.Alias)}
        found = []
        for node in group.expressions:
            name = str(node.name) if isinstance(node, exp.Column) and not node.table else ""
            known = any(name in source.columns for source in self._scope.sources.values())
            if isinstance(node, exp.Literal):
                self._scope.fail(node, "GROUP BY: found a number, expected a column")
            found.append(aliases[name] if name in aliases and not known else node)
        return found

    def _within(self, node: exp.Expr, outputs: Mapping[str, Expression]) -> str:
        name = str(node.name)
        if name not in outputs:
            self._scope.fail(node, f"ORDER WITHIN: column {name} is not in SELECT{near(name, outputs)}")
        return name


def _split(source: SourcePlan, conditions: Sequence[Expression], kind: str) -> Join:
    """Return a join with its equalities apart from its other conditions."""
    left: list[Expression] = []
    right: list[Expression] = []
    rest: list[Expression] = []
    for item in conditions:
        sides = _sides(item, source.alias)
        if sides is None:
            rest.append(item)
        else:
            left.append(sides[0])
            right.append(sides[1])
    return Join("left" if kind == "left" else "inner", tuple(left), tuple(right), conjunction(rest))


def _sides(item: Expression, alias: str) -> tuple[Expression, Expression] | None:
    """Return (of the sources before, of this one) if the condition is an equality between them."""
    if not isinstance(item, Call) or item.name != "=" or item.arguments[0].kind is not item.arguments[1].kind:
        return None
    for one, other in (item.arguments, item.arguments[::-1]):
        if _aliases(other) == {alias} and _aliases(one) and alias not in _aliases(one):
            return one, other
    return None


def _aliases(expression: Expression) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in references(expression))


def _default_name(node: exp.Expr) -> str:
    """Return the name of a column without AS: its own, or the function's in small letters."""
    if isinstance(node, exp.Column):
        return str(node.name)
    if isinstance(node, exp.Filter):
        return _default_name(node.this)
    return str(node.name).lower() if isinstance(node, exp.Anonymous) else "column"
