"""What was read and not processed yet, and when a context is better than reading on."""

from __future__ import annotations

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SLIDE_US, SLOT, Writer, batch
from tsunagi.runtime.log import TUPLES, Record
from tsunagi.runtime.marks import BREAK_US, digest_of
from tsunagi.runtime.messages import VERSION, Level1Ack, LogRecord
from tsunagi.slot.ownership import Register
from tsunagi.standby import intake as intakes
from tsunagi.standby.intake import KEPT_BYTES, LEAP_S, RECORD_OVERHEAD_BYTES, Intake


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


def test_events_count_as_tuples_do() -> None:
    """They are what a standby lets wait, and what a scaler sees of the load."""
    writer = Writer()
    for step in range(400):
        writer.batch("e1", FIRST + step, {0: 1.0}, events=9)
    intake = Intake(2.0)
    intake.on_records(writer.records)
    assert intake.tuples_per_record == pytest.approx(10.0, rel=0.05)


def test_ownership_and_quarantine_are_known_as_soon_as_they_are_read(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records)
    assert (intake.scan.epoch, intake.scan.owner, intake.scan.quarantined) == (1, "n1", {1})
    assert intake.next == 6
    assert [record.offset for record, _ in intake.backlog] == list(range(6))
    assert intake.backlog[5][1][:2] == (None, "unreadable")


def test_the_oldest_step_is_that_of_the_time_before_any_owner(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records)
    assert intake.oldest_step == FIRST


def test_what_was_read_before_is_passed_over(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records[:4])
    intake.on_records(writer.records)
    assert len(intake.backlog) == 6
    assert intake.read_bytes == sum(len(record.value or b"") for record in writer.records)


def test_of_claims_the_greatest_epoch_is_known_though_the_claim_was_void(writer: Writer) -> None:
    writer.own(5, "n2")
    writer.own(7, "n3", generation=0)
    writer.own(3, "n4")
    intake = Intake(2.0)
    assert intake.seen_epoch == 0
    intake.on_records(writer.records)
    assert intake.seen_epoch == 7


def test_an_output_follows_only_from_a_record_that_stands_at_its_place(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records)
    at_us = writer.records[0].appended_us
    assert [intake.caused(offset, at_us) for offset in (0, 5, 6, 7)] == [True, True, False, False]
    assert not Intake(2.0).caused(0, at_us)
    assert not intake.caused(6, 0)
    assert not intake.caused(0, at_us + 1)
    assert not intake.caused(5, at_us + 1)
    assert intake.caused(5, 0)  # of whose time nothing is known
    intake.backlog.popleft()
    assert intake.caused(0, at_us + 1)  # it was processed, and compared before that
    assert not intake.caused(1, at_us + 1)


def test_the_record_before_the_next_one_is_known_by_its_digest(writer: Writer) -> None:
    intake = Intake(2.0)
    assert intake.digest == 0
    intake.on_records(writer.records)
    last = digest_of(writer.records[-1])
    assert intake.digest == last != 0
    intake.jump(3, Register(), 17)
    assert intake.digest == last  # the context is of what was read before
    intake.jump(50, Register(), 17)
    assert intake.digest == 17
    intake.begin_at(2)
    assert intake.digest == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_where_the_logs_times_leap_between_two_reads_it_may_have_lost_its_end(sign: int) -> None:
    writer, intake = Writer(), Intake(2.0)
    for leap_us in (0, BREAK_US - 1, BREAK_US, 2 * BREAK_US):
        writer.now_us += sign * leap_us
        writer.batch("e1", FIRST)
    first, second, third, fourth = writer.records
    intake.on_records([first])
    intake.on_records([second])
    assert not intake.breaks
    intake.on_records([third, fourth])  # the log was there from one to the other
    assert list(intake.breaks) == [second]
    intake.begin_at(0)
    assert not intake.breaks


