"""Rows at instants, and what is done to the rows of many instants at once: to join, compare and order them.

A relation is given by its rows at each instant. A row that stays stands there again at the next one. An instant is a
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tsunagi.query.values import Array, Column, Flags, Ints, Kind, aligned, both, concatenate, ranks
from tsunagi.query.values import column as column_of

_MOST_KEYS = 2**62
"""Most different pairs of keys that are packed into one whole number."""
_TABLE = 4
"""Codes up to so many times the number of rows are looked up in a table; greater ones are sorted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows, in the order of instants.

    Attributes:
        step: int64[n], ascending.
        columns: the columns by name, [n] each.
        taken: bool[n], the rows that are there by the values as they are; None = all. The others would be there if the
            truth behind an estimate were another.
        certain: bool[n], the rows that are there whatever the truth is; None = all.
    """

    step: Ints
    columns: Mapping[str, Column]
    taken: Flags | None = None
    certain: Flags | None = None

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Array | slice) -> Rows:
        """Return some of the rows, by a mask, by places or by a slice."""
        columns = {name: column.take(which) for name, column in self.columns.items()}
        return Rows(self.step[which], columns, _some(self.taken, which), _some(self.certain, which))

    def between(self, low: int, high: int) -> Rows:
        """Return the rows of the instants low < step <= high."""
        first, last = np.searchsorted(self.step, (low, high), side="right")
        return self if (first, last) == (0, len(self)) else self.take(slice(int(first), int(last)))

    def named(self, columns: Mapping[str, Column]) -> Rows:
        """Return the rows with other columns."""
        return replace(self, columns=columns)

    def kept(self, holds: Flags, certain: Flags | None, possible: Flags | None) -> Rows:
        """Return the rows that a condition keeps: those for which it holds, and those for which it possibly does."""
        if possible is None and self.taken is None:
            found = self if holds.all() else self.take(holds)
            return found if certain is None else replace(found, certain=both(found.certain, certain[holds]))
        possible = holds if possible is None else possible
        certain = holds if certain is None else certain
        taken, sure = both(self.taken, holds), both(self.certain, certain)
        return replace(self, taken=taken, certain=sure).take(possible)

    def only_taken(self) -> Rows:
        """Return the rows that are there by the values as they are."""
        return self if self.taken is None else replace(self.take(self.taken), taken=None)


def _some(flags: Flags | None, which: Array | slice) -> Flags | None:
    if flags is None:
        return None
    found = flags[which]
    return None if found.all() else found


def empty(columns: Mapping[str, Kind]) -> Rows:
    """Return no rows."""
    found = {
        name: Column(kind, np.zeros(0, kind.dtype), None, ("",) if kind is Kind.TEXT else ())
        for name, kind in columns.items()
    }
    return Rows(np.zeros(0, dtype=np.int64), found)


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, one after the other."""
    found = [part for part in parts if len(part)] or list(parts[:1])
    if len(found) == 1:
        return found[0]
    columns = {name: concatenate([part.columns[name] for part in found]) for name in found[0].columns}
    flags: list[Flags | None] = []
    for name in ("taken", "certain"):
        have = [getattr(part, name) for part in found]
        if all(item is None for item in have):
            flags.append(None)
        else:
            ones = [
                np.ones(len(part), dtype=np.bool_) if item is None else item
                for part, item in zip(found, have, strict=True)
            ]
            flags.append(np.concatenate(ones))
    return Rows(np.concatenate([part.step for part in found]), columns, flags[0], flags[1])


# ---- codes: rows that are equal have the same number


def codes_of(columns: Sequence[Column], rows: int) -> tuple[Ints, int]:
    """Return a number for each row, the same for equal rows (NULL equals NULL), and one more than the greatest."""
    code, size = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        values, count = _codes(column)
        if size * count >= 2**62:
            _, code = np.unique(code, return_inverse=True)
            size = int(code.max(initial=-1)) + 1
        code, size = code * count + values, size * count
    return code, size


