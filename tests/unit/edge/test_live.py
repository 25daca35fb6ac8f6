"""A live source on messages that the test puts in, under a clock that it moves."""

from __future__ import annotations

import pytest

from tests.unit.edge.worlds import (
    DISORDER_US,
    SLIDE_US,
    START_US,
    TURN_US,
    Rig,
)
from tsunagi.edge.inbox import Message


def test_the_clock_closes_steps_whether_or_not_anything_comes():
    rig = Rig()
    assert rig.source.observed_us == START_US
    rig.go(3)
    assert rig.complete_us() == 3_000_000 - DISORDER_US
    assert rig.source.delay_us == DISORDER_US
    assert not rig.source.finished


def test_readings_are_handed_out_in_any_order_with_their_own_times():
    rig = Rig()
    rig.feed.say("s0", START_US + 40_000, 2.0)
    rig.feed.say("s2", START_US - 30_000, 3.0)
    rows = rig.go(0.1)
    assert [(row.time_us - START_US, row.places.tolist(), row.values.tolist()) for row in rows] == [
        (40_000, [0], [2.0]),
        (-30_000, [1], [3.0]),
    ]
    assert rows[0].origin is not None
    assert [row.origin.name for row in rows if row.origin] == ["mqtt/77/0", "mqtt/77/1"]
    assert rig.reasons() == []


def test_what_is_too_far_ahead_or_older_than_the_first_window_is_unusable():
    rig = Rig()
    rig.feed.say("s0", START_US + 5_000_001)
    rig.feed.say("s0", START_US + 5_000_000)
    rig.feed.say("s0", START_US - 20_000_000)
    assert len(rig.turn()) == 1
    first, second = rig.source.unusable()
    assert (first.reason, first.sensor, first.detail) == (
        "ahead",
        "s0",
        "its time is 5.000 s ahead of the edge's clock",
    )
    assert (second.reason, second.number) == ("reading-late", 2)
    assert "20.000 s behind" in second.detail
    assert rig.source.skipped_rows == 0


def test_a_reading_that_still_holds_is_taken_however_old():
    rig = Rig()
    rig.feed.say("s2", START_US - 59_000_000)
    rig.feed.say("s2", START_US - 61_000_000)
    assert [row.time_us for row in rig.turn()] == [START_US - 59_000_000]
    assert rig.reasons() == ["reading-late"]


def test_each_fault_comes_with_its_payload_and_origin():
    rig = Rig()
    rig.feed.raw(b"\x00\xff broken", START_US)
    rig.feed.say("s1", START_US)
    assert rig.turn() == []
    broken, foreign = rig.source.unusable()
    assert (broken.reason, broken.payload, broken.letter) == ("unreadable", b"\x00\xff broken", True)
    assert broken.origin is not None
    assert (broken.origin.name, broken.origin.place) == ("mqtt/77/0", "here")
    assert (foreign.reason, foreign.sensor, foreign.letter) == ("foreign-sensor", "s1", True)


def test_each_reading_of_a_message_is_a_row_and_each_fault_a_letter_of_its_own():
    rig = Rig(fields=[{"values": ["s0", "s1", "s2", "s9"], "missing": [-1], "time_unit": "us"}])
    rig.feed.raw(b'{"time": %d, "s0": 1.5, "s1": 2, "s2": 3.5, "s9": 4}' % START_US, START_US)
    rig.feed.raw(b'{"time": %d, "s0": -1, "s2": 5}' % (START_US + 9), START_US)
    rows = rig.turn()
    assert [(row.places.tolist(), row.values.tolist()) for row in rows] == [([0], [1.5]), ([1], [3.5]), ([1], [5.0])]
    assert [row.origin.name for row in rows if row.origin] == ["mqtt/77/0", "mqtt/77/0/2", "mqtt/77/1/1"]
    found = [(item.reason, item.letter, item.origin.name if item.origin else "") for item in rig.source.unusable()]
    assert found == [
        ("foreign-sensor", True, "mqtt/77/0/1"),
        ("unknown-sensor", True, "mqtt/77/0/3"),
        ("missing", False, "mqtt/77/1"),
    ]


def test_foreign_readings_are_only_counted_if_so_set():
    rig = Rig(foreign="count")
    rig.feed.say("s1", START_US)
    rig.feed.say("s9", START_US)
    rig.turn()
    assert [(item.reason, item.letter) for item in rig.source.unusable()] == [
        ("foreign-sensor", False),
        ("unknown-sensor", True),
    ]


