"""Numbers of keys do not depend on how rows are cut into calls."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tsunagi.query.relations import KeyNumbers
from tsunagi.query.values import Column, Kind, column, texts

POOL = ("a", "b", "c", "d", "e")


def columns(number: int, rows: list[tuple[str | None, int]]) -> list[Column]:
    names = [text for text, _ in rows]
    first = texts(names)
    if None not in names:  # as the keys of a slot: all of them are in the pool from the start
        first = Column(Kind.TEXT, np.array([POOL.index(str(text)) for text in names]), None, POOL)
    return [first, column(Kind.BIGINT, [value for _, value in rows])][:number]


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_new_keys_are_numbered_as_they_come(number: int, *, null: bool) -> None:
    chance = random.Random(number)
    rows = [(chance.choice(["d", "b", "a", "c", None if null else "e"]), chance.randint(-2, 2)) for _ in range(60)]
    kinds = (Kind.TEXT, Kind.BIGINT)[:number]
    whole, single = KeyNumbers(kinds), KeyNumbers(kinds)
    found = whole.numbers(columns(number, rows), len(rows)).tolist()
    assert found == [int(single.numbers(columns(number, [row]), 1)[0]) for row in rows]
    assert whole.values == single.values == list(dict.fromkeys(row[:number] for row in rows))
