"""Aggregate functions: states of cells, which can be put together in any order, and the results that they give.

A state is a mapping of names to arrays, whose last axis are the cells. What is missing in it is what no row gives, so
parts that few queries need (how far estimates may be off, infinities) cost nothing where they do not occur. Of a filter
that an estimate decides, rows have a share in what is certain, in what is taken, or only in what is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tsunagi.query.exact import add_up, halves, squares, to_doubles, two_square
from tsunagi.query.values import Array, Column, Flags, Floats, Ints, Kind, Spread, both

State = dict[str, Array]
"""Arrays by name. The first character of a name says how two states are put together: + adds, < and > take the lesser
and the greater one, and f and l take what came first and last (pairs: place, and value at the place)."""


QUANTILE = "APPROX_QUANTILE"
"""The aggregate function of quantiles."""
_NO_VARIANCE = 2.0**-100
"""A sum of squared deviations that is less than this share of the sum of squares counts as 0: it is rounding alone. So
equal values have the standard deviation 0."""


class CellRows(NamedTuple):
    """Rows that are put into cells.

    Attributes:
        cell: int64[n], the cell of each row.
        cells: number of cells.
        place: int64[n], where the row stands in the order of time; no two rows of a cell have the same.
        taken: bool[n], the rows that count; None = all.
        certain: bool[n], the rows that count whatever the truth is; None = all that are taken.
    """

    cell: Ints
    cells: int
    place: Ints
    taken: Flags | None = None
    certain: Flags | None = None


def blank(name: str, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of a state in which no cell has rows."""
    return np.full(shape, 0 if name.endswith(".value") else _floor(kind, name), dtype=kind)


def _floor(kind: np.dtype[Any], name: str) -> Any:  # noqa: ANN401 - a number of the array's type
    """Return what a cell without rows has."""
    if name[0] == "+":
        return 0
    least = name[0] == "<" or name[0] == "f"
    if kind.kind == "f":
        return np.inf if least else -np.inf
    return np.iinfo(np.int64).max if least else np.iinfo(np.int64).min


def join(earlier: Mapping[str, Array], later: Mapping[str, Array]) -> State:
    """Return the states of cells that hold the rows of both; names without a partner are as they are."""
    found = dict(earlier)
    for name, other in later.items():
        if name.endswith(".value"):
            continue
        own = earlier.get(name)
        if name[0] in "fl":
            value = f"{name[:-6]}.value"
            if own is None:
                found[name], found[value] = other, later[value]
            else:
                takes = other < own if name[0] == "f" else other > own
                found[name] = np.where(takes, other, own)
                found[value] = np.where(takes, later[value], earlier[value])
        elif own is None:
            found[name] = other
        else:
            found[name] = own + other if name[0] == "+" else (np.minimum if name[0] == "<" else np.maximum)(own, other)
    return found


ADDS: Mapping[str, np.ufunc] = MappingProxyType({"+": np.add, "<": np.minimum, ">": np.maximum})
"""How states are put together, by the first letter of their names; those of FIRST and LAST are in pairs."""


def folded(state: Mapping[str, Array], begins: Ints) -> State:
    """Return the states of runs of cells, each put together; FIRST and LAST are not among them.

    Args:
        begins: where each run begins; none is empty.
    """
    if not len(begins):
        return {name: array[:0] for name, array in state.items()}
    return {name: ADDS[name[0]].reduceat(array, begins) for name, array in state.items()}


def spread_out(state: Mapping[str, Array], at: Array | tuple[Array, ...], shape: tuple[int, ...]) -> State:
    """Return the state of more cells, of which those at the places are the given ones, and the others have no rows."""
    found: State = {}
    for name, array in state.items():
        full = blank(name, array.dtype, shape)
        full[at] = array
        found[name] = full
    return found


def pick(state: Mapping[str, Array], which: Any) -> State:  # noqa: ANN401 - any index of an array
    """Return the state of some cells."""
    return {name: array[which] for name, array in state.items()}


def sums_of(name: str, bins: Mapping[int, Ints]) -> State:
    """Return exact sums as part of a state."""
    return {f"+{name}:{bin_}": sums for bin_, sums in bins.items()}


def bins_of(state: Mapping[str, Array], name: str) -> dict[int, Ints]:
    """Return the exact sums of this name that a state has."""
    start = f"+{name}:"
    return {int(key[len(start) :]): array for key, array in state.items() if key.startswith(start)}


