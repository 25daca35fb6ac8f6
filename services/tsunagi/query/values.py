"""Columns of typed values, which may be NULL and may be estimates.

Numbers are numpy arrays. A text is a code, its place in the column's pool of texts. So what is asked of texts is asked
once of each text in the pool. A column of estimates also says between which ends the truth lies (`Spread`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


_UNUSED = 4
"""A pool may hold this many texts for each row. Once it holds more, it drops the texts that no row uses."""
_FEW_TEXTS = 256
"""This many rows are added to the count before it is compared, so that small pools, which cost little, drop nothing."""


class Kind(Enum):
    """The types of values, by their SQL names."""

    DOUBLE = "DOUBLE"
    BIGINT = "BIGINT"
    BOOLEAN = "BOOLEAN"
    TEXT = "TEXT"
    TIMESTAMP = "TIMESTAMP"
    """Microseconds since 1970, UTC."""
    INTERVAL = "INTERVAL"
    """Microseconds; constants only."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the array that holds such values; of TEXT, that of the codes."""
        return _DTYPES[self]

    @property
    def numeric(self) -> bool:
        """Whether arithmetic takes such values."""
        return self in (Kind.DOUBLE, Kind.BIGINT)


_DTYPES: dict[Kind, np.dtype[Any]] = {
    Kind.DOUBLE: np.dtype("<f8"),
    Kind.BIGINT: np.dtype("<i8"),
    Kind.BOOLEAN: np.dtype("?"),
    Kind.TEXT: np.dtype("<i8"),
    Kind.TIMESTAMP: np.dtype("<i8"),
    Kind.INTERVAL: np.dtype("<i8"),
}
"""The types of the arrays that hold each kind of values."""
WIRE: Mapping[Kind, np.dtype[np.generic]] = {
    Kind.DOUBLE: np.dtype("<f8"),
    Kind.BIGINT: np.dtype("<i8"),
    Kind.TIMESTAMP: np.dtype("<i8"),
    Kind.BOOLEAN: np.dtype("u1"),
    Kind.TEXT: np.dtype("<u4"),
}
"""The types of numbers in messages, by kind; of TEXT, that of the places in `text`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the truth may be from the values of a column.

    Attributes:
        low, high: float64[n], the truth lies between them wherever every input lies within its own bound; infinite
            where nothing is known. Of a BOOLEAN: 0 or 1; (0, 1) means that the truth may be either.
        sd: float64[n], the standard deviation of the value is at most this, however errors correlate; NaN = not known.
    """

    low: Floats
    high: Floats
    sd: Floats

    def take(self, which: Array | slice) -> Spread:
        """Return some of the rows."""
        return Spread(self.low[which], self.high[which], self.sd[which])


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one type.

    Attributes:
        values: the values, [n] or, of a constant, []; of TEXT the codes. A NULL has the value 0.
        valid: bool[n], false where the value is NULL; None = no value is NULL.
        pool: of TEXT: the texts, each once, by code.
        spread: of estimates; None = all values are measured.
    """

    kind: Kind
    values: Array
    valid: Flags | None = None
    pool: tuple[str, ...] = ()
    spread: Spread | None = None

    def __post_init__(self) -> None:
        # NULL and spread may come from a constant; from here on they are as long as the values.
        shape = np.shape(self.values)
        if self.valid is not None and np.shape(self.valid) != shape:
            object.__setattr__(self, "valid", np.broadcast_to(self.valid, shape))
        if self.spread is not None and np.shape(self.spread.low) != shape:
            parts = (self.spread.low, self.spread.high, self.spread.sd)
            object.__setattr__(self, "spread", Spread(*(np.broadcast_to(part, shape) for part in parts)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def constant(self) -> bool:
        """Whether the column has one value for any number of rows."""
        return self.values.ndim == 0

    def take(self, which: Array | slice) -> Column:
        """Return some of the rows, by a mask, by places or by a slice."""
        if self.constant:
            return self
        valid = None if self.valid is None else self.valid[which]
        if valid is not None and valid.all():
            valid = None
        spread = None if self.spread is None else self.spread.take(which)
        return Column(self.kind, self.values[which], valid, self.pool, spread)

    def full(self, rows: int) -> Column:
        """Return the column with as many rows as this."""
        if not self.constant:
            return self
        valid = None if self.valid is None else np.full(rows, bool(self.valid))
        spread = self.spread
        if spread is not None:
            spread = Spread(*(np.broadcast_to(part, rows) for part in (spread.low, spread.high, spread.sd)))
        return Column(self.kind, np.broadcast_to(self.values, rows), valid, self.pool, spread)

    def present(self) -> Flags:
        """Return where the value is not NULL, [n] or []."""
        return np.ones(self.values.shape, dtype=np.bool_) if self.valid is None else self.valid

    def ends(self) -> tuple[Floats, Floats]:
        """Return between which ends the truth of each value lies, as numbers."""
        if self.spread is not None:
            return self.spread.low, self.spread.high
        values = self.values.astype(np.float64)
        return values, values

    def bare(self) -> Column:
        """Return the column without its spread."""
        return self if self.spread is None else replace(self, spread=None)

    def texts(self) -> list[str | None]:
        """Return the texts themselves; None where it is NULL."""
        found: list[str | None] = [self.pool[code] for code in self.values.tolist()] if self.pool else []
        if self.valid is not None:
            found = [text if here else None for text, here in zip(found or [None] * len(self), self.valid, strict=True)]
        return found

    def to_list(self) -> list[Any]:
        """Return the values as Python's own; None where it is NULL."""
        if self.kind is Kind.TEXT:
            return self.texts()
        found = self.values.tolist()
        if self.valid is not None:
            found = [value if here else None for value, here in zip(found, self.valid.tolist(), strict=True)]
        return list(found)


