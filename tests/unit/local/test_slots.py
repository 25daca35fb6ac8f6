from __future__ import annotations

import pytest

from tsunagi.local.slots import SlotsError, _check
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import Placement
from tsunagi.runtime.moving import AGREED, DONE
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import QuerySettings, Settings

TABLE = SensorTable(tuple(Sensor(number, f"s{number}", "e" if number < 4 else "") for number in range(5)))


def placement(phase: str = DONE) -> Placement:
    return Placement(serial=1, slots=2, slot=pack_sensors([0, 1, 0, 1, 0]), move=phase)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_so_many_slots_can_be(count: int) -> None:
    _check(Settings(), TABLE, placement(), count)


@pytest.mark.parametrize(
    ("count", "phase", "mode", "words"),
    [
        (1, DONE, "steps", "found 1 slots, expected 2 or more: there is no way back"),
        (5, DONE, "steps", "found 5 slots for 4 sensors"),
        (4, AGREED, "steps", "still moving to 2 slots"),
        (4, DONE, "tuples", "mode: found 'tuples', expected \"steps\""),
    ],
)
def test_others_are_refused(count: int, phase: str, mode: str, words: str) -> None:
    settings = Settings(query=QuerySettings(mode=mode))
    with pytest.raises(SlotsError, match=words):
        _check(settings, TABLE, placement(phase), count)
