"""Columns of varints are those that protobuf writes, of every length that is read and written here."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.varints import MAX_LENGTH, are_varints, lengths_of, read_varints, write_varints


def varint(number: int) -> bytes:
    """What protobuf writes, behind the tag of one byte."""
    return Recovered(step=number).SerializeToString()[1:]


@pytest.mark.parametrize("length", range(1, MAX_LENGTH + 1))
def test_numbers_of_a_length_are_written_and_read_as_protobuf_does(length: int) -> None:
    low, high = max(1, 1 << 7 * (length - 1)), (1 << 7 * length) - 1
    draw = np.random.default_rng(length)
    numbers = np.array([low, high, *draw.integers(low, high, 200, endpoint=True)])
    assert (lengths_of(numbers) == length).all()
    column = write_varints(numbers, length)
    assert [bytes(row) for row in column] == [varint(number) for number in numbers.tolist()]
    assert are_varints(column).all()
    assert (read_varints(column) == numbers).all()


def test_what_is_too_long_or_negative_has_a_length_beyond_the_most() -> None:
    assert (lengths_of(np.array([1 << 7 * MAX_LENGTH, (1 << 63) - 1, -1])) > MAX_LENGTH).all()
    assert lengths_of(np.array([0])).tolist() == [1]


def test_bytes_that_end_early_or_go_on_are_no_varint() -> None:
    rows = np.array([[0x81, 0x01], [0x01, 0x01], [0x81, 0x81]], dtype=np.uint8)
    assert are_varints(rows).tolist() == [True, False, False]
