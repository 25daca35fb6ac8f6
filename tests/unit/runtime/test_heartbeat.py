"""Of two processes of one name the newer goes on: what counts as its word."""

from __future__ import annotations

import pytest

from tsunagi.runtime.heartbeat import Namesake
from tsunagi.runtime.messages import Heartbeat

OWN = 100


def beat(
    incarnation: int, sequence: int, node: str = "gw-1", role: str = "worker", *, leaving: bool = False
) -> Heartbeat:
    return Heartbeat(node=node, role=role, incarnation=incarnation, sequence=sequence, pid=7, leaving=leaving)


def test_a_newer_process_that_lives_is_named() -> None:
    namesake = Namesake("gw-1", "worker", OWN)
    assert namesake.hear(beat(OWN, 1)) == ""
    assert namesake.hear(beat(OWN + 5, 1)) == ""
    assert namesake.hear(beat(OWN + 5, 2)) == f"pid 7, incarnation {OWN + 5}; this one has {OWN}"


@pytest.mark.parametrize(
    "heard",
    [
        [beat(OWN - 1, number) for number in range(5)],
        [beat(OWN + 1, 3)] * 5,
        [beat(OWN + 1, 5 - number) for number in range(5)],
        [beat(OWN + number, number) for number in range(5)],  # one word of each
        [beat(OWN + 1, number, leaving=True) for number in range(5)],
        [beat(OWN + 1, number, node="gw-2") for number in range(5)],
        [beat(OWN + 1, number, role="edge") for number in range(5)],
    ],
)
def test_what_is_no_newer_process(heard: list[Heartbeat]) -> None:
    namesake = Namesake("gw-1", "worker", OWN)
    assert not any(namesake.hear(each) for each in [beat(OWN, 1), *heard])


def test_what_was_said_before_the_start_is_of_the_dead_whatever_their_clock_was() -> None:
    namesake = Namesake("gw-1", "worker", OWN)
    for number in range(1, 9):
        assert namesake.hear(beat(OWN + 9, number)) == ""
    assert namesake.hear(beat(OWN, 1)) == ""
    assert namesake.hear(beat(OWN + 9, 9)) == ""
    assert namesake.hear(beat(OWN + 9, 10))
