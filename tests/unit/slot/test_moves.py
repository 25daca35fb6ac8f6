"""Sensors move between slots: each of them has a value of each step in one of the two, and no value is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import FIRST, SLIDE_US, SLOT, Writer, load, make_config, play
from tests.unit.slot.test_table_changes import FLEET, config_of, noise, steps, values
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import U32, Sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE
from tsunagi.runtime.messages import DeadLetter
from tsunagi.runtime.moving import AGREED, DONE, HELD, SensorSlots
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame
from tsunagi.slot.slot import Slot

BOUNDARY = FIRST + 10
"""The first step by the new slots."""
KEPT = {sensor: FLEET[sensor] for sensor in (0, 2, 3)}
GONE = {sensor: FLEET[sensor] for sensor in (5, 8)}
"""Sensors that leave the slot, or come to it: all those of e3."""


def moving(*, coming: bool, held: bool = False, last: int = BOUNDARY - 1) -> SlotConfig:
    """Return the settings under which the sensors of e3 come to the slot, or go from it."""
    ids = tuple(GONE)
    return replace(
        config_of(FLEET),
        move_us=last * SLIDE_US,
        coming=ids if coming else (),
        going=() if coming else ids,
        held=held,
    )


def started(config: SlotConfig) -> Writer:
    writer = Writer()
    writer.own(1)
    writer.settings(config)
    writer.model(SHA)
    return writer


def ids_of(found: dict[int, dict[int, tuple[float, float]]], step: int) -> list[int]:
    return sorted(found[step])


def checked(writer: Writer) -> dict[int, dict[int, tuple[float, float]]]:
    """Return the values by step and sensor, having asked the plain loop for the same."""
    found = values(Slot(SLOT, load), writer.records)
    again = {
        item.frame.step: dict(zip(item.frame.sensor.tolist(), item.frame.mean.tolist(), strict=True))
        for item in recompute(writer.records, load)
        if isinstance(item.frame, Frame)
    }
    assert again == {step: {sensor: mean for sensor, (mean, _) in row.items()} for step, row in found.items()}
    return found


def test_what_leaves_a_slot_is_given_up_to_the_boundary_and_no_longer() -> None:
    writer = started(config_of(FLEET))
    steps(writer, FLEET, FIRST, FIRST + 5)
    writer.settings(moving(coming=False, held=True))
    steps(writer, FLEET, FIRST + 5, BOUNDARY)
    writer.settings(moving(coming=False))
    steps(writer, KEPT, BOUNDARY, BOUNDARY + 3)  # e3 has no sensor here any more, and nobody waits for it
    writer.settings(config_of(KEPT, [(5, "e3"), (8, "e3")]))
    steps(writer, KEPT, BOUNDARY + 3, BOUNDARY + 6)
    found = checked(writer)
    assert sorted(found) == list(range(FIRST, BOUNDARY + 6))
    assert all(ids_of(found, step) == sorted(FLEET) for step in range(FIRST, BOUNDARY))
    assert all(ids_of(found, step) == sorted(KEPT) for step in range(BOUNDARY, BOUNDARY + 6))
    assert found[BOUNDARY + 1][0] == (noise(BOUNDARY + 1, 0), 0.0)


def test_what_comes_to_a_slot_is_waited_for_from_the_boundary_on() -> None:
    writer = started(config_of(KEPT))
    steps(writer, KEPT, FIRST, FIRST + 5)
    writer.settings(moving(coming=True, held=True))
    steps(writer, KEPT, FIRST + 5, FIRST + 8)
    writer.settings(moving(coming=True))
    steps(writer, KEPT, FIRST + 8, BOUNDARY)
    steps(writer, KEPT, BOUNDARY, BOUNDARY + 1)  # e3 is not out, so this step waits for its first batch
    before = checked(writer)
    assert max(before) == BOUNDARY - 1
    assert all(ids_of(before, step) == sorted(KEPT) for step in before)
    steps(writer, GONE, BOUNDARY, BOUNDARY + 1)
    steps(writer, FLEET, BOUNDARY + 1, BOUNDARY + 3)
    writer.settings(config_of(FLEET))
    steps(writer, FLEET, BOUNDARY + 3, BOUNDARY + 5)
    found = checked(writer)
    assert sorted(found) == list(range(FIRST, BOUNDARY + 5))
    assert all(ids_of(found, step) == sorted(FLEET) for step in range(BOUNDARY, BOUNDARY + 5))
    assert {bound for step in range(BOUNDARY, BOUNDARY + 5) for _, bound in found[step].values()} == {0.0}


def test_no_step_closes_beyond_a_boundary_that_is_not_agreed() -> None:
    writer = started(config_of(FLEET))
    steps(writer, FLEET, FIRST, FIRST + 5)
    writer.settings(moving(coming=False, held=True))
    steps(writer, FLEET, FIRST + 5, BOUNDARY + 4)
    assert max(checked(writer)) == BOUNDARY - 1
    later = BOUNDARY + 7
    writer.settings(moving(coming=False, held=True, last=later - 1))  # it is put off
    steps(writer, FLEET, BOUNDARY + 4, later + 2)
    assert max(checked(writer)) == later - 1
    writer.settings(moving(coming=False, last=later - 1))
    found = checked(writer)
    assert sorted(found) == list(range(FIRST, later + 2))
    assert ids_of(found, later - 1) == sorted(FLEET)
    assert ids_of(found, later) == sorted(KEPT)


def test_a_gap_of_all_edges_does_not_lead_over_a_boundary_that_is_not_agreed() -> None:
    writer = started(config_of(FLEET))
    steps(writer, FLEET, FIRST, FIRST + 2)
    writer.settings(moving(coming=False, held=True))
    steps(writer, FLEET, BOUNDARY + 40, BOUNDARY + 42)
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    assert slot.cursor == BOUNDARY
    checked(writer)


def test_a_value_that_an_edge_sends_to_the_wrong_side_is_kept_elsewhere() -> None:
    writer = started(config_of(FLEET))
    steps(writer, FLEET, FIRST, FIRST + 5)
    writer.settings(moving(coming=False))
    steps(writer, FLEET, FIRST + 5, BOUNDARY)
    writer.now_us = BOUNDARY * SLIDE_US
    early = writer.batch("e3", BOUNDARY, {5: 1.0, 8: 2.0})
    steps(writer, KEPT, BOUNDARY, BOUNDARY + 1)
    closed = writer.batch("e3", BOUNDARY - 1, {5: 1.0, 8: 2.0}, incarnation=2)
    found = play(Slot(SLOT, load), writer.records)
    letters = [DeadLetter.FromString(value) for topic, _, value in found if topic == DEAD_LETTERS]
    assert [(letter.reason, letter.offset) for letter in letters] == [("unknown-sensor", early.offset)]
    assert [(topic, name.offset) for topic, name, _ in found if topic == LATE] == [(LATE, closed.offset)]
    checked(writer)


def test_a_value_that_a_late_edge_sends_to_the_old_slot_when_the_move_is_done_is_kept_elsewhere() -> None:
    """The edge has not read of the move. Its value for a step of before is late, any other came to the wrong slot."""
    done = replace(config_of(KEPT, [(5, "e3"), (8, "e3")]), left=tuple(GONE))
    writer = started(config_of(FLEET))
    steps(writer, FLEET, FIRST, BOUNDARY)
    writer.settings(done)
    lost = writer.batch("e3", BOUNDARY + 1, {5: 1.0, 8: 2.0})
    steps(writer, KEPT, BOUNDARY, BOUNDARY + 3)
    closed = writer.batch("e3", BOUNDARY - 1, {5: 1.0, 8: 2.0}, incarnation=2)
    found = checked(writer)
    assert all(ids_of(found, step) == sorted(KEPT) for step in range(BOUNDARY, BOUNDARY + 3))
    aside = play(Slot(SLOT, load), writer.records)
    letters = [DeadLetter.FromString(value) for topic, _, value in aside if topic == DEAD_LETTERS]
    assert [(letter.reason, letter.offset) for letter in letters] == [("unknown-sensor", lost.offset)]
    assert [(topic, name.offset) for topic, name, _ in aside if topic == LATE] == [(LATE, closed.offset)]


@pytest.mark.parametrize("coming", [True, False])
@pytest.mark.parametrize("cut", range(2, 46, 3))
def test_a_context_in_the_middle_of_a_move_goes_on_with_it(cut: int, coming: bool) -> None:
    before, after = (KEPT, FLEET) if coming else (FLEET, KEPT)
    writer = started(config_of(before))
    steps(writer, before, FIRST, FIRST + 3)
    writer.settings(moving(coming=coming, held=True))
    steps(writer, before, FIRST + 3, FIRST + 6)
    writer.settings(moving(coming=coming))
    steps(writer, before, FIRST + 6, BOUNDARY)
    steps(writer, after, BOUNDARY, BOUNDARY + 3)
    writer.settings(config_of(after, [] if coming else [(5, "e3"), (8, "e3")]))
    steps(writer, after, BOUNDARY + 3, BOUNDARY + 4)
    whole = play(Slot(SLOT, load), writer.records)
    cut = min(cut, len(writer.records) - 1)
    first = Slot(SLOT, load)
    head = play(first, writer.records[:cut])
    if first.book is None:
        return
    second = Slot(SLOT, load)
    second.restore(first.context())
    assert head + play(second, writer.records[cut:]) == whole


def slots(phase: str, now: Sequence[int], before: Sequence[int]) -> SensorSlots:
    def column(places: Sequence[int]) -> Sensors:
        return np.array(places, dtype=U32)

    return SensorSlots(column(now), column(before), 5 * SLIDE_US, phase)


def test_the_settings_of_a_slot_follow_the_phases_of_a_move() -> None:
    table = SensorTable(tuple(Sensor(number, f"s{number}", f"e{number % 2}") for number in range(4)))
    now, before = [0, 1, 1, 0], [0, 0, 1, 1]

    def made(phase: str, slot: int) -> SlotConfig:
        return SlotConfig.make(Settings(), table, slots(phase, now, before), slot)

    held, agreed, done = (made(phase, 1) for phase in (HELD, AGREED, DONE))
    assert (held.sensors, held.coming, held.going, held.held) == ((1, 2, 3), (1,), (3,), True)
    assert agreed == replace(held, held=False)
    assert agreed.changeable
    assert (done.sensors, done.coming, done.going, done.move_us) == ((1, 2), (), (), 0)
    assert (done.former, done.left, held.left) == (((3, "e1"),), (3,), ())
    assert made(HELD, 0).coming == (3,)
    assert (held.ready_for_us(held.move_step), held.ready_for_us(held.move_step + 1)) == (held.move_us, 0)
    assert agreed.ready_for_us(0) == 0
    for config in (held, agreed, done):
        assert SlotConfig.parse(config.text()) == config
    unmoved = slots(HELD, [0, 0, 1, 1], before)
    assert not SlotConfig.make(Settings(), table, unmoved, 1).held, "a slot that nothing moves to or from goes on"


@pytest.mark.parametrize("fields", [{"move_us": 0}, {"coming": (99,)}, {"move_us": -1}, {"left": (0,)}])
def test_an_impossible_move_is_refused(fields: dict[str, object]) -> None:
    config = make_config(move_us=SLIDE_US, coming=(0,), held=True)
    assert SlotConfig.parse(config.text()) == config
    with pytest.raises(ValueError, match="slot settings"):
        SlotConfig.parse(replace(config, **fields).text())  # type: ignore[arg-type]
