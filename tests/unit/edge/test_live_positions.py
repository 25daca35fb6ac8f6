"""What a live source on a Kafka topic keeps of its position, and how it goes on from there."""

from __future__ import annotations

from typing import Any

from tests.unit.edge.worlds import (
    DISORDER_US,
    START_US,
    Rig,
)
from tsunagi.edge.inbox import Begun, CaughtUp
from tsunagi.edge.source import LiveProgress, Offsets
from tsunagi.runtime.marks import LogMark


def resumed(**more: Any) -> Rig:
    """An edge that stopped 10 s ago: partition 0 read up to 50, of which 40 and later stand in open windows."""
    progress = LiveProgress({0: Offsets(50, 40), 1: Offsets(7, 7)}, START_US - 100_000_000)
    return Rig("kafka/plant", progress, until_us=START_US - 10_000_000, **more)


def test_a_topic_begun_at_its_end_closes_by_the_clock_at_once():
    rig = Rig("kafka/plant")
    rig.go(1)
    rig.feed.inbox.put(Begun({0: 100, 1: 3}, frozenset()))
    rig.go(1)
    assert rig.complete_us() == 2_000_000 - DISORDER_US
    assert rig.source.progress(0).partitions == {0: Offsets(100, 100), 1: Offsets(3, 3)}


def test_positions_keep_what_open_windows_contain():
    rig = Rig("kafka/plant")
    rig.feed.inbox.put(Begun({0: 5}, frozenset()))
    for number, later_us in enumerate((10, 30, 20, 40)):
        rig.feed.say("s0", START_US + later_us, offset=5 + number)
    rig.feed.raw(b"broken", START_US, offset=9)
    rows = rig.turn()
    assert [row.origin.name for row in rows if row.origin] == [f"kafka/plant/0/{offset}" for offset in (5, 6, 7, 8)]
    assert rig.source.progress(START_US).partitions == {0: Offsets(10, 5)}
    assert rig.source.progress(START_US + 20).partitions == {0: Offsets(10, 6)}
    assert rig.source.progress(START_US + 30).partitions == {0: Offsets(10, 8)}
    assert rig.source.progress(START_US + 40).partitions == {0: Offsets(10, 10)}


def test_after_a_restart_steps_close_as_far_as_the_topic_has_been_read():
    rig = resumed(when_behind="send")
    assert rig.feed.resume == LiveProgress({0: Offsets(50, 40), 1: Offsets(7, 7)}, START_US - 100_000_000)
    assert rig.source.observed_us == START_US - 100_000_000
    assert rig.source.send_after_us == START_US - 10_000_000
    rig.go(1)
    assert rig.complete_us() == -10_000_000  # nothing is known of the topic yet
    rig.feed.inbox.put(Begun({0: 50, 1: 7}, frozenset({0, 1})))
    rig.feed.say("s0", START_US - 10_500_000, offset=45, again=True)
    rig.feed.say("s0", START_US - 8_000_000, offset=50)
    rows = rig.go(0.1)
    assert [row.again for row in rows] == [True, False]
    assert rig.complete_us() == -10_000_000  # of partition 1 nothing has come
    rig.feed.say("s0", START_US - 6_000_000, offset=7, partition=1)
    rig.go(0.1)
    assert rig.complete_us() == -8_000_000 - DISORDER_US
    rig.feed.inbox.put(CaughtUp(0))
    rig.go(0.1)
    assert rig.complete_us() == -6_000_000 - DISORDER_US
    rig.feed.inbox.put(CaughtUp(1))
    rig.go(0.1)
    assert rig.source.complete_until_us(rig.now_us) == rig.now_us - DISORDER_US
    assert rig.reasons() == []


def test_after_a_restart_steps_that_are_over_are_skipped_and_their_readings_counted():
    rig = resumed(when_behind="skip")
    assert rig.source.send_after_us == START_US - DISORDER_US
    rig.feed.inbox.put(Begun({0: 50}, frozenset({0})))
    rig.feed.say("s0", START_US - 9_000_000, offset=50)
    rig.feed.say("s0", START_US - 900_000, offset=51)
    rig.feed.say("s0", START_US - 200_000_000, offset=52)
    rig.feed.inbox.put(CaughtUp(0))
    assert [row.time_us for row in rig.turn()] == [START_US - 900_000]
    assert rig.source.skipped_rows == 1
    assert rig.reasons() == ["reading-late"]


def test_what_was_told_before_is_not_told_again():
    rig = resumed()
    rig.feed.inbox.put(Begun({0: 50}, frozenset({0})))
    rig.feed.raw(b"broken", START_US, offset=41, again=True)
    rig.feed.say("s0", START_US - 500_000_000, offset=42, again=True)
    rig.feed.raw(b"broken", START_US, offset=50)
    assert rig.turn() == []
    assert rig.reasons() == ["unreadable"]
    assert rig.source.skipped_rows == 0
    assert rig.source.progress(0).partitions[0].next == 51


def test_a_topic_that_does_not_come_back_holds_steps_up_for_a_bounded_time():
    rig = resumed(max_behind_s=3.0)
    rig.go(2.9)
    assert rig.complete_us() == -DISORDER_US
    rig.go(0.2)
    assert rig.complete_us() > 2_000_000


def test_a_topic_made_anew_begins_anew():
    rig = Rig("kafka/plant")
    rig.feed.inbox.put(Begun({0: 500}, frozenset()))
    rig.feed.say("s0", START_US, offset=500)
    rig.turn()
    rig.feed.inbox.put(Begun({0: 0}, frozenset()))
    rig.feed.say("s0", START_US + 1, offset=0)
    rig.turn()
    assert rig.source.progress(START_US).partitions == {0: Offsets(1, 0)}


def test_an_offset_is_kept_with_its_mark_and_a_contradiction_stays():
    kept = LogMark("one", 5)
    rig = Rig("kafka/plant", LiveProgress({0: Offsets(50, 40, kept), 1: Offsets(7, 7, LogMark("one", 6))}, START_US))
    rig.feed.inbox.put(Begun({0: 50, 1: 0}, frozenset(), "one", "partition 1: something"))
    rig.go(1)
    found = rig.source.progress(0).partitions
    assert found == {0: Offsets(50, 50, kept), 1: Offsets(0, 0, LogMark("one", 0))}
    for offset in (48, 49):  # of open windows, read again
        rig.feed.say("s0", rig.now_us, offset=offset, digest=offset, again=True)
    rig.go(1)
    assert rig.source.progress(0).partitions[0].mark == LogMark("one", 49)
    rig.feed.say("s0", rig.now_us, offset=50, digest=123)
    rig.feed.inbox.put(Begun({0: 51, 1: 0}, frozenset(), "two"))
    rig.go(1)
    at = rig.source.progress(0).partitions[0]
    assert (at.next, at.mark) == (51, LogMark("two", 123))
    assert rig.source.fault == "partition 1: something"