def _count(rows: CellRows, which: Flags | None) -> Ints:
    cell = rows.cell if which is None else rows.cell[which]
    return np.bincount(cell, minlength=rows.cells).astype(np.int64)


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate function of one query.

    Attributes:
        name: the name of its state, different for each aggregate of a query.
        function: COUNT, SUM, AVG, MIN, MAX, STDDEV, VARIANCE, FIRST, LAST or APPROX_QUANTILE.
        kind: the kind of its argument; None = COUNT(*).
        share: of APPROX_QUANTILE: which quantile, from 0 to 1.
    """

    name: str
    function: str
    kind: Kind | None
    share: float | None = None

    @property
    def choice(self) -> float | None:
        """Which of the values in their order the result is, as a share of their number; None = it is none of them.

        Such an aggregate needs to know how often each value occurs: a quantile, and the least or greatest text.
        """
        if self.kind is Kind.TEXT and self.function in ("MIN", "MAX"):
            return float(self.function == "MAX")
        return self.share

    @property
    def result_kind(self) -> Kind:
        """The kind of the results."""
        if self.function == "COUNT":
            return Kind.BIGINT
        if self.function in ("AVG", "STDDEV", "VARIANCE", QUANTILE) or self.kind is None:
            return Kind.DOUBLE
        return self.kind

    def of_rows(self, rows: CellRows, argument: Column | None) -> State:
        """Return the state of each cell; rows in which the argument is NULL are left out."""
        size = len(rows.cell)
        present = None if argument is None or argument.valid is None else argument.full(size).valid
        taken = both(rows.taken, present)
        state = self._shares(rows, present)
        state[f"+{self.name}.n"] = _count(rows, taken)
        if argument is None or self.function == "COUNT":
            return state
        full = argument.full(size)
        values = full.values if taken is None else full.values[taken]
        cell = rows.cell if taken is None else rows.cell[taken]
        if self.choice is not None:
            pass  # the states only say how many values there are, and whether one is an estimate
        elif self.function in ("SUM", "AVG", "STDDEV", "VARIANCE"):
            self._add_sums(state, values, cell, rows.cells)
        elif self.function in ("MIN", "MAX"):
            closed = self._closed(full, rows, present)
            state[self._extreme("x")] = self._extremes(rows, full.values, closed if taken is None else closed & taken)
        else:
            self._add_end(state, values, cell, rows.place if taken is None else rows.place[taken], rows.cells)
        if full.spread is not None or rows.certain is not None:
            self._add_spread(state, full, rows, present)
        return state

    def _shares(self, rows: CellRows, present: Flags | None) -> State:
        """Return how many rows are certain, and how many are possible, where that differs from those taken."""
        if rows.certain is None:
            return {}
        possible, certain = _count(rows, present), _count(rows, both(rows.certain, present))
        taken = _count(rows, both(rows.taken, present))
        return {f"+{self.name}.doubtful": taken - certain, f"+{self.name}.more": possible - taken}

    def _add_sums(self, state: State, values: Array, cell: Ints, cells: int) -> None:
        if self.kind is Kind.BIGINT and self.function == "SUM":
            # In two halves, so that no sum of fewer than 2^31 values is too great.
            for name, part in (("high", values >> 32), ("low", values & 0xFFFF_FFFF)):
                total = np.bincount(cell, weights=part.astype(np.float64), minlength=cells)
                state[f"+{self.name}.{name}"] = np.rint(total).astype(np.int64)
            return
        floats = values.astype(np.float64)
        state |= sums_of(f"{self.name}.sum", add_up(floats, cell, cells))
        if self.function in ("STDDEV", "VARIANCE"):
            state |= sums_of(f"{self.name}.square", squares(floats, cell, cells))

    def _closed(self, full: Column, rows: CellRows, present: Flags | None) -> Flags:
        """Return the rows that are there whatever the truth is, and whose values are measured: bool[n]."""
        here = np.ones(len(full), dtype=np.bool_) if present is None else present
        here = here if rows.certain is None else here & rows.certain
        return here if full.spread is None else here & (full.spread.low == full.spread.high)

    def _extreme(self, part: str) -> str:
        return f"{'<' if self.function == 'MIN' else '>'}{self.name}.{part}"

    def _extremes(self, rows: CellRows, values: Array, which: Flags) -> Array:
        """Return the least or the greatest value of each cell, of some rows."""
        found = blank(self._extreme("x"), values.dtype, (rows.cells,))
        (np.minimum if self.function == "MIN" else np.maximum).at(found, rows.cell[which], values[which])
        return found

    def _add_end(self, state: State, values: Array, cell: Ints, place: Ints, cells: int) -> None:
        first = self.function == "FIRST"
        order = np.lexsort((place, cell))
        cell, place, values = cell[order], place[order], values[order]
        chosen = np.ones(len(cell), dtype=np.bool_)
        if first:
            chosen[1:] = cell[1:] != cell[:-1]
        else:
            chosen[:-1] = cell[1:] != cell[:-1]
        sign = "f" if first else "l"
        at = cell[chosen]
        state |= spread_out(
            {f"{sign}{self.name}.place": place[chosen], f"{sign}{self.name}.value": values[chosen]}, at, (cells,)
        )

    def _add_spread(self, state: State, full: Column, rows: CellRows, present: Flags | None) -> None:
        """Add how far the result may be from the truth (see `_spread`): only rows that are not closed count here."""
        closed = self._closed(full, rows, present)
        here = np.ones(len(full), dtype=np.bool_) if present is None else present
        open_ = here & ~closed
        if not open_.any():
            return
        low, high = full.ends()
        taken = here if rows.taken is None else here & rows.taken
        certain = taken if rows.certain is None else here & rows.certain
        state[f"+{self.name}.open"] = _count(rows, open_)
        if self.choice is not None:
            return
        if self.function in ("MIN", "MAX"):
            outer, inner = (low, high) if self.function == "MIN" else (high, low)
            for name, ends, which in (
                ("taken", full.values, open_ & taken),
                ("all", outer, open_),
                ("sure", inner, open_ & certain),
            ):
                state[self._extreme(name)] = self._extremes(rows, ends, which)
        elif self.function in ("SUM", "AVG"):
            values = full.values.astype(np.float64)
            # A certain row may be off by its own spread; a doubtful one may as well be absent, or there.
            lower = np.where(certain, low - values, np.minimum(low, 0.0) - np.where(taken, values, 0.0))
            upper = np.where(certain, high - values, np.maximum(high, 0.0) - np.where(taken, values, 0.0))
            sd = np.where(certain, np.float64(0) if full.spread is None else full.spread.sd, np.nan)
            for name, parts in (("below", -lower), ("above", upper), ("sd", sd)):
                state |= sums_of(f"{self.name}.{name}", add_up(parts[open_], rows.cell[open_], rows.cells))

    # ---- results

    def result(self, state: Mapping[str, Array], shape: tuple[int, ...]) -> Column:
        """Return the results of cells; a cell without a value gives NULL, and COUNT gives 0."""
        count = state.get(f"+{self.name}.n")
        count = np.zeros(shape, dtype=np.int64) if count is None else count
        if self.function == "COUNT":
            return Column(Kind.BIGINT, count, None, (), self._count_spread(state, count))
        valid = count > 0
        if self.function in ("STDDEV", "VARIANCE"):
            valid = count > 1
            values = self._variance(state, count, shape)
            values = np.sqrt(values) if self.function == "STDDEV" else values
        elif self.function == "AVG":
            with np.errstate(all="ignore"):
                values = to_doubles(bins_of(state, f"{self.name}.sum"), shape)[0] / count
        elif self.function == "SUM":
            values, fits = self._sum(state, shape)
            valid = valid & fits
        elif self.function in ("MIN", "MAX"):
            values = self._best(state, ("x", "taken"), shape)
        else:
            name = f"{self.function[0].lower()}{self.name}.value"
            values = state.get(name, np.zeros(shape, dtype=self.result_kind.dtype))
        kind = self.result_kind
        if kind is Kind.DOUBLE:
            valid = valid & ~np.isnan(values)  # of infinities that contradict each other
        values = np.where(valid, values, kind.dtype.type(0)).astype(kind.dtype)
        spread = self._spread(state, values, count, shape)
        return Column(kind, values, None if valid.all() else valid, (), spread)

    def chosen(self, state: Mapping[str, Array], found: Column) -> Column:
        """Return the results of an aggregate that chooses a value, with what is known of them."""
        count = state.get(f"+{self.name}.n", np.zeros(len(found), dtype=np.int64))
        return replace(found, spread=self._spread(state, found.values, count, (len(found),)))

    def _sum(self, state: Mapping[str, Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
        if self.kind is not Kind.BIGINT:
            return to_doubles(bins_of(state, f"{self.name}.sum"), shape)[0], np.ones(shape, dtype=np.bool_)
        zero = np.zeros(shape, dtype=np.int64)
        high, low = state.get(f"+{self.name}.high", zero), state.get(f"+{self.name}.low", zero)
        high = high + (low >> 32)
        fits = (high >= -(2**31)) & (high < 2**31)
        return (high << 32) + (low & 0xFFFF_FFFF), fits

    def _variance(self, state: Mapping[str, Array], count: Ints, shape: tuple[int, ...]) -> Floats:
        """Return the sample variance; both sums have twice the digits of a double, so their difference has digits."""
        total, rest = to_doubles(bins_of(state, f"{self.name}.sum"), shape)
        square, square_rest = to_doubles(bins_of(state, f"{self.name}.square"), shape)
        with np.errstate(all="ignore"):
            product, error = two_square(total)
            error = error + 2 * total * rest
            quotient = product / count
            head, tail = halves(quotient)
            n = count.astype(np.float64)
            back, back_tail = head * n, tail * n  # exact: n has fewer than 26 digits
            quotient_rest = ((product - back) - back_tail + error) / n
            found = (square - quotient) + (square_rest - quotient_rest)
            found = np.where(found > square * _NO_VARIANCE, found, 0.0)
            return np.asarray(found / (count - 1))

    def _count_spread(self, state: Mapping[str, Array], count: Ints) -> Spread | None:
        doubtful, more = state.get(f"+{self.name}.doubtful"), state.get(f"+{self.name}.more")
        if doubtful is None or more is None or not (doubtful.any() or more.any()):
            return None
        low, high = (count - doubtful).astype(np.float64), (count + more).astype(np.float64)
        return Spread(low, high, np.where(low == high, 0.0, np.nan))

    def _best(self, state: Mapping[str, Array], parts: tuple[str, str], shape: tuple[int, ...]) -> Array:
        """Return the least or the greatest of two parts of a state; without rows it is that of nothing."""
        found = []
        for part in parts:
            name = self._extreme(part)
            found.append(state[name] if name in state else blank(name, self.result_kind.dtype, shape))
        return np.asarray((np.minimum if self.function == "MIN" else np.maximum)(*found))

    def _spread(self, state: Mapping[str, Array], values: Array, count: Ints, shape: tuple[int, ...]) -> Spread | None:
        """Return between which ends the true result lies, where inputs are estimates.

        A sum is off by at most the sum of what its values are off by, and its standard deviation is at most the sum of
        theirs (the triangle inequality: nothing is assumed of how errors correlate). A mean is a sum divided by a
        count, which may be uncertain, too. A minimum lies between the least lower end of all rows and the least upper
        end of the certain ones; a maximum likewise. Of FIRST, LAST, STDDEV, VARIANCE and quantiles nothing is known
        once an input is an estimate.
        """
        open_ = state.get(f"+{self.name}.open")
        if open_ is None or not open_.any():
            return None
        exact = open_ == 0
        floats = values.astype(np.float64)
        low, high, sd = np.full(shape, -np.inf), np.full(shape, np.inf), np.full(shape, np.nan)
        with np.errstate(all="ignore"):
            if self.choice is not None:
                pass
            elif self.function in ("MIN", "MAX"):
                outer, inner = (self._best(state, ("x", part), shape).astype(np.float64) for part in ("all", "sure"))
                low, high = (outer, inner) if self.function == "MIN" else (inner, outer)
            elif self.function in ("SUM", "AVG"):
                below, above, sd = (
                    to_doubles(bins_of(state, f"{self.name}.{name}"), shape)[0] for name in ("below", "above", "sd")
                )
                total = to_doubles(bins_of(state, f"{self.name}.sum"), shape)[0] if self.function == "AVG" else floats
                low, high = total - below, total + above
                if self.function == "AVG":
                    low, high, sd = self._divided(state, low, high, sd, count)
        return Spread(np.where(exact, floats, low), np.where(exact, floats, high), np.where(exact, 0.0, sd))

    def _divided(
        self, state: Mapping[str, Array], low: Floats, high: Floats, sd: Floats, count: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """Return the ends and the standard deviation of a mean, from those of its sum."""
        doubts = self._count_spread(state, count)
        if doubts is None:
            return low / count, high / count, sd / count
        least, most = doubts.low, doubts.high
        known = least > 0
        return (
            np.where(known, np.minimum(low / least, low / most), -np.inf),
            np.where(known, np.maximum(high / least, high / most), np.inf),
            np.where(least == most, sd / count, np.nan),
        )


FUNCTIONS: dict[str, str] = {
    "COUNT": "COUNT",
    "SUM": "SUM",
    "AVG": "AVG",
    "MIN": "MIN",
    "MAX": "MAX",
    "STDDEV": "STDDEV",
    "STDDEV_SAMP": "STDDEV",
    "VARIANCE": "VARIANCE",
    "VAR_SAMP": "VARIANCE",
    "FIRST": "FIRST",
    "LAST": "LAST",
    QUANTILE: QUANTILE,
}
"""Aggregate functions by the names that a query may use."""
