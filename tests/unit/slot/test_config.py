"""The canonical text of what a slot computes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.unit.slot.small_slot import make_config
from tsunagi.runtime.columns import U32
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.ranges import MAX_TIME_US
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import OperatorSettings, QuerySettings, Settings, StepsSettings
from tsunagi.slot.config import FORMAT, MAX_SENSOR, SlotConfig

CONFIG = make_config({"use": "select", "at_least": -1.5}, {"use": "aggregate", "window": 3})


def test_it_reads_back_what_it_wrote() -> None:
    again = SlotConfig.parse(CONFIG.text())
    assert again == CONFIG
    assert (again.text(), again.hash) == (CONFIG.text(), CONFIG.hash)


def test_whatever_changes_the_outputs_changes_the_hash() -> None:
    others = [make_config(), make_config(eps=2.0), make_config(slide_us=1), make_config({"use": "select"})]
    assert len({CONFIG.hash, *(other.hash for other in others)}) == 5


def test_the_text_does_not_hang_on_the_order_of_keys() -> None:
    turned = make_config({"at_least": -1.5, "use": "select"}, {"window": 3, "use": "aggregate"})
    assert turned.text() == CONFIG.text()


def test_it_is_made_of_the_slots_own_sensors() -> None:
    table = SensorTable(tuple(Sensor(i, f"s{i}", f"e{i % 2}") for i in range(5)))
    settings = Settings(
        steps=StepsSettings(interval_s=0.5, window=4, slide=2, max_ahead_s=3.0, max_gap_s=7.0),
        query=QuerySettings(operators=(OperatorSettings(use="aggregate", window=2),)),
    )
    config = SlotConfig.make(settings, table, SensorSlots.fixed(np.array([1, 0, 1, 1, 0, 1, 1], dtype=U32)), 1)
    assert config.sensors == (0, 2, 3)
    assert config.names == ("s0", "s2", "s3")
    assert config.edges == ("e0", "e0", "e1")
    assert (config.slide_us, config.max_ahead_us, config.max_gap_steps) == (1_000_000, 3_000_000, 7)
    assert config.operators == ({"use": "aggregate", "window": 2},)


def test_another_format_is_refused() -> None:
    fields = json.loads(CONFIG.text()) | {"format": FORMAT + 1}
    with pytest.raises(ValueError, match=f"found format {FORMAT + 1}, expected {FORMAT}"):
        SlotConfig.parse(json.dumps(fields))
    with pytest.raises(ValueError, match="Expecting value"):
        SlotConfig.parse("")


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ({"sensors": [0, 1, 2, 3, MAX_SENSOR]}, True),
        ({"sensors": [0, 1, 2, 3, MAX_SENSOR + 1]}, False),
        ({"sensors": [-1, 1, 2, 3, 4]}, False),
        ({"sensors": [0, 1, 2, 2, 4]}, False),
        ({"sensors": [1, 0, 2, 3, 4]}, False),
        ({"sensors": [0, 1, 2, 3]}, False),
        ({"names": ["a", "b", "c", "d"]}, False),
        ({"names": ["a", "b", "c", "d", 5]}, False),
        ({"edges": ["a", "b", "c", "d", None]}, False),
        *(({"slide_us": value}, sound) for value, sound in ((0, False), (1, True), (MAX_TIME_US, True))),
        ({"slide_us": MAX_TIME_US + 1}, False),
        *(
            ({name: value}, sound)
            for name in ("max_ahead_us", "max_skew_steps", "max_gap_steps")
            for value, sound in ((-1, False), (0, True), (MAX_TIME_US, True), (MAX_TIME_US + 1, False))
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_else(fields: dict[str, object], sound: bool) -> None:
    text = json.dumps(json.loads(CONFIG.text()) | fields)
    if sound:
        SlotConfig.parse(text)
        return
    with pytest.raises(ValueError, match="slot settings: found a length, a name or sensors that cannot be"):
        SlotConfig.parse(text)
