"""Plans: what a query computes, with all names resolved and all types known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tsunagi.query.aggregates import AggregateFunction
from tsunagi.query.catalog import OwnAggregate
from tsunagi.query.expressions import TRUE, Expression, Reference, references
from tsunagi.query.syntax import Streaming
from tsunagi.query.values import Kind

WindowKind = Literal["now", "range", "rows", "unbounded"]


@dataclass(frozen=True, slots=True)
class Window:
    """A window over a stream.

    Attributes:
        length, slide: of "range" in steps, of "rows" in rows.
        keys: the columns of PARTITION BY, or the key of the stream.
    """

    kind: WindowKind = "now"
    length: int = 1
    slide: int = 1
    keys: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A stream or query in FROM.

    Attributes:
        alias: what its columns are called by: `alias.column`.
        name: the stream or the query.
        window: of a stream; None = the name is that of a query whose result is a relation.
        columns: the kinds of its columns, by their own names.
        where: the conditions that need no other source; they are checked as rows come.
        period: steps between two instants at which its relation may change.
    """

    alias: str
    name: str
    window: Window | None
    columns: Mapping[str, Kind]
    where: Expression = TRUE
    period: int = 1

    def reference(self, column: str) -> Reference:
        """Return the reference to one of its columns."""
        return Reference(self.columns[column], f"{self.alias}.{column}")


@dataclass(frozen=True, slots=True)
class Join:
    """How a source is joined to those before it.

    Attributes:
        kind: `left` keeps rows without a partner, whose other columns are then NULL.
        left, right: what must be equal: of the sources before, and of this one.
        where: what else must hold for two rows to be partners.
    """

    kind: Literal["inner", "left"]
    left: tuple[Expression, ...]
    right: tuple[Expression, ...]
    where: Expression = TRUE


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate with its argument.

    Attributes:
        argument: what is aggregated; None = COUNT(*).
        where: the condition of FILTER.
        distinct: whether equal arguments count once.
        own: an aggregate of the user; None = it is a built-in one.
    """

    aggregate: AggregateFunction
    argument: Expression | None
    where: Expression = TRUE
    distinct: bool = False
    own: OwnAggregate | None = None

    @property
    def paired(self) -> bool:
        """Whether it needs to know how often each argument occurs."""
        return self.distinct or self.aggregate.choice is not None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What one query computes.

    Attributes:
        published: whether its rows go to `results`; those of a view do not.
        streaming: how its relation becomes a stream; "" = it is a relation for other queries, and `rstream` in results.
        sources, joins: FROM; `joins` has one entry less.
        where: the conditions that need several sources.
        grouped: whether it has GROUP BY or aggregates.
        groups: the expressions of GROUP BY.
        measures: its aggregates. Behind grouping, columns are called `group.N` and the names of the aggregates.
        outputs: the columns of its rows, by name, in order.
        within: the columns of ORDER WITHIN, by their names in `outputs`: rows are in the order of time within each
            combination of them.
        period: steps between two instants at which its rows may change.
    """

    name: str
    published: bool
    streaming: Streaming
    text: str
    sources: tuple[SourcePlan, ...]
    joins: tuple[Join, ...]
    where: Expression
    grouped: bool
    groups: tuple[Expression, ...]
    measures: tuple[Measure, ...]
    having: Expression
    outputs: Mapping[str, Expression]
    distinct: bool = False
    within: tuple[str, ...] = ()
    period: int = 1

    @property
    def columns(self) -> dict[str, Kind]:
        """The kinds of the columns of its rows."""
        return {name: expression.kind for name, expression in self.outputs.items()}

    @property
    def is_stream(self) -> bool:
        """Whether other queries see a stream, over which they may put a window."""
        return self.streaming != ""


def named_columns(plan: QueryPlan, source: SourcePlan) -> set[str]:
    """Return the columns of a source that a query names, as `alias.column`."""
    expressions: list[Expression] = [source.where, plan.where, *plan.groups, *plan.outputs.values()]
    for join in plan.joins:
        expressions += [*join.left, *join.right, join.where]
    for measure in plan.measures:
        expressions += [measure.where, *([] if measure.argument is None else [measure.argument])]
    if source.window is not None:
        expressions += source.window.keys
    named = {name for expression in expressions for name in references(expression)}
    return {name for name in named if name.partition(".")[0] == source.alias}
