from __future__ import annotations

import pytest

from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.moving import AGREED, DONE, HELD, SensorSlots, first_step


def moved(phase: str, slot: list[int], before: list[int]) -> SensorSlots:
    return SensorSlots.of(
        Placement(serial=3, slots=4, slot=pack_sensors(slot), before=pack_sensors(before), from_us=900, move=phase)
    )


def test_without_a_move_both_sides_are_the_same() -> None:
    found = SensorSlots.of(Placement(serial=1, slots=2, slot=pack_sensors([0, 1, 1])))
    assert (found.now.tolist(), found.before.tolist()) == ([0, 1, 1], [0, 1, 1])
    assert (found.from_us, found.phase, found.moving, found.concerned) == (0, "", False, frozenset())
    assert [where.tolist() for where in found.sending] == [[0, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("phase", "moving", "later"), [(HELD, True, [0, 1]), (AGREED, True, [2, 1]), (DONE, False, [2, 1])]
)
def test_edges_go_by_a_move_once_it_is_agreed(phase: str, moving: bool, later: list[int]) -> None:
    found = moved(phase, [2, 1], [0, 1])
    assert [where.tolist() for where in found.sending] == [[0, 1], later]
    assert found.moving is moving
    assert found.concerned == {0, 2}


def test_a_sensor_that_was_added_since_has_not_moved() -> None:
    assert moved(DONE, [2, 1, 3], [0, 1]).before.tolist() == [0, 1, 3]


def test_the_first_step_of_a_boundary_ends_after_it() -> None:
    assert [first_step(us, 300) for us in (899, 900, 901)] == [3, 4, 4]
