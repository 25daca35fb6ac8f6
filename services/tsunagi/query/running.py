"""Runs queries on rows that come in lock-step: what each plan gives for the steps that are complete now.

What is given does not depend on how steps are cut into calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tsunagi.query.expressions import TRUE, Evaluation
from tsunagi.query.functions import Function
from tsunagi.query.grouping import Grouping, InstantGrouping, RunningGrouping, SlidingGrouping
from tsunagi.query.last_rows import last_rows
from tsunagi.query.lifetimes import Lifetimes, has_lifetimes
from tsunagi.query.plan import Join, QueryPlan, SourcePlan, Window, named_columns
from tsunagi.query.planning import Program
from tsunagi.query.relations import (
    KeyNumbers,
    Rows,
    changes,
    common_codes,
    empty,
    in_order,
    joined_rows,
    paired,
    pairs,
    stretches,
    unique,
    with_nothing,
)
from tsunagi.query.snapshots import Tree, of_keys, of_rows, to_keys, to_rows
from tsunagi.query.sums import Sums
from tsunagi.query.values import Column, Ints, Kind


@dataclass(slots=True)
class SourceState:
    """What is kept of a source between two calls.

    Attributes:
        rows: of a window: the rows that it still needs; of a relation: its rows at the last instant.
        keys: of [ROWS n]: the numbers of its keys.
    """

    rows: Rows | None = None
    keys: KeyNumbers | None = None


@dataclass(slots=True)
class QueryRun:
    """A query that runs.

    Args:
        summed: whether its rows come added up (`placing.is_summable`).

    Attributes:
        before: the rows of the query's relation at its last instant, for ISTREAM and DSTREAM.
        lives: the rows of a query that gives changes alone; None = they are found by comparing instants.
        named: for each source the columns that the query names, as `alias.column`; it works on no others.
    """

    plan: QueryPlan
    functions: Mapping[str, Function]
    summed: bool = False
    sources: list[SourceState] = field(default_factory=list)
    grouping: Grouping | None = None
    before: Rows | None = None
    lives: Lifetimes | None = None
    named: dict[str, Collection[str]] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self.named = {source.alias: named_columns(plan, source) for source in plan.sources}
        self.sources = [SourceState() for _ in plan.sources]
        if has_lifetimes(plan):
            self.lives = Lifetimes(plan, self.functions, self._projected)
        if not plan.grouped:
            return
        window = plan.sources[0].window if len(plan.sources) == 1 else None
        if window is not None and (window.kind == "range" or self.summed):  # [NOW] is the last step
            self.grouping = SlidingGrouping(plan.groups, plan.measures, self.functions, window.length, window.slide)
        elif window is not None and window.kind == "unbounded":
            self.grouping = RunningGrouping(plan.groups, plan.measures, self.functions, plan.period)
        else:
            self.grouping = InstantGrouping(plan.groups, plan.measures, self.functions)

    def added_up(self, rows: Rows) -> Sums:
        """Return the rows of its source added up by step and group; the rows may be in any order."""
        kept = self._filtered(self.plan.sources[0], rows)
        return Grouping(self.plan.groups, self.plan.measures, self.functions).added_up(kept)

    def advance(self, inputs: Mapping[str, Rows], low: int, high: int, sums: Sequence[Sums] = ()) -> Rows:
        """Return the rows of the query for the instants low < step <= high.

        Args:
            inputs: the rows of these steps of every stream, and of every query that is read.
            sums: of a query whose rows come added up: those of these steps, and perhaps of others.
        """
        plan = self.plan
        if self.lives is not None:
            came = [self._filtered(source, inputs[source.name].between(low, high)) for source in plan.sources]
            return in_order(self.lives.advance(came, low, high))
        instants = np.arange(low // plan.period + 1, high // plan.period + 1) * plan.period
        if isinstance(self.grouping, SlidingGrouping | RunningGrouping):
            if self.summed and isinstance(self.grouping, SlidingGrouping):
                groups = self.grouping.advance_sums(sums, low, high)
            else:
                rows = self._filtered(plan.sources[0], inputs[plan.sources[0].name].between(low, high))
                groups = self.grouping.advance(rows, low, high)
            found = joined_rows([self._projected(part) for part in groups] or [self._nothing()])
        else:
            rows = self._joined(inputs, instants, low, high)
            if plan.where != TRUE:
                rows = rows.kept(*Evaluation(rows.columns, len(rows), self.functions).condition(plan.where))
            if isinstance(self.grouping, InstantGrouping):
                rows = self.grouping.at(rows, instants)
            found = self._projected(rows)
        if plan.distinct:
            found = unique(found)
        if plan.streaming in ("istream", "dstream"):
            now = found.only_taken()
            found = changes(self.before, now, instants, gone=plan.streaming == "dstream")
            if len(instants):
                self.before = now.between(int(instants[-1]) - 1, int(instants[-1]))
        return in_order(found)

    # ---- state

    def dump(self) -> Tree:
        """Return what the query keeps between two steps."""
        sources = [[of_rows(state.rows), of_keys(state.keys)] for state in self.sources]
        grouping = None if self.grouping is None else self.grouping.dump()
        lives = None if self.lives is None else self.lives.dump()
        return {"sources": sources, "grouping": grouping, "before": of_rows(self.before), "lives": lives}

    def load(self, tree: Tree, like: QueryRun | None = None) -> None:
        """Go on from what `dump` has returned, perhaps in an earlier version, which kept all columns of its sources.

        Args:
            like: the same query at another time, whose work is used where it is the same.
        """
        self.sources = []
        for source, (kept, keys) in zip(self.plan.sources, tree["sources"], strict=True):
            rows, wanted = to_rows(kept), self.named[source.alias]
            if rows is not None:
                columns = rows.columns
                rows = rows.named({name: columns[name] for name in columns if name in wanted or name[0] == "#"})
            self.sources.append(SourceState(rows, to_keys(keys)))
        self.before = to_rows(tree["before"])
        if self.lives is not None:
            self.lives.load(tree["lives"])
        if self.grouping is not None and tree["grouping"] is not None:
            self.grouping.load(tree["grouping"], None if like is None else like.grouping)

    # ---- FROM

    def _filtered(self, source: SourcePlan, rows: Rows) -> Rows:
        """Return the rows of a source with its columns qualified, and only those that its condition keeps."""
        return self._kept(source, self._qualified(source, rows))

    def _qualified(self, source: SourcePlan, rows: Rows) -> Rows:
        return qualified(source, rows, self.named[source.alias])

    def _kept(self, source: SourcePlan, rows: Rows) -> Rows:
        if source.where == TRUE:
            return rows
        return rows.kept(*Evaluation(rows.columns, len(rows), self.functions).condition(source.where))

    def _relation(
        self, source: SourcePlan, state: SourceState, rows: Rows, instants: Ints, low: int, high: int
    ) -> Rows:
        """Return the rows of a source at each instant of the query."""
        rows, window = rows.between(low, high), source.window
        if window is not None and window.kind == "rows":
            return self._kept(source, self._last(source, window, state, self._qualified(source, rows), instants))
        rows = self._filtered(source, rows)
        if window is None:
            return self._held(source, state, rows, instants)
        if window.kind == "now":
            if self.plan.period == 1 or not len(rows):
                return rows
            return rows.take(rows.step % self.plan.period == 0)
        kept = rows if state.rows is None else joined_rows([state.rows, rows])
        ends = instants // window.slide * window.slide
        first = np.searchsorted(kept.step, ends - window.length, side="right")
        count = np.searchsorted(kept.step, ends, side="right") - first
        at, which = stretches(first, count)
        oldest = high // window.slide * window.slide - window.length
        state.rows = kept.take(slice(int(np.searchsorted(kept.step, oldest, side="right")), None))
        return replace(kept.take(which), step=instants[at])

    def _last(self, source: SourcePlan, window: Window, state: SourceState, rows: Rows, instants: Ints) -> Rows:
        """Return [ROWS n] at each instant; a condition of WHERE does not change which rows are the last ones."""
        if state.keys is None:
            state.keys = KeyNumbers(tuple(key.kind for key in window.keys))
        keys = [rows.columns[key.name] for key in window.keys]
        found, state.rows = last_rows(rows, keys, state.keys, state.rows, window.length, window.slide, instants)
        return found

    def _held(self, source: SourcePlan, state: SourceState, rows: Rows, instants: Ints) -> Rows:
        """Return a relation at each instant: between two of its own, it is as at the one before."""
        own = instants // source.period * source.period
        if state.rows is not None:
            rows = joined_rows([state.rows, rows])
        if len(instants):
            state.rows = rows.between(int(own[-1]) - 1, int(own[-1]))
        if source.period == self.plan.period:
            return rows.between(int(instants[0]) - 1, int(instants[-1])) if len(instants) else rows.take(slice(0, 0))
        first = np.searchsorted(rows.step, own)
        count = np.searchsorted(rows.step, own, side="right") - first
        at, which = stretches(first, count)
        return replace(rows.take(which), step=instants[at])

    def _joined(self, inputs: Mapping[str, Rows], instants: Ints, low: int, high: int) -> Rows:
        plan = self.plan
        relations = [
            self._relation(source, state, inputs[source.name], instants, low, high)
            for source, state in zip(plan.sources, self.sources, strict=True)
        ]
        found = relations[0]
        for join, other in zip(plan.joins, relations[1:], strict=True):
            found = self._pair(join, found, other)
        return found

    def _pair(self, join: Join, left: Rows, right: Rows) -> Rows:
        one, other = (Evaluation(side.columns, len(side), self.functions) for side in (left, right))
        steps = (Column(Kind.BIGINT, left.step), Column(Kind.BIGINT, right.step))
        codes = common_codes(
            [steps[0], *(one.evaluate(item) for item in join.left)],
            [steps[1], *(other.evaluate(item) for item in join.right)],
            (len(left), len(right)),
        )
        whose, partner = pairs(*codes)
        found = paired(left, right, whose, partner)
        if join.where != TRUE:
            holds, certain, possible = Evaluation(found.columns, len(found), self.functions).condition(join.where)
            kept = holds if possible is None else possible
            found, whose = (
                found.kept(holds, certain, possible),
                whose[kept & (np.ones(len(kept), bool) if found.taken is None else True)],
            )
        if join.kind == "inner":
            return found
        alone = np.ones(len(left), dtype=np.bool_)
        alone[whose] = False
        if not alone.any():
            return found
        found = joined_rows([found, with_nothing(left.take(alone), right.columns)])
        order = np.argsort(np.concatenate((whose, np.flatnonzero(alone))), kind="stable")
        return found.take(order)

    # ---- SELECT

    def _projected(self, rows: Rows) -> Rows:
        """Return the rows that HAVING keeps, with the columns of SELECT."""
        inputs = Evaluation(rows.columns, len(rows), self.functions)
        if self.plan.having != TRUE:
            rows = rows.kept(*inputs.condition(self.plan.having))
            inputs = Evaluation(rows.columns, len(rows), self.functions)
        return rows.named({name: inputs.evaluate(item).full(len(rows)) for name, item in self.plan.outputs.items()})

    def _nothing(self) -> Rows:
        return empty(self.plan.columns)


def qualified(source: SourcePlan, rows: Rows, wanted: Collection[str]) -> Rows:
    """Return the rows with the wanted columns of a source, called `alias.column`."""
    names = {f"{source.alias}.{name}": name for name in source.columns}
    return rows.named({called: rows.columns[name] for called, name in names.items() if called in wanted})


class Queries:
    """Queries of a program, run together.

    Args:
        names: the queries, each behind what it reads; None = all.
        summed: the queries whose rows come added up.

    Attributes:
        faults: why a query does not run any more, by name. A function of one's own may fail, for example.
    """

    def __init__(
        self, program: Program, names: Sequence[str] | None = None, summed: Collection[str] = frozenset()
    ) -> None:
        self.program = program
        self.summed = summed
        self.runs = {name: self._new(name) for name in (program.queries if names is None else names)}
        self.faults: dict[str, str] = {}

    def named(self, stream: str) -> set[str]:
        """Return the columns of a stream that queries name."""
        return {
            name.removeprefix(f"{source.alias}.")
            for run in self.runs.values()
            for source in run.plan.sources
            if source.name == stream
            for name in run.named[source.alias]
        }

    def stop(self, name: str) -> None:
        """Drop what a query keeps."""
        self.runs[name] = self._new(name)

    def _new(self, name: str) -> QueryRun:
        return QueryRun(self.program.queries[name], self.program.catalog.functions, name in self.summed)

    def advance(
        self,
        streams: Mapping[str, Rows],
        low: int,
        high: int,
        since: Mapping[str, int] = MappingProxyType({}),
        sums: Mapping[str, Sequence[Sums]] = MappingProxyType({}),
    ) -> dict[str, Rows]:
        """Return the rows of every query that runs for the steps low < step <= high, all of which are complete.

        A query that raises an exception is stopped, and so are those that read it.

        Args:
            streams: the rows of these steps by stream, in the order of (step, key).
            since: the steps behind which queries begin, where that is behind `low`.
            sums: the rows of queries whose rows come added up.
        """
        inputs = dict(streams)
        found: dict[str, Rows] = {}
        for name, run in self.runs.items():
            lost = [source.name for source in run.plan.sources if source.name not in inputs and not run.summed]
            if lost and name not in self.faults:
                self.faults[name] = f"it reads {lost[0]}, which has stopped"
            if name in self.faults:
                continue
            begin = max(low, since.get(name, low))
            try:
                found[name] = (
                    run.advance(inputs, begin, high, sums.get(name, ())) if begin < high else empty(run.plan.columns)
                )
            except Exception as error:  # noqa: BLE001 - it may come from a function of the user
                self.faults[name] = f"{type(error).__name__}: {error}"
                self.stop(name)
                continue
            if name not in streams:
                inputs[name] = found[name]
        return found
