"""Aggregates over sliding windows, at a cost for each row that does not grow with the window.

Rows are put together in panes (Li et al., "No pane, no gain", SIGMOD Record 2005), and panes in blocks. A window is the
end of its oldest block, some whole blocks, and the beginning of its newest block. The states of these three parts are
kept, so a result takes two joins however long the window is (van Herk, 1992; Gil and Werman, 1993). States are put
together exactly, so results do not depend on where blocks begin or how rows are cut into batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tsunagi.query.aggregates import ADDS, State, bins_of, blank, join, pick, spread_out, sums_of
from tsunagi.query.exact import of_cells, to_doubles
from tsunagi.query.values import Array, Ints

_CELLS = 32_768
"""Cells (panes x keys) that are worked on at once where that is possible: enough that numpy's calls cost little."""


class Stored(NamedTuple):
    """Where something is kept: the file, by its number, the place in it, the length in bytes, and its checksum."""

    file: int
    offset: int
    length: int
    checksum: int


@dataclass(slots=True)
class Piece:
    """Panes of some time, as cells in the order of (pane, key).

    Attributes:
        pane: int[cells], the panes, less `base`.
        key: int[cells].
        state: the cells' states; of a compact piece in narrow types, and with a double in the place of an exact sum.
        stored: where the piece is kept, if it is compact and somebody has put it away (`tsunagi.query.snapshots`).
    """

    pane: Array
    key: Array
    state: State
    base: int = 0
    stored: Stored | None = None

    @property
    def is_compact(self) -> bool:
        """Whether it is in narrow types; then nobody changes it any more."""
        return self.key.dtype == np.uint32

    @property
    def first(self) -> int:
        """The oldest pane."""
        return self.base + int(self.pane[0])

    @property
    def last(self) -> int:
        """The newest pane."""
        return self.base + int(self.pane[-1])

    def between(self, first: int, last: int) -> Piece:
        """Return the cells of the panes first <= pane < last; the piece returned is not compact."""
        range_ = np.iinfo(self.pane.dtype)
        ends = np.clip((first - self.base, last - self.base), range_.min, range_.max)
        low, high = np.searchsorted(self.pane, ends.astype(self.pane.dtype))  # of another type, all panes were copied
        part = slice(int(low), int(high))
        state: State = {}
        for name, array in self.state.items():
            if name[0] == "=":
                state |= sums_of(name[1:], of_cells(array[part]))
            else:
                state[name] = array[part].astype(np.int64) if array.dtype == np.uint8 else array[part]
        return Piece(self.base + self.pane[part].astype(np.int64), self.key[part].astype(np.int64), state)

    def compact(self) -> Piece:
        """Return the same cells in less memory: a row of one reading takes a fourth of it."""
        if self.is_compact or self.last - self.first >= 2**32:
            return self
        state: State = {}
        names = {name.partition(":")[0][1:] for name in self.state if ":" in name}
        for name, array in self.state.items():
            if ":" not in name:
                narrow = name[0] == "+" and array.min() >= 0 and array.max() <= np.iinfo(np.uint8).max
                state[name] = array.astype(np.uint8) if narrow else array
        for name in sorted(names):  # so that the same state is the same bytes in every process
            bins = bins_of(self.state, name)
            sums, rest = to_doubles(bins, (len(self.key),))
            if min(bins) < 0 or rest.any():  # infinities, or sums of more digits than a double has
                state |= sums_of(name, bins)
            else:
                state[f"={name}"] = sums
        pane = (self.base + self.pane - self.first).astype(np.uint32)
        return Piece(pane, self.key.astype(np.uint32), state, self.first)


