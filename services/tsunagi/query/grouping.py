"""GROUP BY: over a sliding window of a stream, over all of it, or over a relation at each instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tsunagi.query.aggregates import AggregateFunction, CellRows, State, pick, spread_out
from tsunagi.query.catalog import OwnAggregate
from tsunagi.query.expressions import TRUE, Evaluation, Expression
from tsunagi.query.functions import Function
from tsunagi.query.pairs import groups_of, numbers_of_pairs, pair_keys, ranks_of, values_of
from tsunagi.query.plan import Measure
from tsunagi.query.quantiles import choose
from tsunagi.query.relations import KeyNumbers, Rows, distinct, places_in_runs
from tsunagi.query.snapshots import Tree, of_keys, of_window, to_keys, to_window
from tsunagi.query.sums import Sums, panes_of
from tsunagi.query.values import Array, Column, Flags, Ints, Kind, Spread, both
from tsunagi.query.windows import SlidingWindow, accumulate, grown

PRESENT = AggregateFunction("present", "COUNT", None)
"""Counts the rows of a group: a group without rows is not there."""
_PLACES = 1 << 24
"""More than the rows of a step can be: a row's place in time is its step times this, and its number in the step."""


_FEW = 4096
"""Unused groups, values and texts are looked for only once there are this many: fewer cost little memory."""


class Prepared(NamedTuple):
    """Rows on which a grouping works.

    Attributes:
        key: int64[n], the number of each row's group.
        arguments: of each measure: (its argument, the rows it takes, those it certainly takes).
        shares: the rows that count for the group itself, and those that certainly do.
    """

    step: Ints
    place: Ints
    key: Ints
    arguments: list[tuple[Column | None, Flags | None, Flags | None]]
    shares: tuple[Flags | None, Flags | None]


