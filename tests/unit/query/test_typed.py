"""Columns go through messages unchanged, their bytes depend on values alone, and damaged ones are refused."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.query.slow_blocks import blocks_of, to_message
from tsunagi.query import encoding, relations
from tsunagi.query.encoding import encode_rows
from tsunagi.query.relations import Rows, in_order, pairs
from tsunagi.query.typed import from_message, quality_of, rows_of
from tsunagi.query.values import Column, Kind, Spread, column
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import ResultBlock, TypedColumn
from tsunagi.runtime.wire import whole_numbers

VALUES = {
    Kind.DOUBLE: st.floats(allow_nan=False),
    Kind.BIGINT: st.integers(-(2**63), 2**63 - 1),
    Kind.BOOLEAN: st.booleans(),
    Kind.TEXT: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    Kind.TIMESTAMP: st.integers(0, 2**60),
}


@given(st.data(), st.sampled_from(sorted(VALUES, key=lambda kind: kind.value)))
def test_a_column_comes_back(data: st.DataObject, kind: Kind) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    message = TypedColumn.FromString(to_message("x", column(kind, values)).SerializeToString())
    assert from_message(message, len(values)).to_list() == values


def test_the_bytes_do_not_hang_on_the_pool_or_on_what_stands_under_a_null() -> None:
    one = Column(Kind.TEXT, np.array([2, 0, 2]), None, ("b", "unused", "a"))
    other = Column(Kind.TEXT, np.array([0, 1, 0]), np.ones(3, bool), ("a", "b"))
    assert to_message("x", one).SerializeToString() == to_message("x", other).SerializeToString()
    here = np.array([True, False])
    numbers = [Column(Kind.DOUBLE, np.array([1.0, under]), here) for under in (0.0, 7.0)]
    assert len({to_message("x", item).SerializeToString() for item in numbers}) == 1


def test_ends_come_back_and_a_measured_column_says_nothing_of_them() -> None:
    value = np.array([1.0, 2.0])
    wide = Column(Kind.DOUBLE, value, None, (), Spread(value - 1, np.array([2.0, np.inf]), np.array([0.5, np.nan])))
    found = from_message(to_message("x", wide), 2).spread
    assert found is not None
    assert found.high.tolist() == [2.0, math.inf]
    exact = Column(Kind.DOUBLE, value, None, (), Spread(value, value, np.zeros(2)))
    assert to_message("x", exact).SerializeToString() == to_message("x", exact.bare()).SerializeToString()


def test_rows_are_cut_into_blocks_by_instant_and_by_order_within() -> None:
    columns = {"site": column(Kind.TEXT, ["n", "s", None, "n", "n"]), "x": column(Kind.BIGINT, [1, 2, 3, 4, 5])}
    rows = Rows(np.array([7, 7, 7, 8, 8]), columns)
    blocks = [decode(ResultBlock, block.SerializeToString()) for block in blocks_of("q", rows, ["site"], 1000)]
    assert [(block.group, block.step, block.event_time_us, block.rows) for block in blocks] == [
        ("", 7, 7000, 1),
        ("n", 7, 7000, 1),
        ("s", 7, 7000, 1),
        ("n", 8, 8000, 2),
    ]
    assert rows_of(blocks[3]).columns["x"].to_list() == [4, 5]
    assert [block.rows for block in blocks_of("q", rows, [], 1000)] == [3, 2]
    assert list(blocks_of("q", rows.take(slice(0, 0)), ["site"], 1000)) == []


def test_a_row_says_how_it_is_known() -> None:
    value = np.array([1.0, 2.0, 3.0])
    width = np.array([0, 1, np.inf])
    spread = Spread(value - width, value + width, value)
    rows = Rows(np.array([1, 1, 1]), {"x": Column(Kind.DOUBLE, value, None, (), spread)})
    assert quality_of(rows) == ["exact", "bounded", "unbounded"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "FLOAT8"}, "column x: found kind 'FLOAT8'"),
        ({"kind": "INTERVAL"}, "column x: found kind 'INTERVAL'"),
        ({"value": b"1234"}, "column x: value: found 4 bytes, expected 8"),
        ({"valid": b"\1"}, "column x: valid: found 1 bytes, expected 2"),
        ({"low": bytes(8), "high": bytes(8), "sd": bytes(8)}, "column x: low: found 8 bytes, expected 16"),
        ({"value": np.array([0, 9], "<u4").tobytes()}, "column x: found text 9, expected less than 2"),
        ({"text": ["a", "a"]}, "column x: found a text twice"),
    ],
)
def test_a_damaged_column_is_refused(changes: dict[str, object], said: str) -> None:
    message = to_message("x", column(Kind.TEXT, ["a", "b"]))
    for name, value in changes.items():
        if name == "text":
            del message.text[:]
            message.text.extend(["a", "a"])
        else:
            setattr(message, name, value)
    with pytest.raises(UnusableError, match=said.replace("(", r"\(")):
        from_message(message, 2)


def test_a_block_with_a_column_twice_is_refused() -> None:
    message = to_message("x", column(Kind.BIGINT, [1]))
    with pytest.raises(UnusableError, match="a column stands twice"):
        rows_of(ResultBlock(rows=1, column=[message, message]))


@st.composite
def some_rows(draw: st.DrawFn) -> Rows:
    count = draw(st.integers(0, 12))
    columns = {}
    for place in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(VALUES, key=lambda kind: kind.value)))
        few = VALUES[kind] if kind is not Kind.TEXT else st.sampled_from(["", "a", "b", "a/b"])
        made = column(kind, draw(st.lists(st.none() | few, min_size=count, max_size=count)))
        if kind is Kind.DOUBLE and draw(st.booleans()):
            width = np.array(draw(st.lists(st.sampled_from([0.0, 0.0, 1.5]), min_size=count, max_size=count)))
            made = Column(kind, made.values, made.valid, (), Spread(made.values - width, made.values + width, width))
        columns[f"c{place}"] = made
    step = np.sort(np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=np.int64))
    return Rows(step, columns)


@given(some_rows(), st.integers(0, 2), st.sampled_from([0, 16]))
def test_blocks_are_encoded_as_protobuf_would(rows: Rows, within: int, few: int) -> None:
    """Whether one by one, as if there were few of them, or all together."""
    rows = in_order(rows)
    names = list(rows.columns)[:within]
    slow = [block.SerializeToString(deterministic=True) for block in blocks_of("q", rows, names, 1000)]
    with mock.patch.object(encoding, "_FEW", few):
        fast = list(encode_rows("q", rows, names, 1000))
    assert [block.value for block in fast] == slow
    assert [(block.group, block.step, block.rows) for block in fast] == [
        (block.group, block.step, block.rows) for block in map(ResultBlock.FromString, slow)
    ]
    assert [block.key for block in fast] == [f"q/{block.group}/{block.step}".encode() for block in fast]


def test_stretches_of_texts_that_share_a_checksum_are_told_apart() -> None:
    rows = Rows(np.arange(40), {"x": column(Kind.TEXT, [str(number % 7) for number in range(40)])})
    slow = [block.SerializeToString(deterministic=True) for block in blocks_of("q", rows, [], 1000)]
    with mock.patch.object(encoding, "_WEIGHTS", np.zeros(1024, dtype=np.uint64)):
        assert [block.value for block in encode_rows("q", rows, [], 1000)] == slow


@given(st.lists(st.tuples(*(st.sampled_from([0, 1, 127, 128, 2**40, 2**63 - 1, -1, -(2**63)]),) * 3), max_size=9))
def test_whole_numbers_are_encoded_as_protobuf_would(rows: list[tuple[int, int, int]]) -> None:
    names = ("step", "event_time_us", "appended_us")
    columns = {name: np.array([row[place] for row in rows], dtype=np.int64) for place, name in enumerate(names)}
    slow = [ResultBlock(step=row[0], event_time_us=row[1], appended_us=row[2]).SerializeToString() for row in rows]
    assert whole_numbers(ResultBlock, columns) == slow


@given(st.lists(st.integers(-1, 6), max_size=9), st.lists(st.integers(-1, 6), max_size=9), st.sampled_from([0, 4]))
def test_pairs_are_those_with_equal_codes(left: list[int], right: list[int], table: int) -> None:
    """Whether they are looked up in a table or sorted."""
    with mock.patch.object(relations, "_TABLE", table):
        whose, partner = pairs(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64))
    wanted = [(i, j) for i, one in enumerate(left) for j, other in enumerate(right) if one == other != -1]
    assert list(zip(whose.tolist(), partner.tolist(), strict=True)) == wanted