def _codes(column: Column) -> tuple[Ints, int]:
    if column.kind is Kind.TEXT:
        found, count = column.values, len(column.pool)
    elif column.kind is Kind.BOOLEAN:
        found, count = column.values.astype(np.int64), 2
    else:
        values = column.values + 0.0 if column.kind is Kind.DOUBLE else column.values  # -0.0 equals 0.0
        low, width = 0, 0
        if column.kind is not Kind.DOUBLE and len(values):
            low = int(values.min())
            width = int(values.max()) - low + 1
        if 0 < width <= 2**31:
            found, count = values - low, width
        else:
            _, found = np.unique(values, return_inverse=True)
            count = int(found.max(initial=-1)) + 1
    if column.valid is None:
        return found, max(1, count)
    return np.where(column.valid, found, count), count + 1


def distinct(codes: Ints, size: int) -> tuple[Ints, Ints]:
    """Return (the different codes, ascending; the place of each row's code among them), as `numpy.unique` does.

    Args:
        size: one more than the greatest code may be.
    """
    if size > _TABLE * len(codes):
        found, place = np.unique(codes, return_inverse=True)
        return found, place
    there = np.zeros(size, dtype=np.bool_)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def common_codes(one: Sequence[Column], other: Sequence[Column], sizes: tuple[int, int]) -> tuple[Ints, Ints]:
    """Return numbers of the rows of two sides, the same for rows with equal values; -1 where a value is NULL."""
    if sizes[0] == sizes[1] and all(map(_same, one, other)):  # as often, if both are of the same sensors
        code, _ = codes_of([column.full(sizes[0]) for column in one], sizes[0])
        return code, code
    joined = [concatenate([left.full(sizes[0]), right.full(sizes[1])]) for left, right in zip(one, other, strict=True)]
    code, _ = codes_of(joined, sum(sizes))
    for column in joined:
        if column.valid is not None:
            code = np.where(column.valid, code, -1)
    return code[: sizes[0]], code[sizes[0] :]


def _same(one: Column, other: Column) -> bool:
    """Return whether two columns without NULL have the same values, row for row."""
    if one.valid is not None or other.valid is not None or one.kind is not other.kind:
        return False
    if one.kind is Kind.TEXT:
        one, other = aligned(one, other)
    return np.array_equal(one.values, other.values)


# ---- joins


def pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return the places (in left, in right) of all rows with equal codes, in the order of left; -1 equals nothing."""
    found = _partners(left, right)
    if found is not None:
        whose = np.flatnonzero(found >= 0)
        return whose, found[whose]
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first, last = np.searchsorted(ordered, left), np.searchsorted(ordered, left, side="right")
    count = np.where(left < 0, 0, last - first)
    whose, place = stretches(first, count)
    return whose, order[place]


def _partners(left: Ints, right: Ints) -> Ints | None:
    """Return the one place in `right` for each code of `left`, -1 if there is none.

    None is returned if a code is there twice in `right`, or if codes are so great that a table of them costs more than
    to sort.
    """
    size = int(max(left.max(initial=-1), right.max(initial=-1))) + 2
    if size > _TABLE * (len(left) + len(right)):
        return None
    table = np.full(size, -1, dtype=np.int64)  # the last cell is that of -1
    table[right] = np.arange(len(right))
    there = right >= 0
    if not np.array_equal(table[right[there]], np.flatnonzero(there)):
        return None
    table[-1] = -1
    return np.asarray(table[left])


def stretches(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return (i, place): for each i the `count[i]` places from first[i] on, one after the other."""
    whose = np.repeat(np.arange(len(count)), count)
    return whose, np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(whose))


def places_in_runs(numbers: Ints) -> Ints:
    """Return the place of each number among those equal to it, from 0; equal numbers are neighbours."""
    fresh = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=fresh[1:])
    begins = np.flatnonzero(fresh)
    return np.arange(len(numbers)) - np.repeat(begins, np.diff(begins, append=len(numbers)))


