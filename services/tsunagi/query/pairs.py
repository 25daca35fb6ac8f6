"""Pairs of a group and a value, with numbers: for aggregates that need to know how often a group has a value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tsunagi.query.plan import Measure
from tsunagi.query.quantiles import middles
from tsunagi.query.relations import KeyNumbers
from tsunagi.query.values import Column, Flags, Ints, Kind, ranks, texts


def ranks_of(keys: KeyNumbers) -> Ints:
    """Return the rank of each pair's argument: of texts their place in order, else the argument, a bucket, itself."""
    values = [pair[1] for pair in keys.values]
    if keys.kinds[1] is Kind.TEXT:
        found = texts([str(value) for value in values])
        return ranks(found.pool)[found.values]
    return np.array(values, dtype=np.int64)


def values_of(measure: Measure, keys: KeyNumbers, pair: Ints) -> Column:
    """Return the values of the pairs that were chosen; -1 is NULL."""
    kind, there = measure.aggregate.result_kind, pair >= 0
    if not len(keys):
        return Column(kind, np.zeros(len(pair), kind.dtype), there, ("",) if kind is Kind.TEXT else ())
    found = keys.columns(np.maximum(pair, 0))[1]
    if kind is Kind.TEXT:
        return replace(found, valid=None if there.all() else there)
    return Column(kind, np.where(there, middles(found.values), 0.0), None if there.all() else there)


def pair_keys(measure: Measure) -> KeyNumbers:
    """Return numbers for pairs of a group and an argument of COUNT(DISTINCT ...)."""
    assert measure.argument is not None  # noqa: S101 - COUNT(DISTINCT *) is refused
    return KeyNumbers((Kind.BIGINT, measure.argument.kind))


def numbers_of_pairs(keys: KeyNumbers, argument: Column | None, taken: Flags | None, group: Ints) -> tuple[Flags, Ints]:
    """Return (the rows that count, the numbers of their pairs of group and argument).

    Args:
        argument: the argument of each row; rows in which it is NULL do not count.
        taken: bool[n], the rows that count; None = all.
        group: int64[n], the group of each row.
    """
    assert argument is not None  # noqa: S101 - COUNT(DISTINCT *) is refused
    chosen = argument.present() if taken is None else argument.present() & taken
    pairs = [Column(Kind.BIGINT, group[chosen]), argument.take(chosen)]
    return chosen, keys.numbers(pairs, int(chosen.sum()))


def groups_of(keys: KeyNumbers) -> Ints:
    """Return the group of each pair, int64[pairs]."""
    return np.array([pair[0] for pair in keys.values], dtype=np.int64)