def constant(kind: Kind, value: object) -> Column:
    """Return a column with one value; None is NULL."""
    if value is None:
        return Column(kind, np.zeros((), kind.dtype), np.zeros((), np.bool_), ("",) if kind is Kind.TEXT else ())
    if kind is Kind.TEXT:
        return Column(kind, np.zeros((), np.int64), None, (str(value),))
    return Column(kind, np.asarray(value, dtype=kind.dtype))


def texts(values: Sequence[str | None]) -> Column:
    """Return a column of texts; None is NULL."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(text for text in values if text is not None))}
    found = np.array([codes.get(text, 0) if text is not None else 0 for text in values], dtype=np.int64)
    missing = np.array([text is None for text in values], dtype=np.bool_)
    return Column(Kind.TEXT, found, ~missing if missing.any() else None, tuple(codes) or ("",))


def column(kind: Kind, values: Sequence[Any]) -> Column:
    """Return a column of Python's values; None is NULL."""
    if kind is Kind.TEXT:
        return texts(list(values))
    missing = np.array([value is None for value in values], dtype=np.bool_)
    filled = [0 if value is None else value for value in values]
    return Column(kind, np.array(filled, dtype=kind.dtype), ~missing if missing.any() else None)


def repooled(found: Column, apply: Sequence[str]) -> Column:
    """Return a column of texts whose pool is replaced, text by text; texts that become equal get one code."""
    codes = {text: code for code, text in enumerate(dict.fromkeys(apply))}
    moved = np.array([codes[text] for text in apply], dtype=np.int64)
    return replace(found, values=moved[found.values], pool=tuple(codes))


def aligned(one: Column, other: Column) -> tuple[Column, Column]:
    """Return two columns of texts with the same pool."""
    if one.pool == other.pool:
        return one, other
    pool, moved = _common_pool(one.pool, other.pool)
    return replace(one, pool=pool), replace(other, pool=pool, values=moved[other.values])


@lru_cache(maxsize=64)
def _common_pool(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    """Return (one pool for both that begins with the first, the place in it of each text of the second)."""
    codes = {text: code for code, text in enumerate(one)}
    for text in other:
        codes.setdefault(text, len(codes))
    return tuple(codes), np.array([codes[text] for text in other], dtype=np.int64)


def both(one: Flags | None, other: Flags | None) -> Flags | None:
    """Return where both hold; None holds everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


@lru_cache(maxsize=64)
def ranks(pool: tuple[str, ...]) -> Ints:
    """Return the place of each text in the order of their code points."""
    order = sorted(range(len(pool)), key=pool.__getitem__)
    found = np.empty(len(pool), dtype=np.int64)
    found[order] = np.arange(len(pool))
    return found


def concatenate(parts: Sequence[Column]) -> Column:
    """Return the rows of all parts, one after the other; the parts are of one type and none is constant."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if first.kind is Kind.TEXT and all(part.pool == first.pool for part in parts):
        values, pool = np.concatenate([part.values for part in parts]), first.pool
    elif first.kind is Kind.TEXT:
        codes: dict[str, int] = {}
        moved = []
        for part in parts:
            for text in part.pool:
                codes.setdefault(text, len(codes))
            moved.append(np.array([codes[text] for text in part.pool] or [0], dtype=np.int64)[part.values])
        values, pool = _without_unused(np.concatenate(moved), tuple(codes) or ("",))
    else:
        values, pool = np.concatenate([part.values for part in parts]), ()
    valid = None
    if any(part.valid is not None for part in parts):
        valid = np.concatenate([part.present() for part in parts])
    spread = None
    if any(part.spread is not None for part in parts):
        spreads = [part.spread or _measured(part) for part in parts]
        spread = Spread(*(np.concatenate([getattr(item, name) for item in spreads]) for name in ("low", "high", "sd")))
    return Column(first.kind, values, valid, pool, spread)


def _without_unused(values: Ints, pool: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    """Return codes and a pool without the texts that no row has, if these are most: rows go, and new texts come."""
    if len(pool) <= _UNUSED * (len(values) + _FEW_TEXTS):
        return values, pool
    used, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), tuple(pool[code] for code in used.tolist()) or ("",)


def _measured(part: Column) -> Spread:
    low, high = part.ends()
    return Spread(low, high, np.zeros(len(part)))


def where(chosen: Flags, one: Column, other: Column) -> Column:
    """Return `one` where chosen and `other` elsewhere; both are of one type."""
    if one.kind is Kind.TEXT:
        one, other = aligned(one, other)
    values = np.where(chosen, one.values, other.values)
    valid = None
    if one.valid is not None or other.valid is not None:
        valid = np.where(chosen, one.present(), other.present())
    spread = None
    if one.spread is not None or other.spread is not None:
        (low1, high1), (low2, high2) = one.ends(), other.ends()
        sd1 = np.float64(0) if one.spread is None else one.spread.sd
        sd2 = np.float64(0) if other.spread is None else other.spread.sd
        spread = Spread(np.where(chosen, low1, low2), np.where(chosen, high1, high2), np.where(chosen, sd1, sd2))
    return Column(one.kind, values, valid, one.pool, spread)