def paired(left: Rows, right: Rows, whose: Ints, partner: Ints) -> Rows:
    """Return pairs of rows as rows with the columns of both."""
    one = left if np.array_equal(whose, np.arange(len(left))) else left.take(whose)
    other = right.take(partner)
    taken, certain = both(one.taken, other.taken), both(one.certain, other.certain)
    return Rows(one.step, {**one.columns, **other.columns}, taken, certain)


def with_nothing(left: Rows, columns: Mapping[str, Column]) -> Rows:
    """Return rows without a partner: the columns of the other side are NULL."""
    nowhere = np.zeros(len(left), dtype=np.bool_)
    nulls = {
        name: Column(column.kind, np.zeros(len(left), column.kind.dtype), nowhere, column.pool)
        for name, column in columns.items()
    }
    return Rows(left.step, {**left.columns, **nulls}, left.taken, left.certain)


# ---- changes


def changes(before: Rows | None, rows: Rows, instants: Ints, *, gone: bool) -> Rows:
    """Return the rows that are new at each instant (ISTREAM), or gone at it (DSTREAM).

    Relations are bags: of rows that are equal, as many are new as there are more than at the instant before.

    Args:
        before: the rows at the instant before the first one; None = there were none.
        instants: int64[i], ascending: the instants at which `rows` stand.
    """
    count = len(instants)
    place = np.searchsorted(instants, rows.step) + 1
    if before is not None and len(before):
        rows = joined_rows([before, rows])
        place = np.concatenate((np.zeros(len(before), dtype=np.int64), place))
    code, _ = codes_of(list(rows.columns.values()), len(rows))
    _, code = np.unique(code, return_inverse=True)
    # One number for each (row, instant), in the order of rows: the neighbour of an instant is the one before it.
    key = code * (count + 2) + place
    order = np.argsort(key, kind="stable")
    found, first, many = np.unique(key[order], return_index=True, return_counts=True)
    other = found - 1 if not gone else found + 1
    at = np.minimum(np.searchsorted(found, other), max(len(found) - 1, 0))
    had = np.where(found[at] == other, many[at], 0) if len(found) else many
    more = np.maximum(many - had, 0)
    when = found % (count + 2)
    when = when + 1 if gone else when
    more = np.where((when >= 1) & (when <= count), more, 0)
    chosen = np.repeat(order[first], more)
    step = instants[np.repeat(when, more) - 1]
    result = rows.take(chosen)
    in_time = np.argsort(step, kind="stable")
    return replace(result.take(in_time), step=step[in_time])


def in_order(rows: Rows) -> Rows:
    """Return the rows in the order of (instant, columns): NULL comes first, texts are in the order of code points."""
    keys = _sort_keys(rows)
    if len(rows) < 2 or _sorted(keys):
        return rows
    order = _by_two(keys[0], keys[1]) if len(keys) > 1 else None
    return rows.take(np.lexsort(keys[::-1]) if order is None else order)


def _by_two(major: Array, minor: Array) -> Ints | None:
    """Return the places that put rows in the order of two keys; None if these leave ties, or are no whole numbers."""
    if minor.dtype.kind != "i":
        return None
    low, high = int(minor.min()), int(minor.max())
    span = high - low + 1
    if (int(major.max()) - int(major.min()) + 1) * span > _MOST_KEYS:
        return None
    key = (major - major.min()) * span + (minor - low)
    order = np.argsort(key, kind="stable")
    key = key[order]
    return None if (key[1:] == key[:-1]).any() else order


def lexicographic(rows: Rows) -> Ints:
    """Return the places that put rows in the order of `in_order`."""
    return np.lexsort(_sort_keys(rows)[::-1])


def _sort_keys(rows: Rows) -> list[Array]:
    keys: list[Array] = [rows.step]
    for column in rows.columns.values():
        values = ranks(column.pool)[column.values] if column.kind is Kind.TEXT else column.values
        if column.valid is not None:
            keys.append(column.valid)
        keys.append(values)
    return keys


