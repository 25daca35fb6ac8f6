"""A moment of `make fuzz`, with seeds of its own."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.messages import message_of, mutated, spoiled
from tests.fuzz.run import fuzz
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import tsunagi_pb2


@pytest.mark.parametrize("name", sorted(tsunagi_pb2.DESCRIPTOR.message_types_by_name))
def test_the_door_lets_through_or_refuses_and_never_fails(name: str) -> None:
    kind = getattr(tsunagi_pb2, name)
    draw = random.Random(name)
    for _ in range(60):
        message = message_of(draw, kind)
        for value in (message.SerializeToString(), spoiled(draw, message.SerializeToString())):
            try:
                found = decode(kind, value)
            except UnusableError as error:
                assert str(error)  # noqa: PT017 - that it is refused is as good as that it is not
                continue
            mutated(draw, found)


@pytest.mark.parametrize("seed", [1, 6])
def test_nobody_dies_of_what_others_write(seed: int) -> None:
    assert fuzz(seed) == []
