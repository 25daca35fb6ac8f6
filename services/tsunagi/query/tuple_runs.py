"""Runs queries over tuples: each key has its own time, and an instant of it is one of its tuples.

At each tuple of a key, a query has the rows that it has for this key then. Other keys have no rows at this instant, so
the cost of a tuple does not grow with the number of keys. Instants are numbered in the order of the log (`Rows.step`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tsunagi.query.aggregates import State, blank, pick, spread_out
from tsunagi.query.definitions import fingerprints
from tsunagi.query.expressions import TRUE, Evaluation
from tsunagi.query.grouping import Grouping, InstantGrouping, cells_of
from tsunagi.query.keyed_windows import FAR, KeptRows, KeyedWindow
from tsunagi.query.placing import together
from tsunagi.query.plan import SourcePlan, named_columns
from tsunagi.query.planning import Program
from tsunagi.query.relations import KeyNumbers, Rows, changes, empty, in_order, joined_rows, places_in_runs, unique
from tsunagi.query.running import QueryRun, SourceState
from tsunagi.query.snapshots import Tree, of_keys, pack, to_keys, unpack
from tsunagi.query.tuple_plans import key_columns, stream_of
from tsunagi.query.values import Column, Ints, Kind
from tsunagi.query.values import column as column_of
from tsunagi.query.windows import accumulate, grown


@dataclass(slots=True)
class TouchedGrouping(Grouping):
    """GROUP BY over [RANGE UNBOUNDED]: all rows so far, of the groups that a tuple has reached.

    Attributes:
        total: the state of each group; there is room for more of them, so that a new group does not move the others.
    """

    total: State = field(default_factory=dict)

    def advance(self, rows: Rows) -> Rows:
        """Return, at each instant, the groups that have rows of it."""
        prepared = self.prepare(rows)
        room = 1 << len(self.keys).bit_length()
        mine, group = np.unique(prepared.key, return_inverse=True)  # the groups of this call
        instants, which = np.unique(prepared.step, return_inverse=True)
        cell, at, column = cells_of(which, group)
        shape = (len(instants), len(mine))
        states = spread_out(self.state_of(prepared, cell, len(at)), (at, column), shape)
        self.total = grown(self.total, room)
        found = accumulate(pick(self.total, mine), states, *shape)
        for name, array in found.items():
            if name not in self.total:
                self.total[name] = blank(name, array.dtype, (room,))
            self.total[name][mine] = array[-1]
        return self.results(instants[at], mine[column], pick(found, (at, column)), {})

    def key_columns(self, key: Ints) -> list[Column]:
        used, place = np.unique(key, return_inverse=True)
        parts = list(zip(*(self.keys.values[number] for number in used.tolist()), strict=True)) or [()] * len(
            self.groups
        )
        made = [column_of(kind, list(part)) for kind, part in zip(self.keys.kinds, parts, strict=True)]
        return [item.take(place) for item in made]

    def dump(self) -> Tree:
        total = pick(self.total, slice(0, len(self.keys)))
        return {"keys": of_keys(self.keys), "total": {name: total[name] for name in sorted(total)}} | self._texts()

    def load(self, tree: Tree, like: Grouping | None = None) -> None:
        del like
        self.keys = to_keys(tree["keys"]) or self.keys
        self.texts = to_keys(tree.get("texts")) or self.texts
        self.total = tree["total"]


@dataclass(slots=True)
class TupleRun(QueryRun):
    """A query over tuples that runs.

    Args:
        key: the column of the stream that is its key.
        own: the column of the query's rows that holds the key; "" = none does.

    Attributes:
        windows: the windows by the alias of their source, but those that are the tuple itself or all tuples.
        known, last: numbers of keys, and the rows that each key had at its last tuple, for ISTREAM.
    """

    key: str = ""
    own: str = ""
    windows: dict[str, KeyedWindow] = field(init=False)
    known: KeyNumbers = field(init=False)
    last: KeptRows = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self.sources = [SourceState() for _ in plan.sources]
        self.named = {source.alias: named_columns(plan, source) for source in plan.sources}
        self.windows = {source.alias: self._window(source) for source in plan.sources if _keeps(source)}
        self.known = KeyNumbers((Kind.TEXT,))
        self.last = KeptRows(plan.columns)
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

    def _window(self, source: SourcePlan) -> KeyedWindow:
        """Return the window of a source, with the columns of it that the query names, or that tell its rows apart."""
        assert source.window is not None  # noqa: S101 - `_keeps` has seen to that
        keys = [item.name for item in source.window.keys] or [f"{source.alias}.{self.key}"]
        time = f"{source.alias}.time" if source.window.kind == "range" else ""
        wanted = self.named[source.alias] = {*self.named[source.alias], *keys, time}
        kinds = {f"{source.alias}.{name}": kind for name, kind in source.columns.items()}
        return KeyedWindow(source.window, keys, time, {name: kind for name, kind in kinds.items() if name in wanted})

    def _relation(
        self, source: SourcePlan, state: SourceState, rows: Rows, instants: Ints, low: int, high: int
    ) -> Rows:
        """Return the rows of a source at each tuple of a key that has come: those of this key."""
        del state, instants, low, high
        window = self.windows.get(source.alias)
        if window is None:
            return self._filtered(source, rows)
        return self._kept(source, window.follow(self._qualified(source, rows)))

    def _new(self, now: Rows, stream: Rows) -> Rows:
        """Return the rows that are new against the key's tuple before (ISTREAM)."""
        known, kept = self.known, self.last
        whose = known.numbers([stream.columns[self.key]], len(stream))
        key = known.numbers([now.columns[self.own]], len(now))
        order = np.lexsort((stream.step, whose))
        step, whose = stream.step[order], whose[order]
        fresh = np.append(True, (whose[1:] != whose[:-1]) | (step[1:] != step[:-1]))
        step, whose = step[fresh], whose[fresh]  # each tuple of each key once, by key
        rank = places_in_runs(whose) + 1
        last = np.searchsorted(whose, whose, side="right") - 1  # the key's last tuple
        at = np.searchsorted(whose * FAR + step, key * FAR + now.step)  # the tuple of each row
        touched: list[int] = np.unique(whose).tolist()
        _, places = kept.of(touched)
        before = Rows(np.zeros(len(places), dtype=np.int64), kept.columns(places))
        found = changes(before, replace(now, step=rank[at]), np.arange(1, int(rank.max()) + 1), gone=False)
        mine = known.numbers([found.columns[self.own]], len(found))
        found = replace(found, step=step[np.searchsorted(whose * FAR + rank, mine * FAR + found.step)])
        stays = at == last[at]
        order = np.argsort(key[stays], kind="stable")
        ends = np.searchsorted(key[stays][order], touched, side="right").tolist()
        remembered = kept.append(now.columns, len(now))[stays][order]
        for item, begin, end in zip(touched, [0, *ends], ends, strict=False):
            kept.put(item, remembered[begin:end])
        kept.tidy()
        return found.take(np.argsort(found.step, kind="stable"))

    # ---- state

    def dump(self) -> Tree:
        windows = {alias: window.dump() for alias, window in self.windows.items()}
        grouping = None if self.grouping is None else self.grouping.dump()
        last = {"known": of_keys(self.known), "kept": self.last.dump()}
        return {"windows": windows, "grouping": grouping, "last": last}

    def load(self, tree: Tree, like: QueryRun | None = None) -> None:
        del like
        for alias, window in self.windows.items():
            window.load(tree["windows"][alias])
        if self.grouping is not None and tree["grouping"] is not None:
            self.grouping.load(tree["grouping"])
        self.known = to_keys(tree["last"]["known"]) or self.known
        self.last.load(tree["last"]["kept"])


