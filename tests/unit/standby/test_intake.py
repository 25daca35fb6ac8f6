"""What was read and not processed yet, and when a context is better than reading on."""

from __future__ import annotations

import pytest

from services.runtime.log import TUPLES, Record
from services.runtime.messages import VERSION, Level1Ack, LogRecord
from services.standby.intake import RECORD_OVERHEAD_BYTES, Intake
from services.standby.ownership import Register
from tests.unit.gateway.small_slot import EDGES, FIRST, SLOT, Writer, batch


@pytest.fixture
def writer() -> Writer:
    made = Writer()
    made.batch("e1", FIRST + 2)
    made.batch("e2", FIRST)
    made.own(1, "n1")
    made.batch("e1", FIRST - 5)
    made.quarantine(1)
    made.raw(b"\xff")
    return made


def test_ownership_and_quarantine_are_known_as_soon_as_they_are_read(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.take_in(writer.records)
    assert (intake.scan.epoch, intake.scan.owner, intake.scan.quarantined) == (1, "n1", {1})
    assert intake.next == 6
    assert [record.offset for record, _ in intake.backlog] == list(range(6))
    assert intake.backlog[5][1][:2] == (None, "unreadable")


def test_the_oldest_step_is_that_of_the_time_before_any_owner(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.take_in(writer.records)
    assert intake.oldest_step == FIRST


def test_what_was_read_before_is_passed_over(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.take_in(writer.records[:4])
    intake.take_in(writer.records)
    assert len(intake.backlog) == 6
    assert intake.read_bytes == sum(len(record.value or b"") for record in writer.records)


def test_a_jump_goes_on_from_the_context_alone(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.take_in(writer.records[:2])
    register = Register(epoch=4, owner="n9", quarantined={7})
    intake.jump(50, register)
    register.quarantined.add(8)
    assert (intake.next, len(intake.backlog), intake.jumps, intake.trimmed) == (50, 0, 1, 48)
    assert (intake.scan.epoch, intake.scan.quarantined) == (4, {7})


@pytest.mark.parametrize(("position", "left"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (3, [3]), (4, [])])
def test_a_jump_within_what_was_read_keeps_the_record_at_the_contexts_place(
    writer: Writer, position: int, left: list[int]
) -> None:
    """A context is of the state before the record at its offset, so that record is the next to be processed."""
    intake = Intake(2.0)
    intake.take_in(writer.records[:4])
    intake.jump(position, Register(epoch=4))
    assert [record.offset for record, _ in intake.backlog] == left
    assert (intake.next, intake.trimmed, intake.scan.epoch) == (4, 0, 1)


def level1(epoch: int, offset: int, size: int = 100) -> Level1Ack:
    return Level1Ack(epoch=epoch, offset=offset, context_offset=offset // 10, context_bytes=size)


def test_the_greatest_ack_of_the_newest_epoch_counts() -> None:
    intake = Intake(2.0)
    for epoch, offset in ((1, 40), (1, 30), (2, 20), (1, 50)):
        intake.on_level1(level1(epoch, offset))
    assert intake.level1 is not None
    assert (intake.level1.epoch, intake.level1.offset) == (2, 20)


def test_a_context_is_taken_when_it_is_smaller_than_what_it_saves() -> None:
    intake = Intake(2.0)
    a_record = 2 * 16 + RECORD_OVERHEAD_BYTES
    intake.end = 100
    assert intake.jump_place(0) is None
    intake.on_level1(level1(1, 80, size=80 * a_record - 1))
    assert intake.jump_place(0) == 8
    intake.on_level1(level1(2, 80, size=80 * a_record))
    assert intake.jump_place(0) is None
    assert intake.jump_place(0, blank=True) == 8
    assert intake.jump_place(1) == 8  # what stands before is gone


def test_a_context_behind_what_was_read_is_of_no_use(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.take_in(writer.records)
    intake.end = 6
    intake.on_level1(level1(1, 6, size=0))
    assert intake.jump_place(0, blank=True) is None


def test_held_tuples_are_those_since_the_resume_point() -> None:
    intake = Intake(2.0)
    intake.end = 100
    assert intake.held_tuples(0) == 200.0
    intake.on_level1(level1(1, 80, size=0))
    assert intake.held_tuples(0) == 40.0
    intake.on_level1(level1(1, 120, size=0))
    assert intake.held_tuples(0) == 0.0


def test_the_number_of_tuples_a_record_is_learnt_with_the_control_records_between() -> None:
    intake = Intake(50.0)
    tuples = len(batch(EDGES[0], FIRST).value) / 8
    for offset in range(400):
        control = LogRecord(version=VERSION, punctuation={"epoch": 1, "step": FIRST})
        message = LogRecord(version=VERSION, batch=batch(EDGES[0], FIRST)) if offset % 2 else control
        intake.take_in([Record(TUPLES, SLOT, offset, 0, b"", message.SerializeToString())])
    assert intake.tuples_per_record == pytest.approx(tuples / 2, rel=0.1)
    place = intake.place()
    assert (place.record_tuples, place.resume) == (intake.tuples_per_record, 0)


def test_a_tuples_way_is_told_by_what_one_read_brings() -> None:
    intake = Intake(2.0)
    intake.on_followed([], 10_000)
    assert intake.send_s == 0.0
    for read in range(200):
        appended_us = read * 50_000
        intake.on_followed(
            [Record(TUPLES, SLOT, read * 5 + i, appended_us, b"", b"") for i in range(5)], appended_us + 2_000
        )
    assert intake.send_s == pytest.approx(0.002 / 10, rel=0.01)  # five records of two tuples each


def test_a_clock_behind_the_logs_says_nothing_of_a_tuples_way() -> None:
    intake = Intake(2.0)
    intake.on_followed([Record(TUPLES, SLOT, 0, 5_000_000, b"", b"")], 1_000_000)
    assert intake.send_s == 0.0
