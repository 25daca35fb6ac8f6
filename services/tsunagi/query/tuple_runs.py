"""Runs queries over tuples: each key has its own time, and an instant of it is one of its tuples.

At each tuple of a key, a query has the rows that it has for this key then. Other keys have no rows at this instant, so
the cost of a tuple does not grow with the number of keys. Instants are numbered in the order of the log (`Rows.step`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tsunagi.query.aggregates import State, blank, pick, spread_out
from tsunagi.query.definitions import fingerprints
from tsunagi.query.expressions import TRUE, Evaluation
from tsunagi.query.grouping import Grouping, InstantGrouping, cells_of, numbered
from tsunagi.query.plan import SourcePlan, Window
from tsunagi.query.planning import Program
from tsunagi.query.relations import KeyNumbers, Rows, changes, in_order, joined_rows, stretches, unique
from tsunagi.query.running import QueryRun, SourceState, qualified
from tsunagi.query.snapshots import Tree, of_keys, pack, to_keys, unpack
from tsunagi.query.tuple_plans import key_columns, stream_of
from tsunagi.query.values import Column, Flags, Ints, Kind
from tsunagi.query.windows import accumulate, grown


@dataclass(slots=True)
class TouchedGrouping(Grouping):
    """GROUP BY over [RANGE UNBOUNDED]: all rows so far, of the groups that a tuple has reached.

    Attributes:
        total: the state of each group, [groups].
    """

    total: State = field(default_factory=dict)

    def advance(self, rows: Rows) -> Rows:
        """Return, at each instant, the groups that have rows of it."""
        prepared = self.prepare(rows)
        size = len(self.keys)
        mine, group = np.unique(prepared.key, return_inverse=True)  # the groups of this call
        instants, which = np.unique(prepared.step, return_inverse=True)
        cell, at, column = cells_of(which, group)
        shape = (len(instants), len(mine))
        states = spread_out(self.state_of(prepared, cell, len(at)), (at, column), shape)
        self.total = grown(self.total, size)
        found = accumulate(pick(self.total, mine), states, *shape)
        for name, array in found.items():
            if name not in self.total:
                self.total[name] = blank(name, array.dtype, (size,))
            self.total[name][mine] = array[-1]
        return self.results(instants[at], mine[column], pick(found, (at, column)), {})

    def dump(self) -> Tree:
        return {"keys": of_keys(self.keys), "total": self.total}

    def load(self, tree: Tree) -> None:
        self.keys = to_keys(tree["keys"]) or self.keys
        self.total = tree["total"]


@dataclass(slots=True)
class TupleRun(QueryRun):
    """A query over tuples that runs.

    Args:
        key: the column of the stream that is its key.
        own: the column of the query's rows that holds the key; "" = none does.
    """

    key: str = ""
    own: str = ""

    def __post_init__(self) -> None:
        plan = self.plan
        self.sources = [SourceState() for _ in plan.sources]
        if plan.grouped:
            window = plan.sources[0].window
            unbounded = window is not None and window.kind == "unbounded"
            made = TouchedGrouping if unbounded else InstantGrouping
            self.grouping = made(plan.groups, plan.measures, self.functions)

    def follow(self, inputs: Mapping[str, Rows], stream: Rows) -> Rows:
        """Return the rows of the query for the tuples of the stream that have come.

        Args:
            inputs: the rows of the stream, and of every query that is read, at the same instants.
            stream: the rows of the stream, at least one.
        """
        plan, grouping = self.plan, self.grouping
        if isinstance(grouping, TouchedGrouping):
            rows = self._filtered(plan.sources[0], inputs[plan.sources[0].name])
            found = self._projected(grouping.advance(rows)) if len(rows) else self._nothing()
        else:
            instants = np.unique(stream.step)
            rows = self._joined(inputs, instants, 0, 0)
            if plan.where != TRUE:
                rows = rows.kept(*Evaluation(rows.columns, len(rows), self.functions).condition(plan.where))
            if isinstance(grouping, InstantGrouping):
                rows = grouping.at(rows, instants)
            found = self._projected(rows)
        if plan.distinct:
            found = unique(found)
        if plan.streaming == "istream":
            found = self._new(found.only_taken(), stream)
        return in_order(found)

    def _relation(
        self, source: SourcePlan, state: SourceState, rows: Rows, instants: Ints, low: int, high: int
    ) -> Rows:
        """Return the rows of a source at each tuple of a key that has come: those of this key."""
        del instants, low, high
        window = source.window
        if window is None or window.kind == "now":
            return self._filtered(source, rows)
        keys = [key.name for key in window.keys] or [f"{source.alias}.{self.key}"]
        if state.keys is None:
            state.keys = KeyNumbers(tuple(source.columns[name.partition(".")[2]] for name in keys))
        rows = qualified(source, rows)
        rows = numbered(rows, [rows.columns[name] for name in keys], state.keys, state.rows)
        time = f"{source.alias}.time" if window.kind == "range" else ""
        found, state.rows = _windows(rows, 0 if state.rows is None else len(state.rows), window, time)
        return self._kept(source, found)

    def _new(self, now: Rows, stream: Rows) -> Rows:
        """Return the rows that are new against the key's tuple before (ISTREAM)."""
        known = KeyNumbers((Kind.TEXT,))
        whose = known.numbers([stream.columns[self.key]], len(stream))
        key = known.numbers([now.columns[self.own]], len(now))
        order = np.lexsort((stream.step, whose))
        step, whose = stream.step[order], whose[order]
        fresh = _changed(whose, step)
        step, whose = step[fresh], whose[fresh]  # each tuple of each key once, by key
        begin = np.searchsorted(whose, whose)  # the key's first tuple
        rank = np.arange(len(whose)) - begin + 1
        at = _find((whose, step), (key, now.step))
        ranked = replace(now, step=rank[at])
        before, others = self.before, None
        if before is not None:
            old = known.numbers([before.columns[self.own]], len(before))
            touched = np.isin(old, whose)
            before, others = before.take(touched), before.take(~touched)
        found = changes(before, ranked, np.arange(1, int(rank.max()) + 1), gone=False)
        place = _find((whose, rank), (known.numbers([found.columns[self.own]], len(found)), found.step))
        found = replace(found, step=step[place])
        last = np.searchsorted(whose, whose, side="right") - 1  # the key's last tuple
        newest = replace(now.take(at == last[at]), step=np.zeros(int((at == last[at]).sum()), dtype=np.int64))
        self.before = newest if others is None else joined_rows([others, newest])
        return found.take(np.argsort(found.step, kind="stable"))


