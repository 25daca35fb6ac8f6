from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tsunagi.runtime import columns
from tsunagi.runtime.messages import TupleBatch


@pytest.mark.slow
@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=1, min_side=0, max_side=50)))
def test_floats_come_back_bit_for_bit(values: np.ndarray) -> None:
    assert columns.floats(columns.pack_floats(values)).tobytes() == values.tobytes()


@pytest.mark.slow
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_sensors_come_back(ids: list[int]) -> None:
    assert columns.sensors(columns.pack_sensors(ids)).tolist() == ids


def test_columns_are_read_without_a_copy() -> None:
    data = columns.pack_floats([1.0, 2.0])
    view = columns.floats(data)
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert columns.octets(b"\x00\x03").tolist() == [0, 3]


def test_column_is_what_a_packed_field_is_on_the_wire() -> None:
    assert columns.pack_floats([1.0]) == b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    assert columns.pack_sensors([1, 256]) == b"\x01\x00\x00\x00\x00\x01\x00\x00"
    assert columns.pack_octets([1, 255]) == b"\x01\xff"


def test_big_endian_input_is_written_little_endian() -> None:
    assert columns.floats(columns.pack_floats(np.array([1.5, -2.0], dtype=">f8"))).tolist() == [1.5, -2.0]


def test_column_cut_short_is_refused() -> None:
    batch = TupleBatch(value=columns.pack_floats([1.0])[:-1])
    with pytest.raises(ValueError, match="multiple"):
        columns.floats(batch.value)


def test_named_arrays_come_back_with_type_and_shape() -> None:
    arrays = {
        "covariance": np.arange(6, dtype=np.float64).reshape(2, 3),
        "missing": np.array([True, False]),
        "steps": np.array([1, 2], dtype=">i8"),
        "scalar": np.array(3.5),
        "none": np.empty((0, 4)),
    }
    found = columns.unpack_arrays(columns.pack_arrays(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("<")
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable


def test_named_arrays_are_packed_alike_whatever_their_order() -> None:
    one = {"a": np.zeros(2), "b": np.ones(3)}
    assert columns.pack_arrays(one) == columns.pack_arrays(dict(reversed(one.items())))
