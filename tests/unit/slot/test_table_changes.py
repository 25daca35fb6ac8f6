"""The sensors of a slot change while it runs: what is known of the others stays, and nobody's batch is lost by it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.hashes import OTHER_SHA, SHA
from tests.unit.slot.small_slot import FIRST, SLIDE_US, SLOT, Writer, load, make_config, owned, play
from tsunagi.recovery.model import half_width
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.log import DEAD_LETTERS, RECOVERED, Record
from tsunagi.runtime.messages import DeadLetter, LogRecord, Recovered
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame
from tsunagi.slot.packed import PackedRows
from tsunagi.slot.slot import Slot

RECOVER = {"use": "recover"}
WINDOW = {"use": "aggregate", "function": "sum", "window": 3}
FLEET = {0: ("a", "e1"), 2: ("b", "e1"), 3: ("c", "e2"), 5: ("d", "e3"), 8: ("e", "e3")}
"""The slot's sensors at first: id -> (name, edge)."""
Table = dict[int, tuple[str, str]]


def config_of(table: Table, former: Sequence[tuple[int, str]] = (), *operators: dict[str, Any]) -> SlotConfig:
    ids = tuple(sorted(table))
    return make_config(
        *(operators or (RECOVER,)),
        sensors=ids,
        names=tuple(table[sensor][0] for sensor in ids),
        edges=tuple(table[sensor][1] for sensor in ids),
        former=tuple(sorted(former)),
        changeable=True,
    )


def noise(step: int, sensor: int) -> float:
    return float(np.random.default_rng((step, sensor)).normal())


def steps(writer: Writer, table: Table, first: int, last: int, silent: Sequence[str] = ()) -> None:
    """Append the batches of some steps; sensors of silent edges are lost."""
    for step in range(first, last):
        writer.now_us = step * SLIDE_US
        for edge in sorted({edge for _, edge in table.values()} - set(silent)):
            own = [sensor for sensor, (_, home) in table.items() if home == edge]
            writer.batch(edge, step, {sensor: noise(step, sensor) for sensor in own})
        for edge in silent:
            writer.out(edge, step)


def values(slot: Slot, records: Sequence[Record]) -> dict[int, dict[int, tuple[float, float]]]:
    """Return step -> sensor -> (mean, bound)."""
    found = {}
    for topic, _, value in play(slot, list(records)):
        if topic == RECOVERED:
            frame = Recovered.FromString(value)
            rows = zip(
                sensors(frame.sensor).tolist(), floats(frame.mean).tolist(), floats(frame.bound).tolist(), strict=True
            )
            found[frame.step] = {sensor: (mean, bound) for sensor, mean, bound in rows}
    return found


def run(after: Table | None, former: Sequence[tuple[int, str]] = (), *, forgets: bool = False) -> dict[int, Any]:
    """Run 40 steps, of which e3 is out from the 20th on; the table changes at the 30th."""
    writer = owned(config_of(FLEET))
    writer.model(SHA)
    steps(writer, FLEET, FIRST, FIRST + 20)
    writer.calibrated([1.5] * 5)
    steps(writer, FLEET, FIRST + 20, FIRST + 30, ["e3"])
    if after is not None:
        new = config_of(after, former)
        writer.settings(replace(new, max_gap_steps=21) if forgets else new)  # the recovery begins anew with others
    steps(writer, FLEET if after is None else after, FIRST + 30, FIRST + 40, ["e3"])
    return values(Slot(SLOT, load), writer.records)


CHANGES: dict[str, tuple[Table, Sequence[tuple[int, str]]]] = {
    "a sensor that the model does not know comes": (FLEET | {11: ("new", "e1")}, ()),
    "a sensor is renamed": (FLEET | {0: ("a", "e1"), 3: ("c", "e2")}, ()),
    "a sensor moves": (FLEET | {2: ("b", "e2")}, ((2, "e1"),)),
    "a living sensor is removed": ({key: row for key, row in FLEET.items() if key != 0}, ((0, "e1"),)),
    "a lost sensor is removed": ({key: row for key, row in FLEET.items() if key != 5}, ((5, "e3"),)),
}


@pytest.mark.parametrize("kind", list(CHANGES))
def test_recovered_values_of_others_do_not_jump(kind: str) -> None:
    after, former = CHANGES[kind]
    plain, changed, forgetful = run(None), run(after, former), run(after, former, forgets=True)
    assert list(changed) == list(plain), "a step is lost, doubled or out of order"
    told = 0.0
    for step in range(FIRST + 30, FIRST + 40):
        for sensor in (3, 5, 8):
            if sensor not in after:
                assert sensor not in changed[step]
                continue
            (mean, bound), (was, width) = changed[step][sensor], plain[step][sensor]
            if sensor == 3:
                assert mean == was == noise(step, 3)
                continue
            assert abs(mean - was) < 0.35 * width, "the estimate jumps"
            assert 0.97 * width <= bound < 1.15 * width, "the bound jumps"
            told += abs(forgetful[step][sensor][1] - width) + abs(forgetful[step][sensor][0] - was)
    assert told > 0.3, "a recovery that begins anew would not have been noticed"


