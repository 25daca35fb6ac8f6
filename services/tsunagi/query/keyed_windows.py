"""Windows over the tuples of each key, at a cost that does not grow with the number of keys.

A call works on the keys that have new tuples, and on no others. What windows need of a key stands in common arrays, at
places that are kept by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tsunagi.query.plan import Window
from tsunagi.query.relations import KeyNumbers, Rows, stretches
from tsunagi.query.snapshots import Tree, of_column, of_keys, to_column, to_keys
from tsunagi.query.values import Array, Column, Flags, Ints, Kind

_ROOM = 64
"""Rows for which there is room at first. Arrays are put together anew when more than half of them is dead, and this."""
FAR = 1 << 40
"""More than the instants of a slot."""


class KeptRows:
    """Rows by key.

    Args:
        kinds: their columns.

    Attributes:
        seen: how many rows each key has had so far, by the key's number.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.seen: dict[int, int] = {}
        self._kinds = dict(kinds)
        self._places: dict[int, Ints] = {}
        self._alive = 0
        self._clear(_ROOM)

    def _clear(self, room: int) -> None:
        self._size = 0
        self._values: dict[str, Array] = {name: np.zeros(room, kind.dtype) for name, kind in self._kinds.items()}
        self._valid: dict[str, Flags] = {name: np.zeros(room, np.bool_) for name in self._kinds}
        texts = [name for name, kind in self._kinds.items() if kind is Kind.TEXT]
        self._words: dict[str, list[str]] = {name: [""] for name in texts}
        self._codes: dict[str, dict[str, int]] = {name: {"": 0} for name in texts}

    def of(self, keys: Sequence[int]) -> tuple[Ints, Ints]:
        """Return the rows of some keys: (place of the key among these, place of the row), key by key."""
        parts = [self._places.get(key, _NONE) for key in keys]
        whose = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return whose, np.concatenate(parts) if parts else _NONE

    def append(self, columns: Mapping[str, Column], rows: int) -> Ints:
        """Add rows that belong to no key yet; return their places."""
        end = self._size + rows
        for name in self._kinds:
            column = columns[name]
            if end > len(self._valid[name]):
                room = max(end, 2 * len(self._valid[name]))
                self._values[name] = np.resize(self._values[name], room)
                self._valid[name] = np.resize(self._valid[name], room)
            values = column.values
            if column.kind is Kind.TEXT:
                values = self._coded(name, column)
            self._values[name][self._size : end] = values
            self._valid[name][self._size : end] = True if column.valid is None else column.valid
        places = np.arange(self._size, end)
        self._size = end
        return places

    def _coded(self, name: str, column: Column) -> Ints:
        known, words = self._codes[name], self._words[name]
        used, place = np.unique(column.values, return_inverse=True)
        found = []
        for text in (column.pool[code] for code in used.tolist()):
            code = known.get(text)
            if code is None:
                code = known[text] = len(words)
                words.append(text)
            found.append(code)
        return np.array(found, dtype=np.int64)[place]

    def columns(self, places: Ints) -> dict[str, Column]:
        """Return the rows at these places. A text stands in a column's pool where it comes first."""
        found = {}
        for name, kind in self._kinds.items():
            values, valid = self._values[name][places], self._valid[name][places]
            pool: tuple[str, ...] = ()
            if kind is Kind.TEXT:
                used, first, place = np.unique(values, return_index=True, return_inverse=True)
                order = np.argsort(first)
                rank = np.empty(len(order), dtype=np.int64)
                rank[order] = np.arange(len(order))
                words = self._words[name]
                values, pool = rank[place], tuple(words[code] for code in used[order].tolist()) or ("",)
            found[name] = Column(kind, values, None if valid.all() else valid, pool)
        return found

    def put(self, key: int, places: Ints) -> None:
        """Let a key have the rows at these places, and no others."""
        self._alive += len(places) - len(self._places.get(key, _NONE))
        if len(places):
            self._places[key] = places
        else:
            self._places.pop(key, None)

    def tidy(self) -> None:
        """Forget the rows that no key has, if these are many."""
        if self._size <= 2 * self._alive + _ROOM:
            return
        keys = sorted(self._places)
        whose, places = self.of(keys)
        self._set(keys, whose, self.columns(places))

    def _set(self, keys: Sequence[int], whose: Ints, columns: Mapping[str, Column]) -> None:
        self._clear(max(_ROOM, 2 * len(whose)))
        places = self.append(columns, len(whose))
        ends = np.searchsorted(whose, np.arange(len(keys) + 1))
        self._places = {key: places[ends[at] : ends[at + 1]] for at, key in enumerate(keys)}
        self._alive = len(whose)

    def dump(self) -> Tree:
        """Return all rows as a tree, which depends on the rows alone."""
        keys = sorted(self._places)
        whose, places = self.of(keys)
        columns = {name: of_column(column) for name, column in self.columns(places).items()}
        seen = np.array(sorted(self.seen.items()), dtype=np.int64).reshape(-1, 2)
        return {"key": np.array(keys, dtype=np.int64)[whose], "seen": seen, "columns": columns}

    def load(self, tree: Tree) -> None:
        """Go on from what `dump` has returned."""
        keys, whose = np.unique(tree["key"], return_inverse=True)
        self.seen = dict(tree["seen"].tolist())
        self._set(keys.tolist(), whose, {name: to_column(column) for name, column in tree["columns"].items()})


_NONE: Ints = np.zeros(0, dtype=np.int64)
"""The places of no rows."""