@dataclass(slots=True)
class Grouping:
    """The groups of a query and their measures; subclasses say over which rows.

    Args:
        groups: the expressions by which rows are grouped; none = all rows are one group, which is there without rows.
    """

    groups: tuple[Expression, ...]
    measures: tuple[Measure, ...]
    functions: Mapping[str, Function]
    keys: KeyNumbers = field(init=False)
    texts: KeyNumbers = field(init=False)
    """Numbers of the texts of FIRST and LAST, which states can hold."""

    def __post_init__(self) -> None:
        self.texts = KeyNumbers((Kind.TEXT,))
        self.keys = KeyNumbers(tuple(item.kind for item in self.groups))
        if not self.groups:
            self.keys.numbers([], 1)

    def prepare(self, rows: Rows) -> Prepared:
        """Return the rows with their groups and arguments."""
        inputs = Evaluation(rows.columns, len(rows), self.functions)
        key = self.keys.numbers([inputs.evaluate(item).full(len(rows)) for item in self.groups], len(rows))
        arguments = [self._shared(inputs, rows, measure) for measure in self.measures]
        place = rows.step * _PLACES + places_in_runs(rows.step)
        return Prepared(rows.step, place, key, arguments, (rows.taken, rows.certain))

    def _shared(
        self, inputs: Evaluation, rows: Rows, measure: Measure
    ) -> tuple[Column | None, Flags | None, Flags | None]:
        """Return a measure's (argument, the rows it takes, those it certainly takes)."""
        if measure.where == TRUE:
            return self._argument(inputs, measure, None), rows.taken, rows.certain
        holds, certain, possible = inputs.condition(measure.where)
        if possible is None or certain is None:
            return self._argument(inputs, measure, ~holds), rows.taken, rows.certain
        # A row that only possibly counts is not taken, but it has an argument: it is among what is possible.
        sure = both(both(rows.taken, rows.certain), certain)
        return self._argument(inputs, measure, ~possible), both(rows.taken, holds), sure

    def _argument(self, inputs: Evaluation, measure: Measure, outside: Flags | None) -> Column | None:
        """Return a measure's argument, NULL in the rows that its FILTER leaves out."""
        if measure.argument is None and outside is None:
            return None
        if measure.argument is None:
            found = Column(Kind.BOOLEAN, np.ones(inputs.rows, dtype=np.bool_))
        else:
            found = inputs.evaluate(measure.argument).full(inputs.rows)
        if outside is not None and outside.any():
            found = Column(found.kind, found.values, found.present() & ~outside, found.pool, found.spread)
        if found.kind is Kind.TEXT and measure.aggregate.function in ("FIRST", "LAST"):
            there = found.present()
            numbers = np.zeros(len(found), dtype=np.int64)
            numbers[there] = self.texts.numbers([found.take(there)], int(there.sum()))
            return Column(Kind.BIGINT, numbers, found.valid)
        return found

    def state_of(self, prepared: Prepared, cell: Ints, cells: int) -> State:
        """Return the states of cells, of all measures together."""
        state = PRESENT.of_rows(CellRows(cell, cells, prepared.place, *prepared.shares), None)
        for measure, (argument, taken, certain) in zip(self.measures, prepared.arguments, strict=True):
            if not measure.distinct and measure.own is None:  # of quantiles the states have what is not certain
                rows = CellRows(cell, cells, prepared.place, taken, certain)
                state |= measure.aggregate.of_rows(rows, argument)
        return state

    def added_up(self, rows: Rows) -> Sums:
        """Return the rows added up, by step and group."""
        prepared = self.prepare(rows)
        cell, step, key = cells_of(prepared.step, prepared.key)
        return Sums(step, key, self.key_columns(np.arange(len(self.keys))), self.state_of(prepared, cell, len(step)))

    def results(self, step: Ints, key: Ints, state: Mapping[str, Array], apart: Mapping[str, Column | Array]) -> Rows:
        """Return the groups with their measures as rows; the columns are `group.N` and the names of the aggregates.

        Args:
            apart: what is not in the states: counts of different values, quantiles, and aggregates of the user.
        """
        shape = (len(step),)
        columns = {f"group.{place}": column for place, column in enumerate(self.key_columns(key))}
        for measure in self.measures:
            name = measure.aggregate.name
            other = apart.get(name)
            if isinstance(other, Column):
                chooses = measure.aggregate.choice is not None
                columns[name] = measure.aggregate.chosen(state, other) if chooses else other
            elif other is not None:
                columns[name] = Column(Kind.BIGINT, other)
            else:
                columns[name] = self._named_again(measure.aggregate.result(state, shape))
        return Rows(step, columns)

    def _named_again(self, found: Column) -> Column:
        """Return the texts themselves where a result has their numbers."""
        if found.kind is not Kind.TEXT:
            return found
        if not len(self.texts):
            return replace(found, pool=("",))
        return replace(self.texts.columns(found.values)[0], valid=found.valid, spread=found.spread)

    def key_columns(self, key: Ints) -> list[Column]:
        """Return what the groups of these numbers are grouped by, as columns."""
        return self.keys.columns(key)

    def _texts(self) -> dict[str, Tree]:
        """Return the numbers of texts as a part of a tree, if there are any."""
        return {"texts": of_keys(self.texts)} if len(self.texts) else {}

    def dump(self) -> Tree:
        """Return what is kept between two steps."""
        return None

    def load(self, tree: Tree, like: Grouping | None = None) -> None:
        """Go on from what `dump` has returned.

        Args:
            like: a grouping of the same query at another time, whose work is used where it is the same.
        """

    def windows(self) -> dict[str, SlidingWindow]:
        """Return the windows of panes that it has, by any names."""
        return {}


def _kept(keys: KeyNumbers, living: Ints) -> tuple[KeyNumbers, Ints]:
    """Return the numbers of those that live, and for each old number the new one; 0 for those that are gone."""
    found = KeyNumbers(keys.kinds)
    found.add(keys.values[number] for number in living.tolist())
    moved = np.zeros(max(1, len(keys)), dtype=np.int64)
    moved[living] = np.arange(len(living))
    return found, moved