def test_a_lost_sensor_that_is_new_begins_with_what_the_others_tell() -> None:
    without = {key: row for key, row in FLEET.items() if key != 5}
    writer = owned(config_of(without))
    writer.model(SHA)
    steps(writer, without, FIRST, FIRST + 10)
    writer.settings(config_of(FLEET))
    steps(writer, FLEET, FIRST + 10, FIRST + 12, ["e3"])
    found = values(Slot(SLOT, load), writer.records)
    plain = owned(config_of(FLEET))
    plain.model(SHA)
    steps(plain, FLEET, FIRST, FIRST + 10)
    steps(plain, FLEET, FIRST + 10, FIRST + 12, ["e3"])
    known = values(Slot(SLOT, load), plain.records)
    bound = found[FIRST + 10][5][1]
    assert bound > 1.02 * known[FIRST + 10][5][1], "nothing has been read of it"
    assert bound < 0.8 * half_width(0.9), "the readings of the others are"


def test_both_edges_of_a_moved_sensor_may_send_it_and_its_own_counts() -> None:
    after = FLEET | {2: ("b", "e2")}
    writer = owned(config_of(FLEET, (), WINDOW | {"window": 1}))
    steps(writer, FLEET, FIRST, FIRST + 2)
    writer.batch("e1", FIRST + 2, {0: 1.0, 2: 7.0})  # waits in the open step
    writer.settings(config_of(after, ((2, "e1"),), WINDOW | {"window": 1}))
    writer.batch("e2", FIRST + 2, {3: 1.0})
    writer.batch("e3", FIRST + 2, {5: 1.0, 8: 1.0})
    writer.batch("e1", FIRST + 3, {0: 1.0, 2: 7.0})
    writer.batch("e2", FIRST + 3, {2: 8.0, 3: 1.0})
    writer.batch("e3", FIRST + 3, {5: 1.0, 8: 1.0})
    outputs = play(Slot(SLOT, load), writer.records)
    assert [topic for topic, _, _ in outputs if topic != RECOVERED] == []
    found = values(Slot(SLOT, load), writer.records)
    assert found[FIRST + 2][2][0] == 7.0
    assert found[FIRST + 3][2][0] == 8.0


def test_an_edge_that_is_new_is_waited_for_from_its_first_batch_on() -> None:
    after = FLEET | {12: ("new", "e4")}
    writer = owned(config_of(FLEET))
    steps(writer, FLEET, FIRST, FIRST + 2)
    writer.settings(config_of(after))
    steps(writer, FLEET, FIRST + 2, FIRST + 4)
    slot = Slot(SLOT, load)
    assert FIRST + 3 in values(slot, writer.records)
    there = len(writer.records)
    writer.batch("e4", FIRST + 4, {12: 5.0})
    steps(writer, FLEET, FIRST + 4, FIRST + 6)
    found = values(slot, writer.records[there:])
    assert found[FIRST + 4][12][0] == 5.0
    assert FIRST + 5 not in found


def test_of_a_batch_that_is_ahead_of_the_settings_only_the_new_sensor_is_refused() -> None:
    writer = owned(config_of(FLEET))
    writer.batch("e1", FIRST, {0: 1.0, 2: 2.0, 12: 3.0})
    writer.batch("e2", FIRST, {3: 1.0})
    writer.batch("e3", FIRST, {5: 1.0, 8: 1.0})
    outputs = play(Slot(SLOT, load), writer.records)
    letters = [DeadLetter.FromString(value) for topic, _, value in outputs if topic == DEAD_LETTERS]
    assert [letter.reason for letter in letters] == ["unknown-sensor"]
    assert letters[0].value == writer.records[2].value, "the letter has the batch as it came"
    assert {sensor: mean for sensor, (mean, _) in values(Slot(SLOT, load), writer.records)[FIRST].items()} == {
        0: 1.0,
        2: 2.0,
        3: 1.0,
        5: 1.0,
        8: 1.0,
    }


