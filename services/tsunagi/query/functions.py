"""The functions of queries: the kind of their result, their values on columns, and how far the truth may be from them.

NULL in, NULL out, unless a function says otherwise. Where a result is no number (a division by zero, the root of a
negative number, a sum of BIGINT that does not fit) it is NULL: a reading must not end a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tsunagi.query.quantiles import buckets
from tsunagi.query.values import Array, Column, Flags, Floats, Kind, Spread, aligned, ranks, where

Compute = Callable[[Sequence[Column]], Column]
ResultKind = Callable[[Sequence[Kind]], Kind | None]
"""Returns the kind of the result for the kinds of the arguments; None = they cannot be used."""

_UNKNOWN = np.inf
"""End of the interval in which the truth lies, where nothing is known."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function.

    Attributes:
        expected: the arguments that it takes, for messages.
    """

    name: str
    result: ResultKind
    compute: Compute
    expected: str


BUCKET = "bucket"
"""The name of the function by which APPROX_QUANTILE counts values; no query can call it."""
_FUNCTIONS: dict[str, Function] = {}
"""All functions, by name."""


def function(name: str) -> Function:
    """Return a function by its name, or raise KeyError."""
    return _FUNCTIONS[name]


def function_names() -> list[str]:
    """Return the names of all functions that a query may call."""
    return sorted(name for name in _FUNCTIONS if name.isidentifier() and name.isupper())


def find(name: str) -> Function | None:
    """Return the function that a query calls by this name, in any case; None = there is none."""
    return _FUNCTIONS.get(name.upper())


def register(name: str, result: ResultKind, expected: str) -> Callable[[Compute], Compute]:
    """Return a decorator that makes a function known."""

    def add(compute: Compute) -> Compute:
        _FUNCTIONS[name] = Function(name, result, compute, expected)
        return compute

    return add


# ---- kinds


def numbers(least: int, most: int | None = None, kind: Kind | None = None) -> ResultKind:
    """Return a rule for so many numbers; without `kind` the result is BIGINT if all of them are."""

    def rule(kinds: Sequence[Kind]) -> Kind | None:
        if not least <= len(kinds) <= (least if most is None else most) or not all(item.numeric for item in kinds):
            return None
        return kind or (Kind.BIGINT if all(item is Kind.BIGINT for item in kinds) else Kind.DOUBLE)

    return rule


def exactly(result: Kind, *expected: Kind) -> ResultKind:
    """Return a rule for arguments of just these kinds."""
    return lambda kinds: result if tuple(kinds) == expected else None


def common(kinds: Sequence[Kind]) -> Kind | None:
    """Return the kind to which all of them can be brought; None = there is none."""
    if len(set(kinds)) == 1:
        return kinds[0]
    return Kind.DOUBLE if kinds and all(kind.numeric for kind in kinds) else None


def _alike(least: int, most: int, result: Kind | None = None) -> ResultKind:
    def rule(kinds: Sequence[Kind]) -> Kind | None:
        found = common(kinds) if least <= len(kinds) <= most else None
        return found and (result or found)

    return rule


# ---- help for the functions below


def valid_of(arguments: Sequence[Column], also: Array | None = None) -> Flags | None:
    """Return where no argument is NULL and `also` holds; None = everywhere."""
    found: Array | None = also
    for argument in arguments:
        if argument.valid is not None:
            found = argument.valid if found is None else found & argument.valid
    return None if found is None or bool(np.all(found)) else np.asarray(found, dtype=np.bool_)


def made(
    kind: Kind, values: Array, arguments: Sequence[Column], also: Array | None = None, spread: Spread | None = None
) -> Column:
    """Return a column with NULL where an argument is, or where `also` does not hold."""
    valid = valid_of(arguments, also)
    if valid is not None:
        values = np.where(valid, values, kind.dtype.type(0))
    return Column(kind, np.asarray(values, dtype=kind.dtype), valid, (), spread)


def _floats(argument: Column) -> Floats:
    return argument.values.astype(np.float64)


def _uncertain(arguments: Sequence[Column]) -> bool:
    return any(argument.spread is not None for argument in arguments)


def _no_sd(values: Array) -> Floats:
    return np.full(np.shape(values), np.nan)


def unknown(values: Array) -> Spread:
    """Return the spread of values of which nothing is known."""
    return Spread(np.full(np.shape(values), -_UNKNOWN), np.full(np.shape(values), _UNKNOWN), _no_sd(values))


def _monotone(name: str, compute: Callable[[Floats], Floats], kind: Kind = Kind.DOUBLE) -> None:
    """Register a function that never falls: the ends of the result are its values at the ends."""

    @register(name, numbers(1, kind=kind), "a number")
    def _(arguments: Sequence[Column]) -> Column:
        with np.errstate(all="ignore"):
            values = compute(_floats(arguments[0]))
            spread = None
            if arguments[0].spread is not None:
                low, high = (compute(end) for end in arguments[0].ends())
                spread = Spread(
                    np.where(np.isnan(low), -_UNKNOWN, low), np.where(np.isnan(high), _UNKNOWN, high), _no_sd(low)
                )
        return made(kind, values, arguments, ~np.isnan(values), spread)


def _plain(name: str, compute: Callable[..., Floats], count: int = 1) -> None:
    """Register a function of numbers that rises and falls: of the result of an estimate nothing is known."""

    @register(name, numbers(count, kind=Kind.DOUBLE), "a number" if count == 1 else f"{count} numbers")
    def _(arguments: Sequence[Column]) -> Column:
        with np.errstate(all="ignore"):
            values = compute(*map(_floats, arguments))
        spread = unknown(values) if _uncertain(arguments) else None
        return made(Kind.DOUBLE, values, arguments, np.isfinite(values), spread)


# ---- arithmetic


def _arithmetic(name: str, compute: Callable[[Array, Array], Array]) -> None:
    @register(name, numbers(2), "two numbers")
    def _(arguments: Sequence[Column]) -> Column:
        one, other = arguments
        with np.errstate(all="ignore"):
            if one.kind is Kind.BIGINT and other.kind is Kind.BIGINT:
                values = compute(one.values, other.values)
                fits = np.abs(compute(_floats(one), _floats(other))) < 2.0**63
                return made(Kind.BIGINT, values, arguments, None if bool(np.all(fits)) else fits)
            values = compute(_floats(one), _floats(other))
            spread = _ends_of(compute, one, other) if _uncertain(arguments) else None
        return made(Kind.DOUBLE, values, arguments, ~np.isnan(values), spread)


def _ends_of(compute: Callable[[Array, Array], Array], one: Column, other: Column) -> Spread:
    """Return the spread of +, - or *: its extremes are at the ends. If one side is measured, sd only gets a factor."""
    found = [compute(*pair) for pair in ((a, b) for a in one.ends() for b in other.ends())]
    found = [np.where(np.isnan(item), _UNKNOWN, item) for item in found]
    low, high = np.minimum.reduce(found), np.maximum.reduce(found)
    if one.spread is not None and other.spread is not None:
        return Spread(low, high, _no_sd(low))
    estimated, measured = (one, other) if one.spread is not None else (other, one)
    sd = estimated.spread.sd if estimated.spread is not None else np.zeros(())
    factor = np.abs(_floats(measured)) if compute is np.multiply else 1.0
    return Spread(low, high, np.broadcast_to(sd * factor, low.shape))


_arithmetic("+", np.add)
_arithmetic("-", np.subtract)
_arithmetic("*", np.multiply)


@register("/", numbers(2, kind=Kind.DOUBLE), "two numbers")
def _divide(arguments: Sequence[Column]) -> Column:
    one, other = arguments
    with np.errstate(all="ignore"):
        values = _floats(one) / _floats(other)
        spread = None
        if _uncertain(arguments):
            low, high = other.ends()
            inverse = Column(Kind.DOUBLE, 1 / _floats(other), None, (), Spread(1 / high, 1 / low, _no_sd(low)))
            if other.spread is None:
                inverse = inverse.bare()
            spread = _ends_of(np.multiply, one, inverse)
            zero = (low <= 0) & (high >= 0)
            spread = Spread(np.where(zero, -_UNKNOWN, spread.low), np.where(zero, _UNKNOWN, spread.high), spread.sd)
    return made(Kind.DOUBLE, values, arguments, (other.values != 0) & ~np.isnan(values), spread)


@register("%", numbers(2), "two numbers")
def _modulo(arguments: Sequence[Column]) -> Column:
    one, other = arguments
    whole = one.kind is Kind.BIGINT and other.kind is Kind.BIGINT
    with np.errstate(all="ignore"):
        values = np.fmod(one.values, other.values) if whole else np.fmod(_floats(one), _floats(other))
    spread = unknown(values) if _uncertain(arguments) else None
    valid = (other.values != 0) & (np.True_ if whole else ~np.isnan(values))
    return made(Kind.BIGINT if whole else Kind.DOUBLE, values, arguments, valid, spread)


@register("negate", numbers(1), "a number")
def _negate(arguments: Sequence[Column]) -> Column:
    (one,) = arguments
    spread = None if one.spread is None else Spread(-one.spread.high, -one.spread.low, one.spread.sd)
    return made(one.kind, -one.values, arguments, None, spread)


@register("ABS", numbers(1), "a number")
def _abs(arguments: Sequence[Column]) -> Column:
    (one,) = arguments
    spread = None
    if one.spread is not None:
        low, high = one.ends()
        least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
        spread = Spread(least, np.maximum(np.abs(low), np.abs(high)), _no_sd(low))
    return made(one.kind, np.abs(one.values), arguments, None, spread)


def _rounded(values: Floats) -> Floats:
    return np.asarray(np.copysign(np.floor(np.abs(values) + 0.5), values))


@register("ROUND", numbers(1, 2, kind=Kind.DOUBLE), "a number, and a number of digits")
def _round(arguments: Sequence[Column]) -> Column:
    with np.errstate(all="ignore"):
        scale = 10.0 ** _floats(arguments[1]) if len(arguments) == 2 else np.float64(1)
        values = _rounded(_floats(arguments[0]) * scale) / scale
        spread = None
        if arguments[0].spread is not None:
            low, high = arguments[0].ends()
            spread = Spread(_rounded(low * scale) / scale, _rounded(high * scale) / scale, _no_sd(low))
    return made(Kind.DOUBLE, values, arguments, ~np.isnan(values), spread)


@register("POWER", numbers(2, kind=Kind.DOUBLE), "two numbers")
def _power(arguments: Sequence[Column]) -> Column:
    one, other = arguments
    with np.errstate(all="ignore"):
        values = np.power(_floats(one), _floats(other))
        spread = None
        if _uncertain(arguments):
            spread = unknown(values)
            low, high = one.ends()
            if other.spread is None and other.constant and float(other.values) == 2.0:  # the usual case: a square
                square = _abs([one])
                low, high = square.ends()
                spread = Spread(low**2, high**2, _no_sd(low))
    return made(Kind.DOUBLE, values, arguments, np.isfinite(values), spread)


_monotone(BUCKET, buckets, Kind.BIGINT)
_monotone("FLOOR", np.floor)
_monotone("CEIL", np.ceil)
_monotone("SQRT", np.sqrt)
_monotone("EXP", np.exp)
_monotone("LN", lambda values: np.where(values > 0, np.log(values), np.nan))
_monotone("LOG10", lambda values: np.where(values > 0, np.log10(values), np.nan))
_monotone("SIGN", np.sign)
_monotone("ATAN", np.arctan)
_plain("SIN", np.sin)
_plain("COS", np.cos)
_plain("TAN", np.tan)
_plain("ATAN2", np.arctan2, 2)
_FUNCTIONS.update({"POW": _FUNCTIONS["POWER"], "CEILING": _FUNCTIONS["CEIL"], "MOD": _FUNCTIONS["%"]})


# ---- comparisons


def comparable(one: Column, other: Column) -> tuple[Array, Array]:
    """Return two columns as arrays that compare as their values do."""
    if one.kind is Kind.TEXT:
        one, other = aligned(one, other)
        rank = ranks(one.pool)
        return rank[one.values], rank[other.values]
    if one.kind is not other.kind and one.kind.numeric:
        return _floats(one), _floats(other)
    return one.values, other.values


def _comparison(name: str, compare: Callable[[Array, Array], Array]) -> None:
    @register(name, _alike(2, 2, Kind.BOOLEAN), "two values of one type")
    def _(arguments: Sequence[Column]) -> Column:
        one, other = arguments
        values = compare(*comparable(one, other))
        spread = None
        if _uncertain(arguments):
            low1, high1 = one.ends()
            low2, high2 = other.ends()
            if name in ("=", "<>"):
                same = (low1 == high1) & (low2 == high2) & (low1 == low2)
                apart = (high1 < low2) | (low1 > high2)
                sure, never = (same, apart) if name == "=" else (apart, same)
            elif name in (">", ">="):
                sure, never = compare(low1, high2), ~compare(high1, low2)
            else:
                sure, never = compare(high1, low2), ~compare(low1, high2)
            spread = Spread(sure.astype(np.float64), (~never).astype(np.float64), _no_sd(low1))
        return made(Kind.BOOLEAN, values, arguments, None, spread)


for _name, _compare in (
    ("=", np.equal),
    ("<>", np.not_equal),
    ("<", np.less),
    ("<=", np.less_equal),
    (">", np.greater),
    (">=", np.greater_equal),
):
    _comparison(_name, _compare)


# ---- logic: NULL is "not known"


def _logic(name: str, join: Callable[[Array, Array], Array]) -> None:
    """Register AND or OR; a false settles AND, and a true settles OR, whatever the other side is."""
    decides = name == "or"

    @register(name, exactly(Kind.BOOLEAN, Kind.BOOLEAN, Kind.BOOLEAN), "two conditions")
    def _(arguments: Sequence[Column]) -> Column:
        one, other = arguments
        values = join(one.values, other.values)
        valid = valid_of(arguments)
        if valid is not None:
            settled = (one.present() & (one.values == decides)) | (other.present() & (other.values == decides))
            valid = valid | settled
            values = np.where(valid, np.where(settled, decides, values), False)  # noqa: FBT003 - numpy's order
        spread = None
        if _uncertain(arguments):
            (low1, high1), (low2, high2) = one.ends(), other.ends()
            low, high = join(low1 > 0, low2 > 0), join(high1 > 0, high2 > 0)
            spread = Spread(low.astype(np.float64), high.astype(np.float64), _no_sd(low))
        valid = None if valid is None or bool(np.all(valid)) else valid
        return Column(Kind.BOOLEAN, np.asarray(values, dtype=np.bool_), valid, (), spread)


_logic("and", np.logical_and)
_logic("or", np.logical_or)


@register("not", exactly(Kind.BOOLEAN, Kind.BOOLEAN), "a condition")
def _not(arguments: Sequence[Column]) -> Column:
    (one,) = arguments
    spread = None if one.spread is None else Spread(1 - one.spread.high, 1 - one.spread.low, one.spread.sd)
    return made(Kind.BOOLEAN, ~one.values, arguments, None, spread)


@register("is null", lambda kinds: Kind.BOOLEAN if len(kinds) == 1 else None, "a value")
def _is_null(arguments: Sequence[Column]) -> Column:
    return Column(Kind.BOOLEAN, np.asarray(~arguments[0].present(), dtype=np.bool_))


# ---- choices


def converted(found: Column, kind: Kind) -> Column:
    """Return a column of numbers as another kind of numbers."""
    return found if found.kind is kind else replace(found, kind=kind, values=found.values.astype(kind.dtype))


def _case_kind(kinds: Sequence[Kind]) -> Kind | None:
    if len(kinds) < 3 or len(kinds) % 2 == 0 or any(kind is not Kind.BOOLEAN for kind in kinds[:-1:2]):
        return None
    return common([*kinds[1::2], kinds[-1]])


@register("case", _case_kind, "conditions and values of one type")
def _case(arguments: Sequence[Column]) -> Column:
    """Choose by the first condition that holds: (condition, value, ..., value otherwise)."""
    kind = common([*(item.kind for item in arguments[1::2]), arguments[-1].kind]) or arguments[-1].kind
    found = converted(arguments[-1], kind)
    for place in range(len(arguments) - 3, -1, -2):
        condition, value = arguments[place], converted(arguments[place + 1], kind)
        holds = condition.values & condition.present()
        chosen = where(holds, value, found)
        if condition.spread is not None:
            open_ = condition.spread.low != condition.spread.high
            (low1, high1), (low2, high2) = value.ends(), found.ends()
            low, high = (chosen.spread.low, chosen.spread.high) if chosen.spread else chosen.ends()
            low = np.where(open_, np.minimum(low1, low2), low)
            high = np.where(open_, np.maximum(high1, high2), high)
            sd = chosen.spread.sd if chosen.spread else np.zeros(low.shape)
            chosen = replace(chosen, spread=Spread(low, high, np.where(open_, np.nan, sd)))
        found = chosen
    return found


@register("COALESCE", _alike(1, 64), "values of one type")
def _coalesce(arguments: Sequence[Column]) -> Column:
    kind = common([item.kind for item in arguments]) or arguments[0].kind
    found = converted(arguments[-1], kind)
    for item in reversed(arguments[:-1]):
        found = where(item.present(), converted(item, kind), found)
    return found if found.valid is None or not bool(np.all(found.valid)) else replace(found, valid=None)


@register("NULLIF", _alike(2, 2), "two values of one type")
def _null_if(arguments: Sequence[Column]) -> Column:
    one, other = arguments
    left, right = comparable(one, other)
    differ = ~((left == right) & one.present() & other.present())
    kind = common([one.kind, other.kind]) or one.kind
    found = converted(one, kind)
    valid = found.present() & differ
    return replace(found, values=np.where(valid, found.values, kind.dtype.type(0)), valid=np.asarray(valid))


def _extreme(name: str, join: Callable[[Array, Array], Array]) -> None:
    """Register GREATEST or LEAST: a NULL is left out."""

    @register(name, _alike(1, 64), "values of one type")
    def _(arguments: Sequence[Column]) -> Column:
        kind = common([item.kind for item in arguments]) or arguments[0].kind
        found = converted(arguments[0], kind)
        for item in arguments[1:]:
            other = converted(item, kind)
            left, right = comparable(found, other)
            takes = (join(left, right) == left) & found.present() | ~other.present()
            chosen = where(takes, found, other)
            if chosen.spread is not None:
                (low1, high1), (low2, high2) = found.ends(), other.ends()
                both = found.present() & other.present()
                low = np.where(both, join(low1, low2), chosen.spread.low)
                high = np.where(both, join(high1, high2), chosen.spread.high)
                chosen = replace(chosen, spread=Spread(low, high, _no_sd(low)))
            found = chosen
        return found


_extreme("GREATEST", np.maximum)
_extreme("LEAST", np.minimum)
