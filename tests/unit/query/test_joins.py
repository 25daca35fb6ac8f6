from __future__ import annotations

import numpy as np
import pytest

from tsunagi.query.relations import common_codes, pairs, places_in_runs
from tsunagi.query.values import Column, Kind, column


def texts(values: list[str | None], *unused: str) -> Column:
    """Return a column of texts whose pool begins with texts that no row has."""
    made = column(Kind.TEXT, values)
    pool = (*unused, *made.pool)
    return Column(Kind.TEXT, made.values + len(unused), made.valid, pool)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        (["a", "b", "a"], ["a", "b", "a"]),
        (["a", "b", "c"], ["a", "c", "b"]),
        (["a", None, "c"], ["a", None, "c"]),
        (["a", "b", "c"], ["x", "y", "z"]),
    ],
)
def test_rows_with_equal_keys_are_partners_whether_or_not_the_sides_are_alike(
    left: list[str | None], right: list[str | None]
) -> None:
    steps = Column(Kind.BIGINT, np.array([1, 1, 2]))
    codes = common_codes([steps, texts(left, "u", "v")], [steps, texts(right)], (3, 3))
    whose, partner = pairs(*codes)
    expected = [
        (one, other)
        for one in range(3)
        for other in range(3)
        if left[one] is not None and left[one] == right[other] and steps.values[one] == steps.values[other]
    ]
    assert sorted(zip(whose.tolist(), partner.tolist(), strict=True)) == expected


def test_places_in_runs() -> None:
    assert places_in_runs(np.array([4, 4, 4, 7, 9, 9])).tolist() == [0, 1, 2, 0, 0, 1]
    assert places_in_runs(np.zeros(0, dtype=np.int64)).tolist() == []
