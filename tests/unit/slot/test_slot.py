"""What a slot makes of its log, record by record."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.hashes import NOBODYS_SHA, SHA
from tests.unit.slot.small_slot import (
    EDGES,
    FIRST,
    GENERATION,
    SLIDE_US,
    SLOT,
    Writer,
    batch,
    events_of,
    load,
    make_config,
    owned,
    play,
    random_log,
)
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import floats, octets, sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED
from tsunagi.runtime.messages import (
    EXACT,
    UNMODELLED,
    VERSION,
    Context,
    DeadLetter,
    Late,
    LogRecord,
    ModelChange,
    Ownership,
    Punctuation,
    Quarantine,
    Recovered,
)
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.edges import NOT_YET
from tsunagi.slot.models import INVERSES, LOADING
from tsunagi.slot.outputs import MAX_LETTER_BYTES
from tsunagi.slot.parsing import parse
from tsunagi.slot.slot import Slot
from tsunagi.standby.intake import Intake


def letters(found: list[tuple[str, Name, bytes]]) -> list[DeadLetter]:
    return [DeadLetter.FromString(value) for topic, _, value in found if topic == DEAD_LETTERS]


def made(found: list[tuple[str, Name, bytes]]) -> list[Recovered]:
    return [Recovered.FromString(value) for topic, _, value in found if topic == RECOVERED]


def test_a_closed_step_is_one_record_named_by_the_batch_that_closed_it() -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST)
    ((topic, name, value),) = play(Slot(SLOT, load), writer.records)
    message = Recovered.FromString(value)
    assert (topic, name) == (RECOVERED, Name(4, 0))
    assert (message.version, message.slot, message.generation) == (VERSION, SLOT, GENERATION)
    assert (message.offset, message.index, message.epoch) == (4, 0, 1)
    assert (message.step, message.event_time_us) == (FIRST, FIRST * SLIDE_US)
    assert message.appended_us == writer.records[4].appended_us
    assert sensors(message.sensor).tolist() == [0, 2, 3, 5, 8]
    assert floats(message.mean).tolist() == [FIRST] * 5
    assert set(octets(message.quality).tolist()) == {EXACT}


def test_a_record_is_written_even_when_no_sensor_has_a_value() -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST, {})
    ((_, _, value),) = play(Slot(SLOT, load), writer.records)
    message = Recovered.FromString(value)
    assert message.step == FIRST
    assert message.mean == message.sensor == b""


def test_names_of_one_input_count_up_over_all_topics() -> None:
    writer = Writer()
    writer.batch("e1", FIRST)
    writer.batch("e1", FIRST)  # a repeat, still set aside
    writer.batch("e2", FIRST)
    writer.batch("e3", FIRST + 1)
    writer.own(1)
    settings = writer.settings(make_config())
    found = play(Slot(SLOT, load), writer.records)
    assert [(topic, name) for topic, name, _ in found] == [
        (LATE, Name(settings.offset, 0)),
        (RECOVERED, Name(settings.offset, 1)),
    ]
    assert Late.FromString(found[0][2]).reason == "duplicate"


def test_what_was_set_aside_is_judged_by_its_own_append_time() -> None:
    writer = Writer()
    writer.batch("e1", FIRST + 6)
    writer.now_us += 100 * SLIDE_US
    writer.own(1)
    writer.settings(make_config())
    (letter,) = letters(play(Slot(SLOT, load), writer.records))
    assert letter.reason == "ahead"


@pytest.mark.parametrize("seed", range(5))
def test_names_increase_without_gaps_within_an_input(seed: int) -> None:
    found = play(Slot(SLOT, load), random_log(seed, make_config({"use": "recover"})))
    names = [name for _, name, _ in found]
    assert names == sorted(set(names))
    by_offset: dict[int, list[int]] = {}
    for name in names:
        by_offset.setdefault(name.offset, []).append(name.index)
    assert all(indices == list(range(len(indices))) for indices in by_offset.values())
    assert any(topic == LATE for topic, _, _ in found)
    assert any(topic == DEAD_LETTERS for topic, _, _ in found)


def test_a_control_record_of_another_epoch_changes_nothing() -> None:
    writer = owned(make_config())
    for step in (FIRST, FIRST + 1):
        writer.batch("e1", step)
        writer.batch("e2", step)
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    writer.own(2, "n2")
    done = len(writer.records) - 1
    for epoch in (1, 3):
        writer.out("e3", FIRST, epoch)
        writer.punctuation(FIRST + 1, epoch)
        writer.settings(make_config(eps=2.0), epoch)
        writer.model(SHA, epoch)
        writer.quarantine(len(writer.records) + 1, epoch)
    assert play(slot, writer.records[done:]) == []
    assert slot.register.void == 10
    assert (slot.settings.hash, slot.model_sha256) == (make_config().hash, "")
    writer.out("e3", FIRST, 2)
    assert len(play(slot, writer.records[-1:])) == 2


def test_a_quarantined_record_is_passed_over_and_written_down_once() -> None:
    writer = owned(make_config())
    bad = writer.batch("e1", FIRST)
    writer.quarantine(bad.offset)
    writer.quarantine(bad.offset - 1)
    slot = Slot(SLOT, load)
    slot.register.quarantined = {bad.offset}  # whoever is promoted has read on to the end
    (letter,) = letters(play(slot, writer.records))
    assert (letter.reason, letter.offset, letter.partition) == ("quarantined", bad.offset, SLOT)
    assert letter.value == bad.value
    book = slot.book
    assert book is not None
    assert book.edges["e1"].last_step == FIRST  # it has delivered, whatever it was


def test_what_waited_in_a_step_that_a_quarantined_record_closes_is_set_aside_with_it() -> None:
    writer = owned(make_config())
    waiting = [writer.batch(edge, FIRST) for edge in EDGES[:-1]]
    last = writer.batch(EDGES[-1], FIRST)
    writer.quarantine(last.offset)
    slot = Slot(SLOT, load)
    slot.register.quarantined = {last.offset}
    outputs = play(slot, writer.records)
    aside = letters(outputs)
    assert {letter.reason for letter in aside} == {"quarantined"}
    assert [letter.offset for letter in aside] == [last.offset, *(record.offset for record in waiting)]
    assert [name for _, name, _ in outputs] == [Name(last.offset, index) for index in range(len(EDGES) + 1)]
    assert LogRecord.FromString(aside[1].value).batch.edge == EDGES[0]
    assert slot.cursor == FIRST + 1
    assert slot.letters.counts["quarantined"] == len(aside)


def test_events_come_before_the_values_of_their_step_whoever_delivers_last() -> None:
    for order in (("e1", "e2", "e3"), ("e3", "e1", "e2")):
        writer = owned(make_config())
        for edge in order:
            writer.batch(edge, FIRST, events=2 if edge != "e2" else 0)
        found = made(play(Slot(SLOT, load), writer.records))
        assert [(message.query, message.step, message.rows, message.index) for message in found] == [
            ("doors", FIRST, 2, 0),
            ("doors", FIRST, 2, 1),
            ("", FIRST, 0, 2),
        ]
        texts = [text for message in found for column in message.column for text in column.text]
        assert texts == ["e1/0", "e1/1", "e3/0", "e3/1"], "in the order of edges"
        assert found[0].column == events_of("e1", FIRST, 2).column
        assert {message.event_time_us for message in found} == {FIRST * SLIDE_US}


def test_events_of_a_step_that_a_quarantined_record_closes_are_set_aside() -> None:
    writer = owned(make_config())
    for edge in EDGES[:-1]:
        writer.add(batch=batch(edge, FIRST, {}, events=1))
    last = writer.batch(EDGES[-1], FIRST)
    writer.quarantine(last.offset)
    slot = Slot(SLOT, load)
    slot.register.quarantined = {last.offset}
    outputs = play(slot, writer.records)
    assert len(letters(outputs)) == len(EDGES)
    assert [message.query for message in made(outputs)] == [""]


def test_what_waited_for_settings_that_are_quarantined_is_set_aside_and_the_settings_count() -> None:
    """A new owner would bring settings again, and die of what waits for them each time."""
    writer = Writer()
    writer.own(1, "n1")
    waiting = [writer.batch(edge, FIRST) for edge in EDGES]
    brings = writer.settings(make_config())
    writer.quarantine(brings.offset)
    slot = Slot(SLOT, load)
    slot.register.quarantined = {brings.offset}
    outputs = play(slot, writer.records)
    aside = letters(outputs)
    assert [letter.offset for letter in aside] == [brings.offset, *(record.offset for record in waiting)]
    assert {letter.reason for letter in aside} == {"quarantined"}
    assert slot.settings.hash == make_config().hash
    assert slot.cursor == FIRST + 1
    assert [recovered.sensor for recovered in made(outputs)] == [b""]
    for edge in EDGES:
        writer.batch(edge, FIRST + 1)
    (step,) = made(play(slot, writer.records[-len(EDGES) :]))
    assert sensors(step.sensor).tolist() == [0, 2, 3, 5, 8]


@pytest.mark.parametrize("seed", range(20))
def test_ownership_is_the_same_whatever_is_quarantined_and_repeated(seed: int) -> None:
    """Whoever has read on to the end, and whoever has processed up to there, say the same of epochs and numbers."""
    draw = random.Random(seed)
    writer = owned(make_config())
    epoch = 1
    for number in range(60):
        kind = draw.randrange(7)
        serial = 1000 * epoch + number
        body: dict[str, Any] = {"punctuation": Punctuation(epoch=epoch, step=FIRST + number)}
        if kind == 0:
            epoch += 1
            body = {"ownership": Ownership(epoch=epoch, node=f"n{epoch}", generation=GENERATION)}
        elif kind == 1:
            body = {"quarantine": Quarantine(epoch=epoch, offset=max(2, len(writer.records) + draw.randint(-5, 9)))}
        elif kind == 2:
            writer.batch("e1", FIRST + number)
            continue
        elif kind > 4:
            again = draw.choice(writer.records)
            writer.raw(again.value)
            continue
        writer.add(serial=serial, **body)
    intake = Intake(1.0)
    intake.on_records(writer.records)
    slot = Slot(SLOT, load)
    slot.register.quarantined |= intake.scan.quarantined  # as a replica tells it
    buried = [letter.offset for letter in letters(play(slot, writer.records)) if letter.reason == "quarantined"]
    for field in ("epoch", "owner", "at", "serial", "void"):
        assert getattr(slot.register, field) == getattr(intake.scan, field), field
    claims = {record.offset for record in writer.records if parse(record)[2] == "ownership"}
    assert not claims & set(buried)
    restored = Slot(SLOT, load)
    restored.restore(slot.context())
    assert (restored.register.epoch, restored.register.serial) == (intake.scan.epoch, intake.scan.serial)


def test_a_quarantine_behind_its_record_has_no_effect() -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST)
    before = play(Slot(SLOT, load), writer.records)
    writer.quarantine(2)
    assert play(Slot(SLOT, load), writer.records) == before


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff\xff", "unreadable"),
        (b"", "unreadable"),
        (None, "unreadable"),
        (LogRecord(version=VERSION + 1).SerializeToString(), "version"),
    ],
)
def test_a_record_that_cannot_be_read_goes_to_dead_letters(value: bytes | None, reason: str) -> None:
    writer = owned(make_config())
    writer.raw(value)
    (letter,) = letters(play(Slot(SLOT, load), writer.records))
    assert letter.reason == reason
    assert letter.value == (value or b"")
    assert letter.key == b"key"


def test_a_letter_holds_at_most_64_kib_of_its_record() -> None:
    writer = owned(make_config())
    writer.raw(b"\xff" * (MAX_LETTER_BYTES + 1))
    (letter,) = letters(play(Slot(SLOT, load), writer.records))
    assert len(letter.value) == MAX_LETTER_BYTES


def test_late_batches_and_dead_letters_say_why() -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST)
    closed = writer.batch("e1", FIRST)
    writer.add(batch={"edge": "e7", "step": FIRST})
    found = play(Slot(SLOT, load), writer.records)[1:]
    late = Late.FromString(found[0][2])
    assert (late.reason, late.offset, late.cursor, late.batch.edge) == ("closed", closed.offset, FIRST + 1, "e1")
    (letter,) = letters(found)
    assert letter.reason == "unknown-edge"
    assert "e7" in letter.detail


def test_a_model_that_the_node_lacks_leaves_the_record_to_be_processed_again() -> None:
    writer = owned(make_config({"use": "recover"}))
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    record = writer.model(NOBODYS_SHA)
    with pytest.raises(ModelError):
        slot.apply(record)
    assert slot.position == record.offset  # or a heartbeat would say that the record is done
    assert slot.model_sha256 == ""


def test_the_model_that_is_in_force_tags_the_values() -> None:
    writer = owned(make_config({"use": "recover"}))
    for edge in EDGES:
        writer.batch(edge, FIRST)
    writer.model(SHA)
    for edge in EDGES:
        writer.batch(edge, FIRST + 1)
    qualities = [
        set(octets(Recovered.FromString(value).quality).tolist())
        for _, _, value in play(Slot(SLOT, load), writer.records)
    ]
    assert qualities == [{UNMODELLED}, {EXACT}]


def test_new_settings_keep_the_open_steps_and_the_edges() -> None:
    writer = owned(make_config())
    writer.batch("e1", FIRST)
    writer.batch("e2", FIRST)
    writer.settings(make_config({"use": "select", "at_least": 0.0}))
    writer.batch("e3", FIRST)
    assert [name for _, name, _ in play(Slot(SLOT, load), writer.records)] == [Name(5, 0)]


def test_a_slot_without_settings_has_no_context_and_one_of_another_slot_is_refused() -> None:
    slot = Slot(SLOT, load)
    assert slot.cursor == NOT_YET
    with pytest.raises(ValueError, match="no context"):
        slot.context()
    play(slot, owned(make_config()).records)
    assert slot.last_name == NO_NAME
    with pytest.raises(ValueError, match=f"slot {SLOT}, expected at most {VERSION} of 9"):
        Slot(9, load).restore(slot.context())
    with pytest.raises(ValueError, match="found version 2"):
        Slot(SLOT, load).restore(Context(version=VERSION + 1, slot=SLOT))


def test_an_owner_whose_clock_is_fast_does_not_close_the_present() -> None:
    writer = Writer()
    writer.own(1, first_step=FIRST + 3000)
    writer.settings(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST + 1)
    (output,) = play(Slot(SLOT, load), writer.records)
    assert output[0] == RECOVERED


def test_a_model_that_comes_later_counts_although_its_record_was_tried_before() -> None:
    there: list[str] = []

    def later(sha256: str) -> Model:
        if not there:
            raise ModelError("not yet")
        return load(sha256)

    writer = owned(make_config({"use": "recover"}))
    record = writer.raw(
        LogRecord(version=VERSION, serial=5, model=ModelChange(epoch=1, sha256=SHA)).SerializeToString()
    )
    slot = Slot(SLOT, later)
    play(slot, writer.records[:-1])
    for _ in range(2):
        with pytest.raises(ModelError):
            slot.apply(record)
    there.append("now")
    slot.apply(record)
    assert (slot.model_sha256, slot.register.void, slot.register.serial) == (SHA, 0, 5)


def test_a_sensor_moves_to_another_edge_with_the_settings() -> None:
    config = make_config({"use": "recover"})
    moved = make_config({"use": "recover"}, edges=("e2", "e1", "e2", "e3", "e3"))  # sensor 0 was of e1
    writer = owned(config)
    for edge in ("e1", "e2", "e3"):
        writer.batch(edge, FIRST)
    writer.batch("e1", FIRST + 1, {2: 1.0})  # it has the new table first, and keeps the sensor to itself
    writer.settings(moved)
    writer.batch("e2", FIRST + 1, {0: 5.0, 3: 1.0})
    writer.batch("e3", FIRST + 1)
    slot = Slot(SLOT, load)
    made = play(slot, writer.records)
    assert [topic for topic, _, _ in made] == ["recovered"] * 2
    last = Recovered.FromString(made[-1][2])
    assert dict(zip(sensors(last.sensor).tolist(), floats(last.mean).tolist(), strict=True))[0] == 5.0


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_punctuation_closes_steps_though_it_killed_its_readers(quarantined: bool) -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST)
        writer.out(edge, FIRST + 1)
    place = writer.punctuation(FIRST + 2).offset
    slot = Slot(SLOT, load)
    if quarantined:
        slot.register.quarantined = {place}
    play(slot, writer.records)
    assert slot.cursor == FIRST + 3
    assert slot.last_name.offset == place


def test_what_is_set_aside_is_counted_by_its_reason() -> None:
    writer = owned(make_config())
    for edge in EDGES:
        writer.batch(edge, FIRST)
    writer.batch("e1", FIRST)
    for edge in ("unheard", "of"):
        writer.add(batch={"edge": edge, "step": FIRST})
    writer.raw(b"\xff")
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    assert slot.letters.counts == {"closed": 1, "unknown-edge": 2, "unreadable": 1}


def test_work_is_announced_before_it_is_done() -> None:
    """Whoever watches the worker must not take a long inversion for a stall."""
    done: list[float | str] = []

    def load_said(sha256: str) -> Model:
        done.append("load")
        return load(sha256)

    config = make_config({"use": "recover"})
    writer = owned(config)
    writer.model(SHA)
    slot = Slot(SLOT, load_said, done.append)
    play(slot, writer.records)
    width = len(config.sensors)
    inverses = INVERSES * float(width**3)  # the model's own matrices are diagonal
    expected = [LOADING * width**2 + inverses, "load", inverses]
    assert done == expected
    done.clear()
    Slot(SLOT, load_said, done.append).restore(slot.context())
    assert done[:3] == expected
    done.clear()
    play(slot, [writer.settings(make_config({"use": "recover"}, {"use": "select"}))])
    assert done == expected[2:]  # the filter is made anew, of the model that is there


def test_a_punctuation_closes_no_step_that_no_batch_might_be_of() -> None:
    config = make_config()
    writer = owned(config)
    for edge in EDGES:
        writer.batch(edge, FIRST)
        writer.out(edge, FIRST + 1)
    reach = config.max_ahead_us // SLIDE_US
    slot = Slot(SLOT, load)
    writer.punctuation(FIRST + reach + 2)
    play(slot, writer.records)
    assert slot.cursor == FIRST + 1
    play(slot, [writer.punctuation(FIRST + reach + 1)])
    assert slot.cursor == FIRST + reach + 2