@dataclass(slots=True)
class SlidingWindow:
    """The window [RANGE length SLIDE slide] over rows that have keys.

    Args:
        length, slide: in steps.

    Attributes:
        keys: number of keys so far; a key is a number below it.
        history: the panes that a window still needs, oldest first.
        blocks: the states of whole blocks, [keys], by the number of the block.
        head: the state of the newest block as far as it is complete, [keys].
        done: panes below this number are complete and taken in.
    """

    length: int
    slide: int
    keys: int = 0
    history: list[Piece] = field(default_factory=list)
    blocks: dict[int, State] = field(default_factory=dict)
    head: State = field(default_factory=dict)
    done: int | None = None
    _tail: tuple[int, int, State] | None = None
    _sub: int = 0

    @property
    def pane(self) -> int:
        """Steps in a pane."""
        return math.gcd(self.length, self.slide)

    @property
    def panes(self) -> int:
        """Panes in a window."""
        return self.length // self.pane

    def add(self, pane: Ints, key: Ints, state: State, keys: int) -> None:
        """Add cells; of each (pane, key) there is at most one, in this order, and none is of a pane taken in already.

        Args:
            keys: number of keys, these included.
        """
        self.keys = max(self.keys, keys)
        if not len(pane):
            return
        if self.history and self.history[-1].last >= pane[0]:  # a pane that was not complete has more rows
            last = self.history.pop()
            older = last.between(last.first, int(pane[0]))
            if len(older.pane):
                self.history.append(older)
            newer = last.between(int(pane[0]), last.last + 1)
            pane, key, state = joined_cells([newer, Piece(pane, key, state)])
        self.history.append(Piece(pane, key, state))

    def advance(self, low: int, high: int) -> Iterator[tuple[Ints, State]]:
        """Yield (ends of windows int64[e], their states [e, keys]) for the windows that end at low < step <= high."""
        first, last = low // self.pane, high // self.pane
        if self.done is None:
            self.done = first
        if self._choose_block():
            self._rebuild()
        at = max(self.done, first)
        while at < last:
            sub = self._sub
            block, offset = divmod(at, sub)
            stop = min(last, (block + 1) * sub)
            panes = self._dense(at, stop)
            prefix = accumulate(self._grown(self.head), panes, stop - at, self.keys)
            ends = np.arange(at + 1, stop + 1)
            due = ends % (self.slide // self.pane) == 0
            if due.any():
                yield ends[due] * self.pane, self._windows(block, offset, due, prefix)
            self.head = pick(prefix, -1)
            at = self.done = stop
            if stop == (block + 1) * sub:
                self.blocks[block] = self.head
                self.head = {}
                self.blocks.pop(block - self.panes // sub, None)
                self._tail = None
        self._forget()

    def living(self) -> Ints:
        """Return the keys that have cells in panes which windows still need, ascending."""
        parts = [piece.key for piece in self.history]
        return np.unique(np.concatenate(parts)).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)

    def renumber(self, moved: Ints, keys: int, values: Mapping[str, Ints] = MappingProxyType({})) -> None:
        """Give keys other numbers.

        Args:
            moved: the new number of each key that lives; they rise with the old ones.
            keys: how many keys there are then.
            values: the same of values that are numbers themselves, by their name in states.
        """
        history = []
        for piece in self.history:
            state = {name: values[name][array] if name in values else array for name, array in piece.state.items()}
            history.append(Piece(piece.pane, moved[piece.key].astype(piece.key.dtype), state, piece.base))
        self.restore(self.done, keys, history)

    def restore(self, done: int | None, keys: int, history: list[Piece], like: SlidingWindow | None = None) -> None:
        """Go on from the panes of another window of this kind.

        Args:
            like: a window with some of these pieces: blocks of the same pieces are not put together again.
        """
        self.done, self.keys, self.history = done, keys, history
        self._choose_block()
        self._rebuild(like)

    def _windows(self, block: int, offset: int, due: Array, prefix: State) -> State:
        count = self.panes // self._sub
        found = pick(prefix, due)
        middle: State = {}
        for number in range(block - count + 1, block):
            middle = join(middle, self._grown(self.blocks.get(number, {})))
        found = join(_rows_of(middle, int(due.sum())), found)
        tail = self._suffixes(block - count)
        places = offset + 1 + np.flatnonzero(due)
        return join(pick(tail, places), found)

    def _suffixes(self, block: int) -> State:
        """Return the states of the ends of a block that begin at each of its panes, [panes of a block + 1, keys]."""
        if self._tail is None or self._tail[:2] != (block, self.keys):
            sub = self._sub
            panes = self._dense(block * sub, (block + 1) * sub)
            backwards = accumulate({}, pick(panes, slice(None, None, -1)), sub, self.keys, backwards=True)
            self._tail = block, self.keys, pick(backwards, slice(None, None, -1))
        return self._tail[2]

    def _dense(self, first: int, last: int) -> State:
        """Return the states of the panes first <= pane < last, [panes, keys]."""
        found: State = {}
        for piece in self.history:
            if piece.last < first:
                continue
            if piece.first >= last:
                break
            part = piece.between(first, last)
            for name, array in part.state.items():
                if name not in found:
                    found[name] = blank(name, array.dtype, (last - first, self.keys))
                found[name][part.pane - first, part.key] = array  # each cell is in one piece only
        return found

    def _grown(self, state: Mapping[str, Array]) -> State:
        return grown(state, self.keys)

    def _choose_block(self) -> bool:
        """Choose how many panes a block has: a divisor of the window's, near its root, more if there are few keys.

        Returns:
            Whether it is another number than before: then the states of blocks must be made anew.
        """
        wanted = min(self.panes, max(math.isqrt(self.panes), _CELLS // max(1, self.keys)))
        sub = next(size for size in range(wanted, self.panes + 1) if self.panes % size == 0)
        if sub == self._sub:
            return False
        if self._sub and (sub > self._sub or 4 * sub > self._sub):
            return False  # what is kept fits the present size; to change it is worth it only if keys have become many
        self._sub = sub
        return True

    def _rebuild(self, like: SlidingWindow | None = None) -> None:
        """Make the states of blocks anew, from the panes that are kept."""
        self._tail, self.blocks, self.head = None, {}, {}
        if self.done is None or not self.history:
            return
        sub = self._sub
        last = self.done // sub
        for block in range(last - self.panes // sub + 1, last + 1):
            stop = min((block + 1) * sub, self.done)
            if like is not None and block < last and self._shares(like, block):
                self.blocks[block] = like.blocks[block]
            elif stop > block * sub:
                total = _total(self._dense(block * sub, stop))
                if block < last:
                    self.blocks[block] = total
                else:
                    self.head = total

    def _shares(self, like: SlidingWindow, block: int) -> bool:
        """Return whether another window has put together a block of the same pieces."""
        if like._sub != self._sub or like.keys > self.keys or block not in like.blocks:
            return False
        mine, others = self._pieces(block), like._pieces(block)
        return len(mine) == len(others) and all(one is other for one, other in zip(mine, others, strict=True))

    def _pieces(self, block: int) -> list[Piece]:
        first, last = block * self._sub, (block + 1) * self._sub
        return [piece for piece in self.history if piece.first < last and piece.last >= first]

    def _forget(self) -> None:
        """Drop the panes that no window needs any more, and put those away that are not needed soon."""
        block = (self.done or 0) // self._sub
        while self.history and self.history[0].last < (block - self.panes // self._sub) * self._sub:
            self.history.pop(0)
        self._put_away(block * self._sub)

    def _put_away(self, first: int) -> None:
        """Put the panes below `first`, those of whole blocks, into one compact piece for each block."""
        start = next((place for place, piece in enumerate(self.history) if not piece.is_compact), len(self.history))
        stop = next((place for place, piece in enumerate(self.history) if piece.last >= first), len(self.history))
        while start < stop:
            number = self.history[start].first // self._sub
            end = start + 1
            while end < stop and self.history[end].last // self._sub == number:
                end += 1
            some = self.history[start:end]
            self.history[start:end] = [(some[0] if len(some) == 1 else _chained(some)).compact()]
            start, stop = start + 1, stop - (end - start - 1)


def _chained(pieces: Sequence[Piece]) -> Piece:
    """Return pieces, none of which is compact or has panes of another one, as one."""
    names = dict.fromkeys(name for piece in pieces for name in piece.state)
    state: State = {}
    for name in names:
        kind = next(piece.state[name].dtype for piece in pieces if name in piece.state)
        parts = [piece.state.get(name, blank(name, kind, piece.pane.shape)) for piece in pieces]
        state[name] = np.concatenate(parts)
    pane = np.concatenate([piece.base + piece.pane for piece in pieces])
    return Piece(pane, np.concatenate([piece.key for piece in pieces]), state)


def grown(state: Mapping[str, Array], keys: int) -> State:
    """Return a state [..., keys] that has a cell for every key."""
    if not state:
        return {}
    size = next(iter(state.values())).shape[-1]
    return dict(state) if size == keys else spread_out(state, np.arange(size), (keys,))


def _rows_of(state: Mapping[str, Array], rows: int) -> State:
    return {name: np.broadcast_to(array, (rows, *array.shape)) for name, array in state.items()}


def _total(panes: Mapping[str, Array]) -> State:
    """Return the state of all panes [panes, keys] together, [keys]."""
    ends = {name: array for name, array in panes.items() if name[0] in "fl"}
    found = {name: ADDS[name[0]].reduce(array, axis=0) for name, array in panes.items() if name not in ends}
    last: State = {}
    for number in range(len(next(iter(ends.values()), ()))):
        last = join(last, pick(ends, number))
    return found | last


def accumulate(
    start: Mapping[str, Array], panes: Mapping[str, Array], count: int, keys: int, *, backwards: bool = False
) -> State:
    """Return the states after each pane, [panes, keys], of a start [keys] and panes [panes, keys].

    Args:
        backwards: the panes are in reverse order, each earlier than the one before, and one without rows goes in front.
    """
    if backwards:
        count += 1
        panes = {name: np.concatenate((blank(name, array.dtype, (1, keys)), array)) for name, array in panes.items()}
    names = dict.fromkeys([*start, *panes])
    found: State = {}
    pairs: list[str] = []
    for name in names:
        if name.endswith(".value"):
            continue
        if name[0] in "fl":
            pairs.append(name)
            continue
        array = panes.get(name)
        if array is None:
            found[name] = np.broadcast_to(start[name], (count, keys))
            continue
        add = ADDS[name[0]]
        total = add.accumulate(array, axis=0)
        if name in start:
            total = add(total, start[name])
        found[name] = total
    for name in pairs:
        value = f"{name[:-6]}.value"
        state: State = {key: start[key] for key in (name, value) if key in start}
        rows = []
        for number in range(count):
            pane = {key: panes[key][number] for key in (name, value) if key in panes}
            state = join(state, pane)
            rows.append(state)
        for key in (name, value):
            found[key] = np.stack([row[key] for row in rows])
    return found


def joined_cells(pieces: Sequence[Piece]) -> tuple[Ints, Ints, State]:
    """Return the cells of all pieces in the order of (pane, key), with one cell for each."""
    pane = np.concatenate([piece.pane for piece in pieces])
    key = np.concatenate([piece.key for piece in pieces])
    order = np.lexsort((key, pane))
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (pane[order][1:] != pane[order][:-1]) | (key[order][1:] != key[order][:-1])
    cell = np.empty(len(order), dtype=np.int64)
    cell[order] = np.cumsum(fresh) - 1
    count = int(fresh.sum())
    state: State = {}
    begin = 0
    for piece in pieces:
        end = begin + len(piece.pane)
        state = join(state, spread_out(piece.state, cell[begin:end], (count,)))
        begin = end
    return pane[order][fresh], key[order][fresh], state
