"""Contexts in parts: whole or not at all."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tests.simulation.checker import wholes
from tsunagi.runtime.messages import Context
from tsunagi.standby.parts import join, split


def context(size: int, offset: int = 40, owner: str = "n1") -> Context:
    data = random.Random(size).randbytes(size)
    return Context(version=1, slot=3, generation=9, epoch=2, owner=owner, offset=offset, operators={"0:x": data})


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000, 12_345])
@pytest.mark.parametrize("part", [1 << 20, 500, 37])
def test_what_is_split_is_joined_again(size: int, part: int) -> None:
    value = context(size).SerializeToString()
    records = split(value, part)
    assert (len(records) == 1) == (len(value) <= part)
    assert join(Context.FromString(record) for record in records) == context(size)


def test_a_context_of_just_the_size_of_a_record_is_one_record() -> None:
    value = context(99).SerializeToString()
    assert split(value, len(value)) == [value]
    assert len(split(value, len(value) - 1)) == 2


def test_one_that_says_it_is_the_only_part_is_read_like_any_other() -> None:
    whole = context(99)
    part = Context(epoch=2, owner="n1", offset=40, part=0, parts=1, piece=whole.SerializeToString())
    assert join([part]) == whole
    part.offset = 41  # than the context in it
    assert join([part]) is None


def test_parts_that_are_not_all_of_one_context_in_a_row_are_none() -> None:
    parts = [Context.FromString(record) for record in split(context(400).SerializeToString(), 100)]
    others = [Context.FromString(record) for record in split(context(400, 44, "n2").SerializeToString(), 100)]
    assert len(parts) == len(others) > 3
    for count in range(len(parts)):
        for some in combinations(parts, count):
            assert join(some) is None
    assert join([]) is None
    assert join([*parts[:2], *others[2:]]) is None
    assert join([parts[1], parts[0], *parts[2:]]) is None
    assert join([*parts, parts[-1]]) is None
    small = context(5)
    records = [*others[:2], *parts, small, parts[0], parts[2], *others]
    assert list(wholes(enumerate(records))) == [
        (2, context(400)),
        (2 + len(parts), small),
        (5 + len(parts), context(400, 44, "n2")),
    ]


def test_a_record_that_says_of_billions_of_parts_is_none_at_once() -> None:
    assert join([Context(owner="x", offset=5, part=0, parts=2**32 - 1, piece=b"x")]) is None