def _keeps(source: SourcePlan) -> bool:
    return source.window is not None and source.window.kind in ("rows", "range")


_MEASURED = 4096
"""States of queries are measured after at least so many instants."""
_BYTES_A_RECORD = 2048
"""Bytes of state that are measured for one record, on average, if states are large."""


class QueryFailedError(RuntimeError):
    """A query failed on its rows, as a function of the user may; the exception is the cause.

    Attributes:
        query: its name.
    """

    def __init__(self, query: str) -> None:
        super().__init__(f"query {query}")
        self.query = query


class TupleQueries:
    """The queries of a program over tuples, in one slot.

    Args:
        names: the queries whose rows are wanted; None = all.
        most_bytes: a query whose state is larger is stopped, and so are those that read it. States are measured at
            instants that do not depend on how tuples are cut into calls, so all replicas of a slot stop it at the same.

    Attributes:
        stream: the stream that they read.
        published: the names of the queries whose rows go out.
        sizes: the size of the state of each query when it was last measured, bytes.
        faults: why a query does not run any more, by name.
    """

    def __init__(self, program: Program, most_bytes: int = 1 << 62, names: Collection[str] | None = None) -> None:
        self.stream = stream_of(program)
        self.published = [plan.name for plan in program.published if names is None or plan.name in names]
        self.sizes: dict[str, int] = {}
        self.faults: dict[str, str] = {}
        self._program = program
        self._most_bytes = most_bytes
        self._prints = fingerprints(program)
        self._own = key_columns(program)
        wanted = program.queries if names is None else together(program, self.published)
        self._runs = {name: self._new(name) for name in wanted}
        self._count = 0  # instants so far
        self._measured_at = _MEASURED  # the count at which states are measured next

    def _new(self, name: str) -> TupleRun:
        functions = self._program.catalog.functions
        return TupleRun(self._program.queries[name], functions, key=self.stream.key, own=self._own[name])

    def follow(self, columns: Mapping[str, Column], instant: Ints) -> tuple[dict[str, Rows], int]:
        """Return the rows of every published query, and the number of the first instant of these tuples.

        Where the tuples of one call end and those of the next begin does not change the rows.

        Args:
            columns: the columns of the stream, at least one row each.
            instant: int64[n], ascending: rows of one record of the log have the same.

        Raises:
            QueryFailedError: a query has failed.
        """
        _, number = np.unique(instant, return_inverse=True)
        first = self._count
        end = first + int(number[-1]) + 1
        rows = Rows(first + number.astype(np.int64), columns)
        parts: list[dict[str, Rows]] = []
        while self._count < end:
            upto = min(end, self._measured_at)
            parts.append(self._follow(rows.between(self._count - 1, upto - 1)))
            self._count = upto
            if upto == self._measured_at:
                self._measure()
        if len(parts) == 1:
            return parts[0], first
        return {name: joined_rows([part[name] for part in parts]) for name in self.published}, first

    def _follow(self, rows: Rows) -> dict[str, Rows]:
        inputs = {self.stream.name: rows}
        for name, run in self._runs.items():
            if name in self.faults:
                inputs[name] = empty(run.plan.columns)
                continue
            try:
                inputs[name] = run.follow(inputs, rows)
            except Exception as error:
                raise QueryFailedError(name) from error
        return {name: inputs[name].only_taken() for name in self.published}

    def _measure(self) -> None:
        """Measure the states, and stop queries that have too much. It costs a record little, however large they are."""
        for name, run in self._runs.items():
            lost = next((source.name for source in run.plan.sources if source.name in self.faults), "")
            self.sizes[name] = 0 if name in self.faults else len(pack(run.dump()))
            if name in self.faults or not (lost or self.sizes[name] > self._most_bytes):
                continue
            found, most = self.sizes[name] / 1e6, self._most_bytes / 1e6
            self.faults[name] = (
                f"it reads {lost}, which has stopped"
                if lost
                else f"its state has grown to {found:.1f} MB in a slot, [query] state_mb allows {most:g}"
            )
            self._runs[name] = self._new(name)
        self._measured_at = self._count + _MEASURED + sum(self.sizes.values()) // _BYTES_A_RECORD

    # ---- state

    def context(self) -> bytes:
        """Return the whole state."""
        runs = {name: run.dump() for name, run in self._runs.items()}
        return pack({"count": self._count, "measured_at": self._measured_at, "faults": self.faults, "runs": runs})

    def restore(self, context: bytes) -> None:
        """Go on from a state that `context` returned.

        Raises:
            ValueError: the bytes are something else.
        """
        tree = unpack(context)
        self._count = tree["count"]
        # A context of an earlier version says nothing of measures.
        self._measured_at = tree.get("measured_at", self._count + _MEASURED)
        self.faults = dict(tree.get("faults", {}))
        for name, run in self._runs.items():
            run.load(tree["runs"][name])

    def same(self, other: TupleQueries) -> bool:
        """Return whether both run the same queries, and these mean the same."""
        mine = {name: self._prints[name] for name in self._runs}
        return mine == {name: other._prints[name] for name in other._runs}

    def take_over(self, earlier: TupleQueries) -> None:
        """Go on with the state of those queries that were there before, and mean the same."""
        self._count, self._measured_at = earlier._count, earlier._measured_at
        for name in self._runs:
            if name in earlier._runs and self._prints[name] == earlier._prints[name]:
                self._runs[name] = earlier._runs[name]
                if name in earlier.faults:
                    self.faults[name] = earlier.faults[name]
                if name in earlier.sizes:
                    self.sizes[name] = earlier.sizes[name]