class ByKey(NamedTuple):
    """The rows of some keys in the order of (key, number), those that were kept and new ones.

    Attributes:
        touched: the numbers of the keys.
        place: int64[n], where the row is.
        key: int64[n], the place of its key among `touched`.
        number: int64[n], the row's number among all of its key.
        step: int64[n], the instant of a new row; -1 of a row that was kept.
        begin, end: int64[n], the first and the last row of the row's key.
        target: int64[t], the new rows with which an instant of a key ends.
    """

    touched: list[int]
    place: Ints
    key: Ints
    number: Ints
    step: Ints
    begin: Ints
    end: Ints
    target: Ints

    @classmethod
    def of(cls, kept: KeptRows, key: Ints, step: Ints, columns: Mapping[str, Column]) -> ByKey:
        """Add new rows, by the numbers of their keys and their instants; return them behind those of these keys."""
        keys, local = np.unique(key, return_inverse=True)
        touched: list[int] = keys.tolist()
        whose, place = kept.of(touched)
        had = np.bincount(whose, minlength=len(touched))
        order = np.argsort(np.concatenate((whose, local)), kind="stable")
        both = np.concatenate((whose, local))[order]
        places = np.concatenate((place, kept.append(columns, len(key))))[order]
        steps = np.concatenate((np.full(len(place), -1), step))[order]
        begin, end = (np.searchsorted(both, both, side=side) for side in ("left", "right"))
        seen = np.array([kept.seen.get(item, 0) for item in touched], dtype=np.int64)
        number = np.arange(len(both)) - begin + (seen - had)[both]
        for item, last in zip(touched, (seen + np.bincount(local, minlength=len(touched))).tolist(), strict=True):
            kept.seen[item] = last
        ends = np.append((both[1:] != both[:-1]) | (steps[1:] != steps[:-1]), np.True_)
        return cls(touched, places, both, number, steps, begin, end - 1, np.flatnonzero(ends & (steps >= 0)))

    def keep(self, kept: KeptRows, needed: Flags) -> None:
        """Keep the rows that are needed, the last ones of each key."""
        ends = np.searchsorted(self.key, np.arange(len(self.touched) + 1)).tolist()
        counts = np.bincount(self.key, weights=needed, minlength=len(self.touched)).astype(np.int64).tolist()
        for at, key in enumerate(self.touched):
            kept.put(key, self.place[ends[at + 1] - counts[at] : ends[at + 1]])
        kept.tidy()


@dataclass(slots=True)
class KeyedWindow:
    """A window over the rows of each key.

    Args:
        keys: the names of the columns that are the key.
        time: the column of times, for [RANGE length]; "" = the window counts rows.
        kinds: the columns that are kept, `keys` and `time` among them.
    """

    window: Window
    keys: Sequence[str]
    time: str
    kinds: Mapping[str, Kind]
    known: KeyNumbers = field(init=False)
    kept: KeptRows = field(init=False)

    def __post_init__(self) -> None:
        self.known = KeyNumbers(tuple(self.kinds[name] for name in self.keys))
        self.kept = KeptRows(self.kinds)

    def follow(self, rows: Rows) -> Rows:
        """Return the window at each instant of each key that has new rows, of this key alone."""
        if not len(rows):
            return rows
        key = self.known.numbers([rows.columns[name] for name in self.keys], len(rows))
        by = ByKey.of(self.kept, key, rows.step, rows.columns)
        if self.time:
            target, whose, at, needed = _recent_rows(
                by, self.kept.columns(by.place)[self.time].values, self.window.length
            )
        else:
            target, whose, at, needed = _last_rows(by, self.window.length, self.window.slide)
        step = by.step[target][whose]
        in_time = np.argsort(step, kind="stable")
        found = Rows(step[in_time], self.kept.columns(by.place[at[in_time]]))
        by.keep(self.kept, needed)
        return found

    def dump(self) -> Tree:
        """Return what is kept."""
        return {"known": of_keys(self.known), "kept": self.kept.dump()}

    def load(self, tree: Tree) -> None:
        """Go on from what `dump` has returned."""
        self.known = to_keys(tree["known"]) or self.known
        self.kept.load(tree["kept"])


Found = tuple[Ints, Ints, Ints, Flags]
"""(The rows with which windows end; of each row of a window, which of these windows and which row; the rows that are
needed from now on)."""


def _last_rows(by: ByKey, length: int, slide: int) -> Found:
    """Return [ROWS length SLIDE slide]. The window moves when a slide is complete, and ends with its last row."""
    done = (by.number + 1) // slide * slide
    instant = by.key * FAR + by.step
    first = np.searchsorted(instant, instant[by.target])
    target = by.target[done[by.target] > by.number[first] // slide * slide]
    least = by.number[by.begin[target]]
    since = np.maximum(done[target] - length, least)
    whose, at = stretches(by.begin[target] + since - least, done[target] - since)
    return target, whose, at, by.number >= done[by.end] - length


def _recent_rows(by: ByKey, times: Ints, length: int) -> Found:
    """Return [RANGE length]: the rows that are later than the newest time of the key so far, less the length."""
    known, rank = np.unique(times, return_inverse=True)
    width = len(known) + 1
    newest = np.maximum.accumulate(by.key * width + rank)  # the rank of the newest time so far, behind the key
    since = np.searchsorted(known, known[newest - by.key * width] - length, side="right")  # the least rank inside
    target = by.target
    first = np.searchsorted(newest, (by.key * width + since)[target])
    whose, at = stretches(first, target - first + 1)
    inside = rank[at] >= since[target][whose]
    needed = (newest >= by.key * width + since[by.end]) | (np.arange(len(times)) == by.end)
    return target, whose[inside], at[inside], needed