def test_steps_wait_for_what_lies_in_the_queue():
    rig = Rig()
    for number in range(10):
        rig.feed.say("s0", START_US + number)
    rig.go(0.6)
    before = rig.complete_us()
    for number in range(10):
        rig.feed.say("s0", START_US + number)
    rig.now_us += TURN_US
    assert len(rig.turn(4)) == 4
    assert rig.complete_us() == before
    assert len(rig.turn(4)) == 4
    assert rig.complete_us() == before
    assert len(rig.turn(4)) == 2
    assert rig.complete_us() == before + TURN_US


def test_a_queue_that_never_empties_holds_steps_up_for_a_bounded_time():
    rig = Rig(max_behind_s=2.0)
    for _ in range(39):
        for number in range(10):
            rig.feed.say("s0", rig.now_us + number)
        rig.now_us += TURN_US
        rig.turn(5)
        assert rig.complete_us() == -DISORDER_US
    rig.feed.say("s0", rig.now_us)
    rig.now_us += 2 * TURN_US
    rig.turn(5)
    assert rig.complete_us() == rig.now_us - START_US - DISORDER_US


def test_after_a_pause_the_thread_gets_time_to_bring_what_had_come():
    rig = Rig()
    rig.go(1)
    before = rig.complete_us()
    rig.now_us += 3_000_000
    rig.turn()
    assert rig.complete_us() == before
    rig.feed.say("s0", START_US + 1_500_000)
    rig.now_us += 100_000
    assert len(rig.turn()) == 1
    assert rig.complete_us() == before
    rig.go(0.2)
    assert rig.complete_us() == rig.now_us - START_US - DISORDER_US


@pytest.mark.parametrize("behind", ["skip", "send"])
def test_steps_of_a_long_pause_are_skipped_or_sent(behind):
    rig = Rig(when_behind=behind)
    rig.go(1)
    before = rig.source.send_after_us
    rig.now_us += 7_000_000
    rig.turn()
    if behind == "skip":
        assert rig.source.send_after_us == rig.now_us - DISORDER_US
    else:
        assert rig.source.send_after_us == before


def test_what_is_delivered_again_counts_once():
    rig = Rig()
    rig.feed.say("s0", START_US, 1.0)
    rig.feed.say("s0", START_US, 1.0)  # another reading that happens to be equal
    rig.feed.say("s0", START_US, 1.0, repeated=True)
    rig.feed.say("s0", START_US, 2.0, repeated=True)  # it had not arrived before
    assert [row.values.tolist() for row in rig.turn()] == [[1.0], [1.0], [2.0]]
    (item,) = rig.source.unusable()
    assert (item.reason, item.letter) == ("repeated", False)


def test_repeats_are_forgotten_with_their_windows():
    rig = Rig()
    for number in range(100):
        rig.feed.say("s0", START_US + number)
    rig.turn()
    rig.source.progress(START_US + 49)
    assert len(rig.source._seen) == len(rig.source._seen_in_order) == 50


def test_what_the_queue_dropped_is_counted():
    rig = Rig(queue=2)
    for number in range(5):
        rig.feed.inbox.offer(Message(b"1", "here", START_US, sensor="s0", offset=number))
    assert len(rig.turn()) == 2
    (item,) = rig.source.unusable()
    assert (item.reason, item.count, item.letter) == ("overflow", 3, False)
    rig.turn()
    assert rig.reasons() == []


def test_a_source_that_ends_is_finished_once_the_steps_of_its_last_reading_may_close():
    rig = Rig("lines")
    last_us = (START_US // SLIDE_US + 2) * SLIDE_US + 1
    rig.feed.say("s0", last_us)
    rig.feed.ended = True
    assert not rig.source.finished  # it has not been looked at
    rig.turn()
    while not rig.source.finished:
        assert rig.now_us < START_US + 3_000_000
        rig.go(0.05)
    end_us = (START_US // SLIDE_US + 3) * SLIDE_US
    assert end_us <= rig.source.complete_until_us(rig.now_us) < end_us + TURN_US


def test_a_source_that_ends_without_a_word_is_finished_at_once():
    rig = Rig("lines")
    rig.feed.ended = True
    rig.turn()
    assert rig.source.finished