def test_what_stands_before_a_context_needs_no_comparison() -> None:
    writer, intake = Writer(), Intake(2.0)
    for _ in range(2):
        intake.on_records([writer.batch("e1", FIRST)])
        writer.now_us += BREAK_US
    assert len(intake.breaks) == 1
    intake.jump(50, Register())
    assert not intake.breaks


def test_the_first_batch_tells_when_a_slot_began(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records[2:3])
    assert intake.first_us == 0
    writer.now_us += 5
    writer.batch("e1", FIRST + 3)
    writer.now_us += 5
    writer.batch("e1", FIRST + 4)
    intake.on_records(writer.records[6:])
    assert intake.first_us == FIRST * SLIDE_US + 5
    intake.begin_at(0)
    assert (intake.first_us, intake.oldest_step) == (0, None)


def test_what_pulls_should_have_cost_is_told_once(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_level1(level1(1, 80, size=1000))
    values = sum(len(record.value or b"") for record in writer.records)
    intake.on_pulled(writer.records)
    intake.on_pulled(writer.records[:0])
    assert intake.take_pulled() == values + 6 * RECORD_OVERHEAD_BYTES
    intake.jump(80, Register())
    assert intake.take_pulled() == 1000
    assert intake.take_pulled() == 0


def test_the_longest_way_of_a_record_is_told_for_a_while() -> None:
    intake = Intake(2.0)
    assert intake.longest_way_us(0.0) == 0
    for now, appended_us, now_us in ((1.0, 1000, 1300), (1.1, 2000, 2700), (1.2, 3000, 3100)):
        intake.on_followed([Record(TUPLES, SLOT, 0, appended_us, b"", b"")], now, now_us)
    assert intake.longest_way_us(1.0) == 700
    assert intake.longest_way_us(1.15) == 100
    assert intake.longest_way_us(1.3) == 0


def test_a_jump_goes_on_from_the_context_alone(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records[:2])
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
    intake.on_records(writer.records[:4])
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


def test_what_was_read_saves_a_context_nothing() -> None:
    intake = Intake(2.0)
    a_record = 2 * 16 + RECORD_OVERHEAD_BYTES
    intake.begin_at(30)
    intake.end = 60  # the context is of a place that the log has not shown yet
    intake.on_level1(level1(1, 80, size=30 * a_record - 1))
    assert intake.jump_place(30) == 8
    intake.on_level1(level1(1, 80, size=30 * a_record))
    assert intake.jump_place(30) is None


def test_a_standby_far_behind_leaps_if_the_context_is_smaller_than_what_it_would_process() -> None:
    intake = Intake(2.0)
    a_record = 2 * 16 + RECORD_OVERHEAD_BYTES
    record_s = LEAP_S / 50
    assert intake.leap_place(20, 1.0) is None
    intake.on_level1(level1(1, 80, size=60 * a_record - 1))
    assert intake.leap_place(20, record_s) == 8
    assert intake.leap_place(20, record_s / 2) is None  # that little it processes itself
    assert intake.leap_place(80, 100.0) is None
    intake.on_level1(level1(1, 80, size=60 * a_record))
    assert intake.leap_place(20, record_s) is None


def test_a_context_behind_what_was_read_is_of_no_use(writer: Writer) -> None:
    intake = Intake(2.0)
    intake.on_records(writer.records)
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
        intake.on_records([Record(TUPLES, SLOT, offset, 0, b"", message.SerializeToString())])
    assert intake.tuples_per_record == pytest.approx(tuples / 2, rel=0.1)
    place = intake.extent()
    assert (place.record_tuples, place.resume) == (intake.tuples_per_record, 0)


def test_a_tuples_way_is_told_by_what_one_read_brings() -> None:
    intake = Intake(2.0)
    intake.on_followed([], 0.0, 10_000)
    assert intake.send_s == 0.0
    for read in range(200):
        appended_us = read * 50_000
        intake.on_followed(
            [Record(TUPLES, SLOT, read * 5 + i, appended_us, b"", b"") for i in range(5)], 0.0, appended_us + 2_000
        )
    assert intake.send_s == pytest.approx(0.002 / 10, rel=0.01)  # five records of two tuples each


def test_a_clock_behind_the_logs_says_nothing_of_a_tuples_way() -> None:
    intake = Intake(2.0)
    intake.on_followed([Record(TUPLES, SLOT, 0, 5_000_000, b"", b"")], 0.0, 1_000_000)
    assert intake.send_s == 0.0


def many(count: int) -> Writer:
    """A log of batches, with a claim before the last one."""
    made = Writer()
    for step in range(count - 2):
        made.batch("e1", FIRST + step)
    made.own(1, "n1")
    made.batch("e1", FIRST + count)
    return made


def test_beyond_what_memory_holds_records_are_scanned_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "HELD_BYTES", 5 * KEPT_BYTES)
    records, intake = many(40).records, Intake(2.0)
    for begin in range(0, 40, 4):
        intake.on_records(records[begin : begin + 4], bounded=True)
    assert (intake.next, intake.scanned, len(intake.backlog), intake.full) == (8, 40, 8, True)
    assert (intake.scan.owner, intake.digest) == ("n1", digest_of(records[-1]))
    assert [intake.caused(offset, records[offset].appended_us) for offset in (7, 8, 39)] == [True] * 3
    assert [intake.caused(offset, 7) for offset in (7, 8, 39)] == [False] * 3  # another record stood there
    assert [intake.caused(offset, 0) for offset in (8, 39, 40)] == [True, True, False]
    intake.on_records(records[8:12], bounded=True)
    assert intake.next == 8  # there is no room yet
    for _ in range(6):
        intake.backlog.popleft()
    assert intake.half_empty
    intake.on_records(records[8:12], bounded=True)
    assert [record.offset for record, _ in intake.backlog][-1] == intake.next - 1 < intake.scanned == 40
    intake.backlog.clear()
    intake.on_records(records, bounded=False)  # an owner follows, and gets each record once
    assert (intake.next, intake.scanned) == (40, 40)
    intake.on_records(many(42).records[40:], bounded=False)
    assert intake.backlog[-1][0].offset == intake.next - 1 == intake.scanned - 1 == 41
    assert intake.scan.epoch == 1


