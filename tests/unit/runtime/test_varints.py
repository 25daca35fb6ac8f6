"""Columns of varints are those that protobuf writes, of every length that is read here."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.varints import MAX_LENGTH, are_varints, read_varints


def varint(number: int) -> bytes:
    """What protobuf writes, behind the tag of one byte."""
    return Recovered(step=number).SerializeToString()[1:]


@pytest.mark.parametrize("length", range(1, MAX_LENGTH + 1))
def test_numbers_of_a_length_are_read_as_protobuf_writes_them(length: int) -> None:
    low, high = max(1, 1 << 7 * (length - 1)), (1 << 7 * length) - 1
    draw = np.random.default_rng(length)
    numbers = np.array([low, high, *draw.integers(low, high, 200, endpoint=True)])
    column = np.frombuffer(b"".join(map(varint, numbers.tolist())), np.uint8).reshape(-1, length)
    assert are_varints(column).all()
    assert (read_varints(column) == numbers).all()


def test_bytes_that_end_early_or_go_on_are_no_varint() -> None:
    rows = np.array([[0x81, 0x01], [0x01, 0x01], [0x81, 0x81]], dtype=np.uint8)
    assert are_varints(rows).tolist() == [True, False, False]