def _sorted(keys: Sequence[Array]) -> bool:
    """Return whether rows ascend by the keys, the first of which counts most."""
    tied = np.ones(len(keys[0]) - 1, dtype=np.bool_)
    for key in keys:
        if (tied & (key[1:] < key[:-1])).any():
            return False
        tied &= key[1:] == key[:-1]
        if not tied.any():
            return True
    return True


def unique(rows: Rows) -> Rows:
    """Return the rows of each instant without repeats (SELECT DISTINCT)."""
    code, size = codes_of(list(rows.columns.values()), len(rows))
    if not len(rows):
        return rows
    _, code = np.unique(code, return_inverse=True)
    size = int(code.max()) + 1
    _, first = np.unique((rows.step - rows.step[0]) * size + code, return_index=True)
    return rows.take(np.sort(first))


# ---- keys


@dataclass(slots=True)
class KeyNumbers:
    """Numbers for combinations of values, which stay the same while rows come and go.

    Attributes:
        kinds: the kinds of the values.
        values: the combinations, by number.
    """

    kinds: tuple[Kind, ...]
    values: list[tuple[object, ...]] = field(default_factory=list)
    _number: dict[tuple[object, ...], int] = field(default_factory=dict)
    _of_code: tuple[tuple[str, ...], Ints] | None = None
    _columns: tuple[int, list[Column]] | None = None
    _order: Ints | None = None

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, columns: Sequence[Column], rows: int) -> Ints:
        """Return the number of each row's combination, int64[rows].

        New combinations get new numbers in the order in which they come, so the cut into calls does not change them.
        """
        if not columns:
            self._of([()])
            return np.zeros(rows, dtype=np.int64)
        if len(columns) == 1 and columns[0].kind is Kind.TEXT and columns[0].valid is None:
            return self._of_texts(columns[0])
        code, _ = codes_of(columns, rows)
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        order = np.argsort(first)
        combos = zip(*(column.take(first[order]).to_list() for column in columns), strict=True)
        found = np.empty(len(order), dtype=np.int64)
        found[order] = self._of(list(combos))
        return found[inverse]

    def add(self, combos: Iterable[tuple[object, ...]]) -> None:
        """Give new combinations numbers, in their order."""
        self._of(list(combos))

    def _of(self, combos: Sequence[tuple[object, ...]]) -> Ints:
        found = []
        for combo in combos:
            number = self._number.get(combo)
            if number is None:
                number = self._number[combo] = len(self.values)
                self.values.append(combo)
            found.append(number)
        return np.array(found, dtype=np.int64)

    def _of_texts(self, column: Column) -> Ints:
        """Return numbers of texts, by a table of the pool's codes that is kept as long as the pool is the same one."""
        if self._of_code is None or self._of_code[0] is not column.pool:
            self._of_code = column.pool, np.full(len(column.pool), -1, dtype=np.int64)
        table = self._of_code[1]
        found = table[column.values]
        if (found < 0).any():
            codes, first = np.unique(column.values[found < 0], return_index=True)
            codes = codes[np.argsort(first)]
            table[codes] = self._of([(column.pool[code],) for code in codes.tolist()])
            found = table[column.values]
        return found

    def order(self) -> Ints:
        """Return the numbers in the order of their values, as `in_order` puts rows: int64[keys]."""
        if self._order is None or len(self._order) != len(self.values):
            here = np.arange(len(self.values))
            rows = Rows(np.zeros(len(here), np.int64), dict(zip(map(str, here), self.columns(here), strict=False)))
            self._order = lexicographic(rows)
        return self._order

    def columns(self, numbers: Ints) -> list[Column]:
        """Return the values of combinations as columns."""
        if self._columns is None or self._columns[0] != len(self.values):
            parts = list(zip(*self.values, strict=True)) or [()] * len(self.kinds)
            made = [column_of(kind, list(part)) for kind, part in zip(self.kinds, parts, strict=True)]
            self._columns = len(self.values), made
        return [item.take(numbers) for item in self._columns[1]]