def test_behind_a_gap_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "HELD_BYTES", 5 * KEPT_BYTES)
    records, intake = many(40).records, Intake(2.0)
    for begin in range(0, 20, 4):
        intake.on_records(records[begin : begin + 4], bounded=True)
    intake.backlog.clear()
    intake.on_records(records[19:21], bounded=True)  # a claim compares the last record that it scanned
    assert (intake.next, len(intake.backlog), intake.scanned) == (8, 0, 21)
    intake.on_records(records[20:], bounded=False)
    assert (intake.next, len(intake.backlog), intake.scanned) == (8, 0, 40)


def test_a_log_that_lost_its_end_is_doubted_where_it_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "HELD_BYTES", 5 * KEPT_BYTES)
    writer, intake = many(20), Intake(2.0)
    for begin in range(0, 20, 4):
        intake.on_records(writer.records[begin : begin + 4], bounded=True)
    del writer.records[8:]
    writer.now_us += BREAK_US
    for step in range(16):
        writer.batch("e1", FIRST + 50 + step)
    intake.backlog.clear()
    intake.on_records(writer.records[8:], bounded=False)
    assert [record.offset for record in intake.breaks] == [7, 19]
    assert intake.doubtful() == (7, 20)


def test_a_context_beyond_what_was_kept_replaces_what_was_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "HELD_BYTES", 5 * KEPT_BYTES)
    records, intake = many(40).records, Intake(2.0)
    for begin in range(0, 40, 4):
        intake.on_records(records[begin : begin + 4], bounded=True)
    intake.jump(20, Register(), 5)
    assert (intake.next, intake.scanned, intake.digest, len(intake.backlog)) == (20, 20, 5, 0)
