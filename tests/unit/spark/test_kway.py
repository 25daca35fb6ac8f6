from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tsunagi_spark import kway
from tsunagi_spark.kway import block_order, merge_runs

TWO: dict[str, Any] = {"time": np.zeros(2, int), "sensor": np.zeros(2, int)}
Rows = list[tuple[int, int]]
ROWS = st.lists(st.tuples(st.integers(-5, 40), st.integers(-3, 9)), max_size=40).map(sorted)
WIDE = st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(-(2**31), 2**31 - 1)), max_size=9).map(sorted)


def runs_of(runs: Sequence[Rows]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return runs as columns; `origin` tells run and place apart."""
    return [
        {
            "time": np.array([time for time, _ in rows], dtype=np.int64),
            "sensor": np.array([sensor for _, sensor in rows], dtype=np.int32),
            "origin": np.arange(len(rows), dtype=np.float64) + 1000 * number,
        }
        for number, rows in enumerate(runs)
    ]


def rows_of(table: Mapping[str, np.ndarray[Any, Any]]) -> list[tuple[int, int, float]]:
    return [tuple(row) for row in zip(*(column.tolist() for column in table.values()), strict=True)]


@pytest.mark.slow
@hypothesis_settings(max_examples=150, deadline=None)
@given(runs=st.lists(ROWS, min_size=1, max_size=6) | st.lists(WIDE, min_size=1, max_size=4), block=st.integers(1, 64))
def test_merged_as_a_heap_would(runs: list[Rows], block: int) -> None:
    columns = runs_of(runs)
    expected = heapq.merge(*(rows_of(run) for run in columns), key=lambda row: row[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kway, "BLOCK_ROWS", block)
        assert rows_of(merge_runs(columns)) == list(expected)


def test_columns_keep_their_types() -> None:
    runs: list[dict[str, Any]] = [
        {"step": np.array([1, 1, 3], dtype=np.uint64), "id": np.array([4, 5, 4], dtype=np.uint32), "q": np.arange(3.0)},
        {"step": np.array([1, 2], dtype=np.uint64), "id": np.array([2, 9], dtype=np.uint32), "q": np.arange(2.0)},
    ]
    merged = merge_runs(runs, major="step", minor="id")
    assert {name: column.dtype.str for name, column in merged.items()} == {"step": "<u8", "id": "<u4", "q": "<f8"}
    assert merged["step"].tolist() == [1, 1, 1, 2, 3]
    assert merged["id"].tolist() == [2, 4, 5, 9, 4]
    assert merged["q"].tolist() == [0, 0, 1, 1, 2]


def test_keys_that_do_not_fit_one_integer_are_ordered_as_well() -> None:
    major = np.array([2**62, -(2**62), 2**62, 0])
    minor = np.array([2**31 - 1, 0, -(2**31), 5], dtype=np.int32)
    assert block_order(major, minor).tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("runs", "word"),
    [
        ([], "found none"),
        (
            [{"time": np.zeros(2, int), "sensor": np.zeros(3, int)}],
            r"run 0: found columns {'time': 'int64\[2\]', 'sensor': 'int64\[3\]'}",
        ),
        ([TWO, {**TWO, "sensor": np.zeros(2, np.int8)}], "run 1: found columns .*int8.* expected one length"),
        ([{"time": np.zeros(2), "sensor": np.zeros(2, int)}], "column time: found float64, expected integers"),
    ],
)
def test_bad_input_is_named(runs, word) -> None:
    with pytest.raises(ValueError, match=word):
        merge_runs(runs)
