"""A kept position says which log it is of."""

from __future__ import annotations

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import Position, Record
from tsunagi.runtime.marks import NO_MARK, LogMark, digest_of, record_before
from tsunagi.runtime.testing import MemoryLog


def test_records_differ_by_offset_time_key_and_value_and_nothing_is_mistaken_for_something() -> None:
    records = [
        Record("tuples", 0, 5, 1000, b"a", b"b"),
        Record("tuples", 0, 6, 1000, b"a", b"b"),
        Record("tuples", 0, 5, 2000, b"a", b"b"),
        Record("tuples", 0, 5, 1000, b"a", b"c"),
        Record("tuples", 0, 5, 1000, b"c", b"b"),
        Record("tuples", 0, 5, 1000, b"ab", b""),
        Record("tuples", 0, 5, 1000, b"ab", None),
        Record("tuples", 0, 5, 1000, None, b"ab"),
        Record("tuples", 0, 5, 1000, b"", b"ab"),
    ]
    digests = [digest_of(record) for record in records]
    assert len(set(digests)) == len(records)
    assert 0 not in digests
    assert digest_of(Record("recovered", 3, 5, 1000, b"a", b"b")) == digests[0]  # the mark's owner names the partition


def test_what_is_not_known_contradicts_nothing() -> None:
    kept = LogMark("first", 17)
    assert not kept.contradicts(kept)
    assert not kept.contradicts(NO_MARK)
    assert not NO_MARK.contradicts(kept)
    assert "made anew" in kept.contradicts(LogMark("second", 0))
    assert "lost its end" in kept.contradicts(LogMark("first", 18))


def test_the_record_before_a_position_is_found_in_the_log_alone() -> None:
    log = MemoryLog(ManualClock(), {"tuples": 2})
    reader = log.reader()
    for value in (b"a", b"b", b"c"):
        log.append("tuples", 1, None, value)
    found = record_before(reader, Position("tuples", 1, 1))
    assert found is not None
    assert found.value == b"a"
    assert reader.read(10, 0.0) == []  # it was asked a question, and follows nothing
    found = record_before(reader, Position("tuples", 1, 3))
    assert found is not None
    assert found.value == b"c"
    log.truncate("tuples", 1, 2)
    assert record_before(reader, Position("tuples", 1, 2)) is None  # deleted
    assert record_before(reader, Position("tuples", 1, 4)) is None  # beyond the end
    assert record_before(reader, Position("tuples", 0, 0)) is None  # nothing stands before the first


def test_a_topic_made_anew_has_another_id_and_its_offsets_begin_again() -> None:
    log = MemoryLog(ManualClock(), {"tuples": 1, "acks": 1})
    log.append("tuples", 0, None, b"a")
    before, other = log.topic_id("tuples"), log.topic_id("acks")
    log.make_anew("tuples")
    assert log.topic_id("tuples") not in {before, "", other}
    assert log.topic_id("acks") == other
    assert log.append("tuples", 0, None, b"b") == 0
    assert log.topic_id("nothing") == ""
