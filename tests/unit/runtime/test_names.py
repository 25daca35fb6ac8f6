from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.runtime.names import NO_NAME, Name, pack_key, unpack_key

GENERATIONS = st.integers(0, 2**64 - 1)
SLOTS = st.integers(0, 2**32 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
NAMES = st.builds(Name, OFFSETS, SLOTS)


@pytest.mark.slow
@given(GENERATIONS, SLOTS, NAMES)
def test_key_holds_what_was_packed(generation: int, slot: int, name: Name) -> None:
    key = pack_key(generation, slot, name)
    assert len(key) == 24
    assert unpack_key(key) == (generation, slot, name)


@given(GENERATIONS, SLOTS, NAMES, NAMES)
def test_byte_order_is_name_order(generation: int, slot: int, one: Name, other: Name) -> None:
    assert (pack_key(generation, slot, one) < pack_key(generation, slot, other)) == (one < other)


def test_no_name_comes_before_every_name() -> None:
    assert Name(0, 0) > NO_NAME
    assert unpack_key(pack_key(7, 1, NO_NAME)) == (7, 1, NO_NAME)


@pytest.mark.parametrize(
    ("key", "found"), [(None, "no key"), (b"", "0 bytes"), (b"x" * 23, "23 bytes"), (b"x" * 25, "25 bytes")]
)
def test_key_of_another_length_is_refused(key: bytes | None, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        unpack_key(key)