def random_changes(seed: int) -> list[Record]:  # noqa: C901 - one kind of change after the other
    """Write a log in which the table changes all the time, with outages, late edges, refits, helpers, quarantines."""
    draw = random.Random(seed)
    table, former, there = dict(FLEET), set[tuple[int, str]](), 20
    operators = (RECOVER, WINDOW)
    writer = owned(config_of(table, (), *operators))
    writer.model(SHA)
    sent = dict(table)  # by which the edges go
    for step in range(FIRST, FIRST + 60):
        writer.now_us = step * SLIDE_US
        if draw.random() < 0.3:
            kind, sensor = draw.choice(("add", "remove", "move", "back", "rename")), draw.choice(sorted(table))
            name, edge = table[sensor]
            if kind == "add":
                there += 1
                table[there] = f"new-{there}", draw.choice(("e1", "e2", "e3", "e4"))
            elif kind == "remove" and len(table) > 2:
                del table[sensor]
                former = {pair for pair in former if pair[0] != sensor} | {(sensor, edge)}
            elif kind == "move":
                table[sensor] = name, draw.choice(("e1", "e2", "e3", "e4"))
                if table[sensor][1] != edge:
                    former = {pair for pair in former if pair[0] != sensor} | {(sensor, edge)}
            elif kind == "rename":
                table[sensor] = name.removesuffix("+") if name.endswith("+") else f"{name}+", edge
            elif gone := sorted(set(FLEET) - set(table)):
                table[gone[0]] = FLEET[gone[0]]
            if draw.random() < 0.2:
                sent = dict(table)  # edges are first
            writer.settings(config_of(table, sorted(former), *operators))
            if draw.random() < 0.1:
                writer.quarantine(len(writer.records) - 1)
        if draw.random() < 0.5:
            sent = dict(table)
        for edge in draw.sample(sorted({edge for _, edge in sent.values()}), len({edge for _, edge in sent.values()})):
            if draw.random() < 0.12:
                writer.out(edge, step)
                continue
            own = [sensor for sensor, (_, home) in sent.items() if home == edge]
            writer.batch(edge, step, {sensor: noise(step, sensor) for sensor in own}, helpers={9: noise(step, 9)})
        if draw.random() < 0.1:
            writer.model(OTHER_SHA, refit_of=SHA)
        if draw.random() < 0.1:
            writer.helpers(*draw.choice((("x",), ("x", "y"), ())))
        if draw.random() < 0.05:
            writer.calibrated([draw.uniform(0.8, 2.0) for _ in table])
    return writer.records


@pytest.mark.parametrize("seed", range(12))
def test_replay_and_replicas_that_begin_anywhere_agree(seed: int) -> None:
    log = random_changes(seed)
    whole = Slot(SLOT, load)
    whole.register.quarantined |= _buried(log)
    outputs: list[list[tuple[str, Any, bytes]]] = []
    contexts = []
    for record in log:
        contexts.append(whole.context().SerializeToString() if whole.book is not None else b"")
        outputs.append(play(whole, [record]))
    made = [item for some in outputs for item in some]
    assert len([topic for topic, _, _ in made if topic == RECOVERED]) > 20

    replayed = {item.name: item.frame for item in recompute(log, load)}
    frames = {name: Recovered.FromString(value) for topic, name, value in made if topic == RECOVERED}
    assert replayed.keys() == frames.keys()
    for name, frame in replayed.items():
        assert isinstance(frame, Frame)
        assert not isinstance(frame, PackedRows)
        assert np.array_equal(frame.mean, floats(frames[name].mean), equal_nan=True)

    for place in range(8, len(log), 23):
        if not contexts[place]:
            continue
        other = Slot(SLOT, load)
        other.restore(type(whole.context()).FromString(contexts[place]))
        assert play(other, log[place:]) == [item for some in outputs[place:] for item in some], f"from record {place}"


def _buried(log: Sequence[Record]) -> set[int]:
    messages = (LogRecord.FromString(record.value or b"") for record in log)
    return {message.quarantine.offset for message in messages if message.HasField("quarantine")}


def test_without_steps_rows_of_removed_sensors_are_left_out_and_both_edges_may_send_a_moved_one() -> None:
    operator = {"use": "aggregate", "function": "sum", "window": 2, "slide": 1}
    moved = {key: row for key, row in FLEET.items() if key != 0} | {2: ("b", "e2")}
    before = replace(config_of(FLEET, (), operator), mode="tuples")
    after = replace(config_of(moved, ((0, "e1"), (2, "e1")), operator), mode="tuples")
    writer = owned(before)
    writer.batch("e1", FIRST, {0: 1.0, 2: 2.0})
    writer.batch("e2", FIRST, {3: 5.0})
    writer.settings(after)
    writer.batch("e1", FIRST + 1, {0: 1.0, 2: 3.0})
    writer.batch("e2", FIRST + 1, {2: 4.0, 3: 6.0})
    writer.batch("e2", FIRST + 2, {5: 1.0})
    slot = Slot(SLOT, load)
    outputs = play(slot, writer.records)
    rows = [
        (sensor, mean)
        for topic, _, value in outputs
        if topic == RECOVERED
        for sensor, mean in zip(*_columns(value), strict=True)
    ]
    assert rows == [(2, 5.0), (2, 7.0), (3, 11.0)], "the window of b goes on over its move, a is gone"
    letters = [DeadLetter.FromString(value).reason for topic, _, value in outputs if topic == DEAD_LETTERS]
    assert letters == ["unknown-sensor"]
    frames = {item.name: item.frame for item in recompute(writer.records, load)}
    assert frames.keys() == {name for topic, name, _ in outputs if topic == RECOVERED}


def _columns(value: bytes) -> tuple[list[int], list[float]]:
    message = Recovered.FromString(value)
    return sensors(message.sensor).tolist(), floats(message.mean).tolist()
