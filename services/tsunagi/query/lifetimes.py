"""Changes of a relation (ISTREAM, DSTREAM) from the lifetimes of its rows, at a cost that does not grow with windows.

A row of a window comes in at one instant and leaves it at another one. A pair of rows lives while both do. So a row of
a join is made once, when its younger half comes, however many instants it stays. To write down the relation at each
instant, and compare it with the one before, costs a row for each instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tsunagi.query.expressions import TRUE, Evaluation
from tsunagi.query.functions import Function
from tsunagi.query.plan import Join, QueryPlan, SourcePlan
from tsunagi.query.relations import Rows, codes_of, common_codes, joined_rows, paired, pairs
from tsunagi.query.snapshots import Tree, of_rows, to_rows
from tsunagi.query.values import Array, Ints


def has_lifetimes(plan: QueryPlan) -> bool:
    """Return whether a query gives changes of a join of windows whose rows come and go one by one."""
    if plan.streaming not in ("istream", "dstream") or plan.grouped or plan.distinct:
        return False
    if any(join.kind != "inner" for join in plan.joins):
        return False
    return all(source.window is not None and source.window.kind in ("now", "range") for source in plan.sources)


@dataclass(frozen=True, slots=True)
class Lived:
    """Rows with their lifetimes.

    Attributes:
        rows: the rows, in any order.
        begin, end: int64[n], a row is there at the instants begin <= instant < end.
    """

    rows: Rows
    begin: Ints
    end: Ints

    def take(self, which: Array | slice) -> Lived:
        """Return some of the rows: by a mask, by places or by a slice."""
        return Lived(self.rows.take(which), self.begin[which], self.end[which])

    def behind(self, step: int) -> Lived:
        """Return the rows that are there later than a step."""
        stays = self.end > step
        return self if stays.all() else self.take(stays)

    @staticmethod
    def together(parts: Sequence[Lived]) -> Lived:
        """Return the rows of all parts."""
        some = [part for part in parts if len(part.begin)] or list(parts[:1])
        if len(some) == 1:
            return some[0]
        begin, end = (np.concatenate([getattr(part, name) for part in some]) for name in ("begin", "end"))
        return Lived(joined_rows([part.rows for part in some]), begin, end)


@dataclass(slots=True)
class Living:
    """Rows that live, as pieces in the order of their ends: a piece is at least as large as all behind it.

    So rows that come cost little to put away, however many live, and those that end are at the beginnings of pieces.
    """

    pieces: list[Lived] = field(default_factory=list)

    def add(self, lived: Lived) -> None:
        """Take rows in."""
        order = np.argsort(lived.end, kind="stable")
        self.pieces.append(lived.take(order))
        while len(self.pieces) > 1 and len(self.pieces[-2].end) <= len(self.pieces[-1].end):
            both = Lived.together((self.pieces[-2], self.pieces[-1]))
            self.pieces[-2:] = [both.take(np.argsort(both.end, kind="stable"))]

    def ended(self, step: int) -> list[Lived]:
        """Drop the rows that are not there later than a step, and return them."""
        found, stays = [], []
        for piece in self.pieces:
            count = int(np.searchsorted(piece.end, step, side="right"))
            found += [piece.take(slice(0, count))] if count else []
            stays += [piece.take(slice(count, None)) if count else piece] if count < len(piece.end) else []
        self.pieces = stays
        return found


@dataclass(slots=True)
class Lifetimes:
    """The rows of a query that live, and its changes.

    Args:
        plan: a query for which `has_lifetimes` holds.
        project: returns rows with the columns of SELECT.

    Attributes:
        sources: the rows of each source that live or will, if there are several sources.
        joined: the same of the joins of the first sources, but of all of them.
        coming: the query's own rows that will live.
        living: those that do.
    """

    plan: QueryPlan
    functions: Mapping[str, Function]
    project: Callable[[Rows], Rows]
    sources: list[Lived | None] = field(default_factory=list)
    joined: list[Lived | None] = field(default_factory=list)
    coming: Lived | None = None
    living: Living = field(default_factory=Living)

    def __post_init__(self) -> None:
        self.sources = [None for _ in self.plan.sources]
        self.joined = [None for _ in self.plan.joins]

    def advance(self, came: Sequence[Rows], low: int, high: int) -> Rows:
        """Return the rows that are new at the instants low < step <= high (ISTREAM), or gone at them (DSTREAM).

        Args:
            came: the rows of each source of these steps, with its columns qualified.
        """
        plan = self.plan
        fresh = [self._lived(source, rows) for source, rows in zip(plan.sources, came, strict=True)]
        made = fresh[0]
        known = self.sources[0]
        if plan.joins:
            self.sources[0] = _all_of(known, made).behind(high)
        for place, join in enumerate(plan.joins):
            others = self.sources[place + 1]
            before = known if place == 0 else self.joined[place]
            if place:
                self.joined[place] = _all_of(before, made).behind(high)
            parts = [self._pair(join, made, _all_of(others, fresh[place + 1]))]
            if before is not None:
                parts.append(self._pair(join, before, fresh[place + 1]))
            self.sources[place + 1] = _all_of(others, fresh[place + 1]).behind(high)
            made = Lived.together(parts)
        made = self._kept(made)
        self.coming = _all_of(self.coming, replace(made, rows=self.project(made.rows)))
        begun = self.coming.begin <= high
        born, self.coming = self.coming.take(begun), self.coming.take(~begun)
        self.living.add(born)
        gone = Lived.together([born.take(slice(0, 0)), *self.living.ended(high)])
        return self._changes(born, gone, low, high)

    def _lived(self, source: SourcePlan, rows: Rows) -> Lived:
        """Return rows of a source with their lifetimes."""
        window, period = source.window, self.plan.period
        assert window is not None  # noqa: S101 - `has_lifetimes` has seen to that
        rows = rows.only_taken()
        step = rows.step
        if window.kind == "now":
            begin, end = np.where(step % period == 0, step, step + period), step + period
        else:
            begin, end = _ceil(step, window.slide), _ceil(step + window.length, window.slide)
            begin, end = _ceil(begin, period), _ceil(end, period)
        alive = begin < end
        found = Lived(replace(rows, certain=None), begin, end)
        return found if alive.all() else found.take(alive)

    def _pair(self, join: Join, left: Lived, right: Lived) -> Lived:
        one, other = (Evaluation(side.rows.columns, len(side.begin), self.functions) for side in (left, right))
        codes = common_codes(
            [one.evaluate(item) for item in join.left],
            [other.evaluate(item) for item in join.right],
            (len(left.begin), len(right.begin)),
        )
        whose, partner = pairs(*codes)
        begin = np.maximum(left.begin[whose], right.begin[partner])
        end = np.minimum(left.end[whose], right.end[partner])
        alive = begin < end
        whose, partner = whose[alive], partner[alive]
        found = Lived(paired(left.rows, right.rows, whose, partner), begin[alive], end[alive])
        if join.where == TRUE:
            return found
        return found.take(Evaluation(found.rows.columns, len(whose), self.functions).condition(join.where)[0])

    def _kept(self, made: Lived) -> Lived:
        if self.plan.where == TRUE:
            return made
        holds, _, _ = Evaluation(made.rows.columns, len(made.begin), self.functions).condition(self.plan.where)
        return made.take(holds)

    def _changes(self, born: Lived, gone: Lived, low: int, high: int) -> Rows:
        """Return the rows that come, or go, at the instants low < step <= high, and whose like do not do the opposite.

        Of rows that are equal, as many are new as there are more than at the instant before.
        """
        rows = joined_rows([born.rows, gone.rows])
        code, _ = codes_of(list(rows.columns.values()), len(rows))
        _, code = np.unique(code, return_inverse=True)
        key = code * (high - low + 1) + (np.concatenate((born.begin, gone.end)) - low)
        count = len(born.begin)
        if self.plan.streaming == "istream":
            rows, step, key, opposite = born.rows, born.begin, key[:count], key[count:]
        else:
            rows, step, key, opposite = gone.rows, gone.end, key[count:], key[:count]
        # Equal rows may have different ends of their bounds: which of them stays does not depend on how steps are cut.
        spreads = [column.spread for column in rows.columns.values() if column.spread is not None]
        ties = [part for spread in spreads for part in (spread.low, spread.high, spread.sd)]
        order = np.lexsort([*ties, key])
        key = key[order]
        against, many = np.unique(opposite, return_counts=True)
        first, last = np.searchsorted(key, key), np.searchsorted(key, key, side="right")
        at = np.minimum(np.searchsorted(against, key), max(len(against) - 1, 0))
        fewer = np.where(against[at] == key, many[at], 0) if len(against) else np.zeros(len(key), dtype=np.int64)
        chosen = order[np.arange(len(key)) - first < last - first - fewer]
        chosen = chosen[np.argsort(step[chosen], kind="stable")]
        return replace(rows.take(chosen), step=step[chosen])

    # ---- state

    def dump(self) -> Tree:
        """Return what is kept between two steps."""
        return [
            [_of_lived(item) for item in part]
            for part in (self.sources, self.joined, [self.coming], self.living.pieces)
        ]

    def load(self, tree: Tree) -> None:
        """Go on from what `dump` has returned."""
        self.sources, self.joined, (self.coming,), pieces = ([_to_lived(item) for item in part] for part in tree)
        self.living = Living([piece for piece in pieces if piece is not None])


def _ceil(step: Ints, unit: int) -> Ints:
    return -(-step // unit) * unit


def _all_of(known: Lived | None, fresh: Lived) -> Lived:
    return fresh if known is None else Lived.together([known, fresh])


def _of_lived(lived: Lived | None) -> Tree:
    return None if lived is None else [of_rows(lived.rows), lived.begin, lived.end]


def _to_lived(tree: Tree) -> Lived | None:
    rows = None if tree is None else to_rows(tree[0])
    return None if rows is None else Lived(rows, tree[1], tree[2])