def cells_of(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (cell of each row, and of each cell the two numbers), in the order of (first, second)."""
    if not len(first):
        return first, first, second
    low, width = int(first.min()), int(second.max()) + 1
    code = (first - low) * width + second
    if (code[1:] > code[:-1]).all():
        return np.arange(len(code)), first, second
    found, cell = distinct(code, (int(first.max()) - low + 1) * width)
    return cell, found // width + low, found % width


@dataclass(slots=True)
class SlidingGrouping(Grouping):
    """GROUP BY over [RANGE length SLIDE slide].

    Args:
        length, slide: in steps.
    """

    length: int
    slide: int
    window: SlidingWindow = field(init=False)
    distinct: dict[str, tuple[KeyNumbers, SlidingWindow]] = field(init=False)
    look_at: int = field(default_factory=lambda: _FEW)
    """The count of groups, values and texts at which the grouping next looks for unused ones, and drops them."""

    def __post_init__(self) -> None:
        Grouping.__post_init__(self)
        self.window = SlidingWindow(self.length, self.slide)
        self.distinct = {
            measure.aggregate.name: (pair_keys(measure), SlidingWindow(self.length, self.slide))
            for measure in self.measures
            if measure.paired
        }

    def advance(self, rows: Rows, low: int, high: int) -> Iterator[Rows]:
        """Yield the groups at the ends of the windows that end at low < step <= high."""
        self._forget()
        prepared = self.prepare(rows)
        pane = (prepared.step - 1) // self.window.pane
        cell, panes, keys = cells_of(pane, prepared.key)
        self.window.add(panes, keys, self.state_of(prepared, cell, len(panes)), len(self.keys))
        counts = [
            self._distinct(measure, number, prepared, pane, low, high) for number, measure in enumerate(self.measures)
        ]
        yield from self._ended(low, high, counts)

    def advance_sums(self, sums: Sequence[Sums], low: int, high: int) -> Iterator[Rows]:
        """Yield what `advance` does, from rows that are added up already."""
        self._forget()
        parts = [part.some((part.step > low) & (part.step <= high)) for part in sums]
        if parts:
            self.window.add(*panes_of(parts, self.keys, self.window.pane), len(self.keys))
        yield from self._ended(low, high, [None] * len(self.measures))

    def _ended(self, low: int, high: int, counts: Sequence[Callable[[Ints], Ints] | None]) -> Iterator[Rows]:
        """Yield the groups at the ends of windows.

        Args:
            counts: of each measure that needs pairs, what `_distinct` has returned.
        """
        for ends, state in self.window.advance(low, high):
            end, key = self._there(state, len(ends))
            found: dict[str, Column | Array] = {}
            for number, part in enumerate(counts):
                if part is not None:
                    measure = self.measures[number]
                    name, values = measure.aggregate.name, part(ends)[end, key]
                    found[name] = values if measure.distinct else values_of(measure, self.distinct[name][0], values)
            yield self.results(ends[end], key, {name: array[end, key] for name, array in state.items()}, found)

    def dump(self) -> Tree:
        distinct = {name: [of_keys(keys), of_window(window)] for name, (keys, window) in self.distinct.items()}
        found = {"keys": of_keys(self.keys), "window": of_window(self.window), "distinct": distinct}
        return found | self._texts() | {"look_at": self.look_at}

    def load(self, tree: Tree, like: Grouping | None = None) -> None:
        known = like.windows() if isinstance(like, SlidingGrouping) else {}
        self.keys = to_keys(tree["keys"], None if like is None else like.keys) or self.keys
        self.texts = to_keys(tree.get("texts")) or self.texts
        self.look_at = tree.get("look_at", _FEW)
        to_window(self.window, tree["window"], known.get(""))
        for name, (keys, window) in tree["distinct"].items():
            self.distinct[name] = (to_keys(keys) or self.distinct[name][0], self.distinct[name][1])
            to_window(self.distinct[name][1], window, known.get(name))

    def windows(self) -> dict[str, SlidingWindow]:
        return {"": self.window} | {name: window for name, (_, window) in self.distinct.items()}

    def _forget(self) -> None:
        """Forget groups, values and texts that are in no window any more, if these are most of what has a number.

        States have a cell for each number. Without this, they would grow with all groups that have ever come.
        """
        pairs = [keys for keys, _ in self.distinct.values()]
        known = len(self.keys) + sum(map(len, pairs)) + len(self.texts)
        if known < self.look_at:
            return
        groups = self.window.living() if self.groups else np.arange(len(self.keys))
        living = {name: window.living() for name, (_, window) in self.distinct.items()}
        texts = self._living_texts()
        left = len(groups) + sum(map(len, living.values())) + len(texts)
        self.look_at = max(_FEW, 2 * left)
        if 2 * left > known:
            return
        self.keys, moved = _kept(self.keys, groups)
        self.texts, text = _kept(self.texts, texts)
        values = dict.fromkeys(self._text_values(), text)
        self.window.renumber(moved, len(groups), values)
        for name, (keys, window) in self.distinct.items():
            kept, place = _kept(keys, living[name])
            of_groups = KeyNumbers(keys.kinds)
            whose = moved[groups_of(kept)].tolist()
            of_groups.add((group, value) for group, (_, value) in zip(whose, kept.values, strict=True))
            window.renumber(place, len(kept))
            self.distinct[name] = of_groups, window

    def _text_values(self) -> list[str]:
        """Return the names in states of values that are numbers of texts."""
        functions = [item.aggregate for item in self.measures if item.aggregate.kind is Kind.TEXT and not item.paired]
        return [f"{item.function[0].lower()}{item.name}.value" for item in functions if item.function != "COUNT"]

    def _living_texts(self) -> Ints:
        names = self._text_values()
        parts = [piece.state[name] for piece in self.window.history for name in names if name in piece.state]
        return np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)

    def _there(self, state: Mapping[str, Array], ends: int) -> tuple[Ints, Ints]:
        """Return which groups are there, as (place of the end, key), in the order in which rows go out.

        Those with rows are there, and always the one group of a query without GROUP BY.
        """
        count = state.get("+present.n")
        if not self.groups:
            return np.arange(ends), np.zeros(ends, dtype=np.int64)
        if count is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        order = self.keys.order()
        end, place = np.nonzero(count[:, order] > 0)
        return end, order[place]

    def _distinct(
        self, measure: Measure, number: int, prepared: Prepared, pane: Ints, low: int, high: int
    ) -> Callable[[Ints], Ints] | None:
        """Return a function from ends to results [ends, keys]; None if the measure needs no pairs.

        The results are counts of COUNT(DISTINCT ...), or which pair is chosen.
        """
        if not measure.paired:
            return None
        name = measure.aggregate.name
        keys, window = self.distinct[name]
        chosen, key = numbers_of_pairs(keys, *prepared.arguments[number][:2], prepared.key)
        cell, panes, cell_keys = cells_of(pane[chosen], key)
        rows = CellRows(cell, len(panes), prepared.place[chosen])
        window.add(panes, cell_keys, PRESENT.of_rows(rows, None), len(keys))
        whose = groups_of(keys)
        size, share = len(self.keys), measure.aggregate.choice
        rank = ranks_of(keys) if share is not None else whose
        found: list[tuple[Ints, Ints]] = []
        for ends, state in window.advance(low, high):
            present = state.get("+present.n")
            if share is not None:
                counts = np.zeros((len(ends), len(whose)), dtype=np.int64) if present is None else present
                found.append((ends, choose(whose, rank, counts, size, share)))
                continue
            counts = np.zeros((len(ends), size), dtype=np.int64)
            if present is not None and len(whose):
                np.add.at(counts.T, whose, (present > 0).astype(np.int64).T)
            found.append((ends, counts))
        ends = np.concatenate([item[0] for item in found]) if found else np.zeros(0, np.int64)
        results = np.concatenate([item[1] for item in found]) if found else np.zeros((0, size), np.int64)
        return lambda wanted: results[np.searchsorted(ends, wanted)]


@dataclass(slots=True)
class RunningGrouping(Grouping):
    """GROUP BY over [RANGE UNBOUNDED]: all rows so far.

    Args:
        period: steps between two instants.
    """

    period: int
    total: State = field(default_factory=dict)
    seen: dict[str, KeyNumbers] = field(default_factory=dict)

    def advance(self, rows: Rows, low: int, high: int) -> Iterator[Rows]:
        """Yield the groups at the instants low < step <= high."""
        prepared = self.prepare(rows)
        instants = np.arange(low // self.period + 1, high // self.period + 1) * self.period
        size = len(self.keys)
        which = np.searchsorted(instants, prepared.step)
        cell, at, keys = cells_of(which, prepared.key)
        state = spread_out(self.state_of(prepared, cell, len(at)), (at, keys), (len(instants) + 1, size))
        found = accumulate(grown(self.total, size), state, len(instants) + 1, size)
        self.total = pick(found, -1)
        states = pick(found, slice(0, len(instants)))
        count = states.get("+present.n", np.zeros((len(instants), size), dtype=np.int64))
        there = np.asarray(count > 0) if self.groups else np.ones((len(instants), size), dtype=np.bool_)
        end, key = np.nonzero(there)
        distinct = {
            measure.aggregate.name: self._distinct(measure, number, prepared, which, len(instants))[there]
            for number, measure in enumerate(self.measures)
            if measure.distinct
        }
        yield self.results(instants[end], key, {name: array[there] for name, array in states.items()}, distinct)

    def dump(self) -> Tree:
        seen = {name: of_keys(keys) for name, keys in self.seen.items()}
        return {"keys": of_keys(self.keys), "total": self.total, "seen": seen} | self._texts()

    def load(self, tree: Tree, like: Grouping | None = None) -> None:
        del like
        self.keys = to_keys(tree["keys"]) or self.keys
        self.texts = to_keys(tree.get("texts")) or self.texts
        self.total = tree["total"]
        self.seen = {name: to_keys(keys) or KeyNumbers(()) for name, keys in tree["seen"].items()}

    def _distinct(self, measure: Measure, number: int, prepared: Prepared, which: Ints, instants: int) -> Ints:
        """Return how many different arguments each group has had at each instant, int64[instants, keys]."""
        keys = self.seen.setdefault(measure.aggregate.name, pair_keys(measure))
        known = len(keys)
        chosen, found = numbers_of_pairs(keys, *prepared.arguments[number][:2], prepared.key)
        fresh, first = np.unique(found, return_index=True)
        first = first[fresh >= known]
        counts = np.zeros((instants + 1, len(self.keys)), dtype=np.int64)
        old = [values[0] for values in keys.values[:known]]
        np.add.at(counts[0], np.array(old, dtype=np.int64), 1)
        np.add.at(counts, (which[chosen][first], prepared.key[chosen][first]), 1)
        return np.cumsum(counts, axis=0)[:instants]


@dataclass(slots=True)
class InstantGrouping(Grouping):
    """GROUP BY over a relation that is given at each instant."""

    def at(self, rows: Rows, instants: Ints) -> Rows:
        """Return the groups at each instant."""
        self.keys, self.texts = KeyNumbers(self.keys.kinds), KeyNumbers((Kind.TEXT,))
        if not self.groups:
            self.keys.numbers([], 1)
        prepared = self.prepare(rows)
        which = np.searchsorted(instants, prepared.step)
        if not self.groups:
            cell, at, key, count = which, np.arange(len(instants)), np.zeros(len(instants), np.int64), len(instants)
        else:
            cell, at, key = cells_of(which, prepared.key)
            count = len(at)
        state = self.state_of(prepared, cell, count)
        apart: dict[str, Column | Array] = {}
        for number, measure in enumerate(self.measures):
            if measure.paired:
                apart[measure.aggregate.name] = self._distinct(measure, number, prepared, cell, count)
            elif measure.own is not None:
                apart[measure.aggregate.name] = _own(measure.own, prepared, number, cell, count)
        found = self.results(instants[at], key, state, apart)
        if not self.groups:
            return found
        present = state["+present.n"] > 0
        return found if present.all() else found.take(present)

    @staticmethod
    def _distinct(measure: Measure, number: int, prepared: Prepared, cell: Ints, cells: int) -> Column | Array:
        """Return how many different arguments each cell has, int64[cells], or the one that is chosen."""
        keys = pair_keys(measure)
        _, found = numbers_of_pairs(keys, *prepared.arguments[number][:2], cell)
        if measure.aggregate.choice is not None:
            group = groups_of(keys)
            counts = np.bincount(found, minlength=len(group))
            pair = choose(group, ranks_of(keys), counts, cells, measure.aggregate.choice)
            return values_of(measure, keys, pair)
        whose = np.array([keys.values[value][0] for value in np.unique(found).tolist()], dtype=np.int64)
        return np.bincount(whose, minlength=cells).astype(np.int64)


def _own(compute: OwnAggregate, prepared: Prepared, number: int, cell: Ints, cells: int) -> Column:
    """Return an aggregate of the user for each cell. Nothing is known of it where one of its values is an estimate."""
    argument, taken, _ = prepared.arguments[number]
    assert argument is not None  # noqa: S101 - such an aggregate has an argument
    chosen = argument.present() if taken is None else argument.present() & taken
    order = np.lexsort((prepared.place[chosen], cell[chosen]))
    values, whose = argument.values[chosen][order].astype(np.float64), cell[chosen][order]
    ends = np.searchsorted(whose, np.arange(cells + 1)).tolist()
    found = np.array([float(compute(values[begin:end])) for begin, end in pairwise(ends)], dtype=np.float64)
    valid = ~np.isnan(found)
    spread = None
    if argument.spread is not None:
        doubtful = np.bincount(cell, weights=argument.spread.low != argument.spread.high, minlength=cells) > 0
        low, high = np.where(doubtful, -np.inf, found), np.where(doubtful, np.inf, found)
        spread = Spread(low, high, np.where(doubtful, np.nan, 0.0))
    return Column(Kind.DOUBLE, np.where(valid, found, 0.0), None if valid.all() else valid, (), spread)