def _changed(*keys: Ints) -> Flags:
    """Return where a combination differs from the one before it."""
    found = np.ones(len(keys[0]), dtype=np.bool_)
    if len(found):
        found[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return found


def _find(known: tuple[Ints, Ints], wanted: tuple[Ints, Ints]) -> Ints:
    """Return the places of pairs among known pairs, which are in ascending order and have all of them."""
    low = int(known[1].min()) if len(known[1]) else 0
    width = (int(known[1].max()) if len(known[1]) else 0) - low + 1
    return np.searchsorted(known[0] * width + (known[1] - low), wanted[0] * width + (wanted[1] - low))


@dataclass(frozen=True, slots=True)
class _ByKey:
    """Rows in the order of (key, number), of which those behind `kept` are new.

    Attributes:
        order: the place of each row among the rows as they came.
        key, number, step: int64[n].
        begin, end: int64[n], the places of the first row of each row's key, and of the last one.
        target: int64[t], the places of the new rows with which an instant of a key ends.
    """

    order: Ints
    key: Ints
    number: Ints
    step: Ints
    begin: Ints
    end: Ints
    target: Ints

    @classmethod
    def of(cls, rows: Rows, kept: int) -> _ByKey:
        """Sort rows that have the columns `#key` and `#number`."""
        key, number = rows.columns["#key"].values, rows.columns["#number"].values
        order = np.lexsort((number, key))
        key, number, step = key[order], number[order], rows.step[order]
        last = np.append(_changed(key, step)[1:], np.True_)
        begin, end = (np.searchsorted(key, key, side=side) for side in ("left", "right"))
        return cls(order, key, number, step, begin, end - 1, np.flatnonzero(last & (order >= kept)))


def _last_rows(by: _ByKey, length: int, slide: int) -> tuple[Ints, Ints, Ints, Flags]:
    """Return (target of each row of a window, the row's place, ...) as `_windows` needs it, for [ROWS n SLIDE m].

    The window moves when a slide is complete. It ends with the row that has completed it.
    """
    done = (by.number + 1) // slide * slide
    first = np.searchsorted(by.key * 2**40 + by.step, (by.key * 2**40 + by.step)[by.target])  # of the instant
    target = by.target[done[by.target] > by.number[first] // slide * slide]
    least = by.number[by.begin[target]]
    begin = np.maximum(done[target] - length, least)
    whose, at = stretches(by.begin[target] + begin - least, done[target] - begin)
    return target, whose, at, by.number >= done[by.end] - length


def _recent_rows(by: _ByKey, times: Ints, length: int) -> tuple[Ints, Ints, Ints, Flags]:
    """Return the same for [RANGE length]: the rows later than the newest time of the key so far, less the length."""
    known, rank = np.unique(times, return_inverse=True)
    width = len(known) + 1
    newest = np.maximum.accumulate(by.key * width + rank)  # the rank of the newest time so far, behind the key
    since = np.searchsorted(known, known[newest - by.key * width] - length, side="right")  # the least rank inside
    target = by.target
    first = np.searchsorted(newest, (by.key * width + since)[target])
    whose, at = stretches(first, target - first + 1)
    inside = rank[at] >= since[target][whose]
    kept = (newest >= by.key * width + since[by.end]) | (np.arange(len(times)) == by.end)
    return target, whose[inside], at[inside], kept


def _windows(rows: Rows, kept: int, window: Window, time: str) -> tuple[Rows, Rows]:
    """Return a window at each new tuple of each key, and the rows that are needed from now on.

    Args:
        rows: those that were kept, and behind them the new ones, with `#key` and `#number`.
        kept: how many were kept.
        time: the column of times; "" = the window counts rows.
    """
    by = _ByKey.of(rows, kept)
    if time:
        found = _recent_rows(by, rows.columns[time].values[by.order], window.length)
    else:
        found = _last_rows(by, window.length, window.slide)
    target, whose, at, needed = found
    step = by.step[target][whose]
    in_time = np.argsort(step, kind="stable")
    columns = {name: column for name, column in rows.columns.items() if not name.startswith("#")}
    which = np.zeros(len(rows), dtype=np.bool_)
    which[by.order[needed]] = True
    return replace(rows.named(columns).take(by.order[at[in_time]]), step=step[in_time]), rows.take(which)


class TupleQueries:
    """The queries of a program over tuples, in one slot.

    Attributes:
        stream: the stream that they read.
        published: the names of the queries whose rows go out.
    """

    def __init__(self, program: Program) -> None:
        self.stream = stream_of(program)
        self.published = [plan.name for plan in program.published]
        self._prints = fingerprints(program)
        own = key_columns(program)
        self._runs = {
            name: TupleRun(plan, program.catalog.functions, key=self.stream.key, own=own[name])
            for name, plan in program.queries.items()
        }
        self._count = 0  # instants so far

    def follow(self, columns: Mapping[str, Column], instant: Ints) -> tuple[dict[str, Rows], int]:
        """Return the rows of every published query, and the number of the first instant of these tuples.

        Where the tuples of one call end and those of the next begin does not change the rows.

        Args:
            columns: the columns of the stream, at least one row each.
            instant: int64[n], ascending: rows of one record of the log have the same.
        """
        _, number = np.unique(instant, return_inverse=True)
        first = self._count
        self._count += int(number[-1]) + 1
        rows = Rows(first + number.astype(np.int64), columns)
        inputs = {self.stream.name: rows}
        for name, run in self._runs.items():
            inputs[name] = run.follow(inputs, rows)
        return {name: inputs[name].only_taken() for name in self.published}, first

    # ---- state

    def context(self) -> bytes:
        """Return the whole state."""
        return pack({"count": self._count, "runs": {name: run.dump() for name, run in self._runs.items()}})

    def restore(self, context: bytes) -> None:
        """Go on from a state that `context` returned.

        Raises:
            ValueError: the bytes are something else.
        """
        tree = unpack(context)
        self._count = tree["count"]
        for name, run in self._runs.items():
            run.load(tree["runs"][name])

    def take_over(self, earlier: TupleQueries) -> None:
        """Go on with the state of those queries that were there before, and mean the same."""
        self._count = earlier._count
        for name in self._runs:
            if self._prints[name] == earlier._prints.get(name):
                self._runs[name] = earlier._runs[name]
