"""Slots without lock-step: each tuple as it comes, however the records are cut into runs."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.unit.slot.small_slot import (
    EDGES,
    FIRST,
    SENSORS,
    SLIDE_US,
    SLOT,
    Encoded,
    Writer,
    batch,
    load,
    make_config,
    owned,
    play,
    random_log,
)
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats, sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, Record
from tsunagi.runtime.messages import Context, LogRecord, Recovered, TupleBatch
from tsunagi.runtime.names import Name
from tsunagi.slot.batches import Batches
from tsunagi.slot.frames import Frame, OperatorError, measured_run
from tsunagi.slot.operators import build_chain
from tsunagi.slot.parsing import Parsed, parse
from tsunagi.slot.slot import Slot
from tsunagi.slot.tuple_windows import TupleAggregate
from tsunagi.slot.tuples import TupleBook

WINDOWS: dict[str, Any] = {"use": "aggregate", "window": 5, "slide": 2}
CHAINS: dict[str, tuple[dict[str, Any], ...]] = {
    "nothing": (),
    "select": ({"use": "select", "at_least": -0.5, "at_most": 1.0},),
    "a share": ({"use": "select", "share": 0.5},),
    "project": ({"use": "project", "sensors": ["a", "d"]},),
    "sum": (WINDOWS | {"function": "sum"},),
    "select, max": ({"use": "select", "at_least": -1.0}, WINDOWS | {"function": "max", "window": 3}),
    "mean, min": (WINDOWS | {"window": 2}, WINDOWS | {"function": "min", "window": 2, "slide": 1}),
    "one's own": ({"use": "tests.unit.slot.example_shift:Shift", "by": 0.5}, {"use": "select"}),
}


def config(*operators: dict[str, Any]) -> Any:
    return make_config(*operators, mode="tuples", slide_us=1, max_ahead_us=400 * SLIDE_US)


def tuple_log(seed: int, settings: Any) -> list[Record]:
    """A log with everything in it, and many tuples of few sensors."""
    records = random_log(seed, settings, turns=120)
    draw = random.Random(seed)
    writer = Writer()
    writer.records, writer.now_us = records, (FIRST + 1000) * SLIDE_US
    for number in range(150):
        edge = draw.choice(EDGES)
        given = {sensor: draw.gauss(0, 1) for sensor in SENSORS[edge] if draw.random() < 0.7}
        writer.batch(edge, FIRST + 1000 + number, given, incarnation=3)
    return writer.records


def _kind(record: Record) -> str | None:
    message = parse(record)[0]
    return None if message is None else message.WhichOneof("body")


def play_runs(slot: Slot, records: list[Record], seed: int) -> Encoded:
    """Apply records in runs of any length."""
    draw = random.Random(seed)
    backlog: list[tuple[Record, Parsed]] = [(record, parse(record)) for record in records]
    made: Encoded = []
    place = 0
    while place < len(backlog):
        outputs, count = slot.apply_run(islice(backlog, place, place + draw.randint(1, 40)))
        made += [
            (output.topic, output.name, output.encode(slot.slot, slot.register.generation)[1]) for output in outputs
        ]
        place += count
    return made


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_resumed_anywhere_and_cut_anyhow_the_same_follows(chain: str) -> None:
    records = tuple_log(1 + list(CHAINS).index(chain), config(*CHAINS[chain]))
    straight = Slot(SLOT, load)
    outputs = [play(straight, [record]) for record in records]
    flat = [item for made in outputs for item in made]
    assert sum(topic == RECOVERED for topic, _, _ in flat) > 20
    assert {topic for topic, _, _ in flat} == {RECOVERED, LATE, DEAD_LETTERS}
    assert flat == sorted(flat, key=lambda item: item[1])
    for seed in range(5):
        assert play_runs(Slot(SLOT, load), records, seed) == flat
    source = Slot(SLOT, load)
    for place, record in enumerate(records):
        if source.book is not None and place % 3 == 0:
            message = Context.FromString(source.context().SerializeToString())
            other = Slot(SLOT, load)
            other.restore(message)
            assert other.context() == message
            reach = slice(place, place + 40)
            assert play_runs(other, records[reach], place) == [item for made in outputs[reach] for item in made]
        source.apply(record)


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_replay_computes_the_same(chain: str) -> None:
    records = tuple_log(11 + list(CHAINS).index(chain), config(*CHAINS[chain]))
    # A Quarantine stands behind the record that it names, which a plain `play` has passed by then.
    records = [record for record in records if _kind(record) != "quarantine"]
    found = [(name, message) for topic, name, message in play(Slot(SLOT, load), records) if topic == RECOVERED]
    expected = list(recompute(records, load))
    assert [name for name, _ in found] == [item.name for item in expected]
    for (_, value), item in zip(found, expected, strict=True):
        message = Recovered.FromString(value)
        assert isinstance(item.frame, Frame)
        assert (message.step, message.event_time_us) == (item.frame.step, item.frame.event_time_us)
        assert sensors(message.sensor).tolist() == item.frame.sensor.tolist()
        assert floats(message.mean).tolist() == item.frame.mean.tolist()


def test_an_output_a_record_at_once_and_none_where_nothing_is_left() -> None:
    writer = owned(config({"use": "select", "at_least": 0.0}))
    writer.batch("e1", FIRST, {0: 1.0, 2: -1.0})
    writer.batch("e2", FIRST, {3: -1.0})
    writer.batch("e2", FIRST + 1, {3: 4.0})
    found = play(Slot(SLOT, load), writer.records)
    assert [name for _, name, _ in found] == [Name(2, 0), Name(4, 0)]
    message = Recovered.FromString(found[0][2])
    assert (sensors(message.sensor).tolist(), floats(message.mean).tolist()) == ([0], [1.0])
    assert message.step == FIRST


def test_an_operators_narrower_numbers_are_written_as_the_messages_have_them() -> None:
    writer = owned(config({"use": "tests.unit.slot.example_shift:Narrow"}))
    writer.batch("e1", FIRST, {0: 1.5, 2: -2.25})
    ((_, _, value),) = play(Slot(SLOT, load), writer.records)
    assert floats(Recovered.FromString(value).mean).tolist() == [1.5, -2.25]


def test_a_window_of_tuples_slides_by_tuples_of_its_own_sensor() -> None:
    writer = owned(config({"use": "aggregate", "function": "sum", "window": 4, "slide": 2}))
    for number in range(9):
        writer.batch("e3", FIRST + number, {5: float(number)} | ({8: 10.0} if number % 2 else {}))
    found = [
        (name.offset - 2, Recovered.FromString(value)) for _, name, value in play(Slot(SLOT, load), writer.records)
    ]
    rows = [
        (number, sensor, mean)
        for number, message in found
        for sensor, mean in zip(sensors(message.sensor).tolist(), floats(message.mean).tolist(), strict=True)
    ]
    assert rows == [(3, 5, 6.0), (5, 5, 14.0), (7, 5, 22.0), (7, 8, 40.0)]


@pytest.mark.parametrize("function", ["sum", "mean", "min", "max", "count"])
def test_windows_of_many_sensors_are_those_of_a_plain_loop(function: str) -> None:
    plain: Any = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "count": np.size}[function]
    settings = config({"use": "aggregate", "function": function, "window": 7, "slide": 3})
    draw = np.random.default_rng(5)
    writer = owned(settings)
    expected = []
    before: dict[int, list[float]] = {sensor: [] for edge in EDGES for sensor in SENSORS[edge]}
    for number in range(200):
        edge = EDGES[draw.integers(3)]
        given = {sensor: float(draw.normal()) for sensor in SENSORS[edge] if draw.random() < 0.8}
        record = writer.batch(edge, FIRST + number, given)
        for sensor in sorted(given):
            before[sensor].append(given[sensor])
            count = len(before[sensor])
            if count >= 7 and (count - 7) % 3 == 0:
                expected.append((record.offset, sensor, float(plain(before[sensor][-7:]))))
    found = [
        (name.offset, sensor, mean)
        for _, name, value in play_runs(Slot(SLOT, load), writer.records, 3)
        for message in [Recovered.FromString(value)]
        for sensor, mean in zip(sensors(message.sensor).tolist(), floats(message.mean).tolist(), strict=True)
    ]
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert [row[2] for row in found] == pytest.approx([row[2] for row in expected])


@pytest.mark.parametrize(("window", "slide"), [(1, 1), (3, 3), (3, 1)])
def test_a_slide_is_from_one_tuple_to_the_whole_window(window: int, slide: int) -> None:
    writer = owned(config({"use": "aggregate", "function": "sum", "window": window, "slide": slide}))
    for number in range(7):
        writer.batch("e2", FIRST + number, {3: 1.0})
    made = play(Slot(SLOT, load), writer.records)
    assert len(made) == (7 - window) // slide + 1
    for wrong in (0, window + 1):
        with pytest.raises(OperatorError, match=f"slide = {wrong}, window = {window}"):
            build_chain(config({"use": "aggregate", "window": window, "slide": wrong}), None)


def test_what_a_restored_context_does_not_know_is_forgotten() -> None:
    chosen = config({"use": "aggregate", "function": "count", "window": 2, "slide": 1})
    used, fresh = (TupleAggregate(chosen, function="count", window=2, slide=1) for _ in range(2))
    row = [np.array([value]) for value in (3, 1.0, 7, 0)]
    run = measured_run(0, 0, row[0].astype(np.uint32), row[1], row[2].astype(np.int64), row[3].astype(np.int64))
    used.process(run)
    used.restore(fresh.context())
    assert used.process(run) == ()


def test_a_share_is_about_that_share_and_the_same_for_all() -> None:
    settings = config({"use": "select", "share": 0.25})
    writer = owned(settings)
    writer.now_us = (FIRST + 4000) * SLIDE_US
    for number in range(4000):
        writer.batch("e2", FIRST + number, {3: 0.0})
    found = play_runs(Slot(SLOT, load), writer.records, 1)
    assert 900 < len(found) < 1100
    with pytest.raises(OperatorError, match=r"share: found 1\.5, expected 0 to 1"):
        build_chain(config({"use": "select", "share": 1.5}), None)


def test_a_quarantined_batch_is_passed_over_alone() -> None:
    writer = owned(config())
    for number in range(6):
        writer.batch("e2", FIRST + number)
    slot = Slot(SLOT, load)
    slot.register.quarantined.add(4)
    found = play_runs(slot, writer.records, 1)
    assert [(topic, name.offset) for topic, name, _ in found] == [
        (DEAD_LETTERS if offset == 4 else RECOVERED, offset) for offset in range(2, 8)
    ]
    writer.quarantine(4)
    assert [item.name.offset for item in recompute(writer.records, load)] == [2, 3, 5, 6, 7]


def test_batches_in_a_row_go_together_up_to_a_size_and_to_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = owned(config())
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    batches = []
    for number in range(6):
        writer.now_us += 10
        batches.append(writer.batch("e1", FIRST + number))
    writer.raw(b"\xff")
    items = [(record, parse(record)) for record in [*batches, writer.records[-1]]]
    size = sum(len(record.value or b"") for record in batches[:2])
    monkeypatch.setattr("tsunagi.slot.batches.MAX_BYTES", size)
    assert slot.apply_run(items)[1] == 2
    assert (slot.position, slot.appended_us) == (batches[1].offset + 1, batches[1].appended_us)
    monkeypatch.setattr("tsunagi.slot.batches.MAX_BYTES", 100 * size)
    assert slot.apply_run(items[2:])[1] == 4
    assert slot.last_name == Name(batches[-1].offset, 0)
    assert slot.apply_run(items[6:])[1] == 1


@pytest.mark.parametrize("stranger", [7, 9, 99])
def test_a_sensor_of_no_edge_is_refused_wherever_its_number_lies(stranger: int) -> None:
    book = TupleBook(config())
    wrong = batch("e3", FIRST, {5: 1.0, stranger: 2.0})
    wrong.event_time_us = FIRST
    assert book.accept(wrong, FIRST * SLIDE_US) == "unknown-sensor"


def test_an_edges_numbers_and_processes_count_on_across_a_context() -> None:
    book, later_us = TupleBook(config()), (FIRST + 100) * SLIDE_US
    sent = [(FIRST, 2), (FIRST + 5, 1), (FIRST, 3), (FIRST + 1, 2), (FIRST + 1, 3)]
    judged = [book.accept(batch("e1", step, incarnation=incarnation), later_us) for step, incarnation in sent]
    assert judged == ["", "replaced", "duplicate", "replaced", ""]
    assert book.accept(batch("e2", FIRST - 3), later_us) == ""
    assert book.cursor == FIRST + 2
    restored = TupleBook(config(), book.cursor)
    restored.restore(book.edge_states(), [])
    assert restored.edge_states() == book.edge_states()
    assert restored.accept(batch("e1", FIRST + 1, incarnation=3), later_us) == "duplicate"
    at_us = (FIRST + 9) * SLIDE_US - 400 * SLIDE_US
    early = [book.accept(batch("e1", FIRST + 9, incarnation=3), appended_us) for appended_us in (at_us - 1, at_us)]
    assert early == ["ahead", ""]


def test_rows_beside_a_damaged_batch_keep_their_values() -> None:
    damaged = batch("e2", FIRST)
    damaged.value += b"\0"
    run = Batches([batch("e1", FIRST, {0: 1.5, 2: 2.5}), damaged, batch("e3", FIRST, {8: 3.5})])
    refused, rows = TupleBook(config()).accept_run(run, [FIRST * SLIDE_US] * 3)
    assert refused == {1: ("damaged", FIRST + 1)}
    assert (rows.sensor.tolist(), rows.mean.tolist()) == ([0, 2, 8], [1.5, 2.5, 3.5])
    assert rows.origin.tolist() == [0, 0, 2]


def test_rows_of_a_batch_that_comes_twice_count_once() -> None:
    run = Batches([batch("e1", FIRST), batch("e1", FIRST), batch("e2", FIRST)])
    refused, rows = TupleBook(config()).accept_run(run, [FIRST * SLIDE_US] * 3)
    assert refused == {1: ("duplicate", FIRST + 1)}
    assert rows.sensor.tolist() == [0, 2, 3]


def test_recover_needs_steps() -> None:
    with pytest.raises(OperatorError, match="recover needs steps"):
        build_chain(config({"use": "recover"}), None)


def test_batches_that_do_not_count_are_named_by_reason() -> None:
    book = TupleBook(config(), 0)
    good: dict[str, Any] = {"edge": "e1", "incarnation": 5, "step": 10, "event_time_us": 10}

    def accept(sensor: list[int], **changes: Any) -> str:
        ids = np.array(sensor, dtype="<u4")
        batch = TupleBatch(**(good | changes), sensor=ids.tobytes(), value=np.zeros(len(ids)).tobytes())
        return book.accept(batch, 0)

    assert accept([0, 2], edge="e9") == "unknown-edge"
    assert accept([2, 0]) == "damaged"
    assert accept([0, 3]) == "unknown-sensor"
    assert accept([0, 4_000_000_000]) == "unknown-sensor"
    assert accept([0], event_time_us=401 * SLIDE_US) == "ahead"
    assert book.edges["e1"].incarnation == 0
    assert accept([0]) == ""
    assert accept([0]) == "duplicate"
    assert accept([0], incarnation=4, step=11) == "replaced"
    assert accept([], step=12) == ""


@pytest.mark.parametrize("unit_us", [1, SLIDE_US // 2, 2 * SLIDE_US])
def test_when_steps_are_counted_anew_nothing_is_refused_that_comes_next(unit_us: int) -> None:
    writer = owned(make_config())
    for number in range(5):
        for edge in EDGES[: 3 if number < 4 else 2]:
            writer.batch(edge, FIRST + number)
    changed = make_config(slide_us=unit_us, mode="tuples" if unit_us == 1 else "steps")
    writer.settings(changed)
    next_us = (FIRST + 6) * SLIDE_US
    writer.now_us = next_us
    for edge in EDGES:
        ids = np.array(SENSORS[edge], dtype="<u4")
        later = TupleBatch(
            edge=edge,
            incarnation=1,
            step=next_us // unit_us,
            event_time_us=next_us,
            sensor=ids.tobytes(),
            value=np.ones(len(ids)).tobytes(),
        )
        writer.raw(LogRecord(version=1, batch=later).SerializeToString())
    found = play(Slot(SLOT, load), writer.records)
    assert [topic for topic, _, _ in found].count(LATE) == 2  # what was open when the unit changed
    assert DEAD_LETTERS not in {topic for topic, _, _ in found}
    last = [Recovered.FromString(value) for topic, _, value in found if topic == RECOVERED][-3:]
    assert last[-1].event_time_us == next_us
    expected = [item.name for item in recompute(writer.records, load)]
    assert [name for topic, name, _ in found if topic == RECOVERED] == expected
