"""The output queues of the secondary and of the primary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.standby.shell import output
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.frames import measured_run
from tsunagi.slot.outputs import Output
from tsunagi.slot.packed import PackedColumns
from tsunagi.slot.plain_outputs import PlainOutputs, plain_outputs
from tsunagi.standby.queue import REMEMBERED, PendingQueue, SilentQueue

GENERATION = 7


def waiting() -> PendingQueue:
    """A queue of a term in whose generation nothing is written yet."""
    queue = PendingQueue()
    queue.begin(GENERATION, NO_NAME)
    return queue


@pytest.fixture
def silent() -> SilentQueue:
    queue = SilentQueue()
    queue.add([output(2), output(4), output(4, 1, LATE), output(4, 2), output(7)])
    return queue


def names(outputs: list[Output]) -> list[tuple[int, int]]:
    return [(item.name.offset, item.name.index) for item in outputs]


def test_trimming_forgets_the_outputs_of_inputs_below_the_offset(silent: SilentQueue) -> None:
    silent.trim(2)
    assert len(silent) == 5
    silent.trim(4)
    assert len(silent) == 4
    silent.trim(3)
    assert names(silent.take(NO_NAME)) == [(4, 0), (4, 1), (4, 2), (7, 0)]


def test_taking_gives_what_is_not_in_recovered_and_all_side_records(silent: SilentQueue) -> None:
    assert names(silent.take(Name(4, 2))) == [(4, 1), (7, 0)]
    assert len(silent) == 0


def test_clearing_forgets_everything(silent: SilentQueue) -> None:
    silent.clear(8)
    assert silent.take(NO_NAME) == []


def test_an_output_that_was_not_made_of_the_same_record_contradicts_what_was_processed() -> None:
    queue = SilentQueue()
    queue.clear(2)
    assert not queue.contradicts(Name(1, 0), 99)  # what was made of it is not known
    assert queue.contradicts(Name(2, 0), 20)  # nothing was made of it
    made = [output(2), output(4), output(4, 1, LATE), output(7)]
    queue.add(replace(item, appended_us=10 * item.name.offset) for item in made)
    assert [queue.contradicts(Name(4, 0), us) for us in (40, 41)] == [False, True]
    assert [queue.contradicts(Name(2, 0), us) for us in (20, 40)] == [False, True]
    assert queue.contradicts(Name(4, 1), 40)  # of another topic
    assert queue.contradicts(Name(5, 0), 50)
    assert not queue.contradicts(Name(1, 0), 99)
    queue.take(NO_NAME)
    assert not queue.contradicts(Name(4, 0), 41)  # what is written is not kept


def test_what_was_trimmed_is_still_compared() -> None:
    queue = SilentQueue()
    queue.add([output(2), output(4), output(4, 1, LATE), output(7)])
    queue.trim(7)
    assert [queue.contradicts(Name(4, 0), us) for us in (0, 1)] == [False, True]
    assert queue.contradicts(Name(5, 0), 0)
    assert [queue.contradicts(Name(2, 0), us) for us in (0, 1)] == [False, True]
    queue.clear(5)
    assert not queue.contradicts(Name(4, 0), 1)


def test_where_nothing_was_made_an_output_contradicts_even_if_an_ack_covers_it() -> None:
    queue = SilentQueue()
    queue.clear(3)
    queue.trim(9)
    assert [queue.contradicts(Name(offset, 0), 0) for offset in (2, 3, 8)] == [False, True, True]


def test_of_many_that_were_trimmed_the_last_ones_are_compared() -> None:
    queue = SilentQueue()
    queue.add([output(offset) for offset in range(REMEMBERED + 5)])
    queue.trim(REMEMBERED + 5)
    assert [queue.contradicts(Name(offset, 0), 1) for offset in (0, 4, 5, REMEMBERED)] == [False, False, True, True]


def test_what_arrived_early_is_waited_for_when_it_is_sent_again() -> None:
    pending = waiting()
    outputs = [output(3), output(4)]
    pending.sent(outputs, GENERATION)
    pending.delivered(Name(4, 0), RECOVERED, GENERATION)
    pending.delivered(Name(3, 0), RECOVERED, GENERATION)
    pending.sent(outputs, GENERATION)
    pending.delivered(Name(3, 0), RECOVERED, GENERATION)
    assert pending.floor(9) == 4


def test_an_arrival_that_nobody_waits_for_changes_nothing() -> None:
    pending = waiting()
    pending.delivered(Name(3, 0), LATE, GENERATION)
    pending.delivered_run([output(4, topic=LATE)], GENERATION)
    assert (pending.floor(9), pending.last) == (9, NO_NAME)


def test_the_floor_is_the_first_input_whose_output_is_on_its_way() -> None:
    pending = waiting()
    assert pending.floor(9) == 9
    pending.sent([output(3), output(5), output(5, 1, DEAD_LETTERS)], GENERATION)
    assert pending.floor(9) == 3
    pending.delivered(Name(5, 0), RECOVERED, GENERATION)
    assert (pending.floor(9), pending.last) == (3, NO_NAME)
    pending.delivered(Name(3, 0), RECOVERED, GENERATION)
    assert (pending.floor(9), pending.last) == (5, Name(5, 0))
    pending.delivered(Name(5, 1), DEAD_LETTERS, GENERATION)
    assert (pending.floor(9), len(pending)) == (9, 0)


def test_outputs_that_arrive_together_are_noted_together() -> None:
    pending = waiting()
    outputs = [output(3), output(4), output(4, 1, LATE), output(5), output(6)]
    pending.sent(outputs, GENERATION)
    pending.delivered_run(outputs[3:], GENERATION)
    assert (pending.floor(9), pending.last) == (3, NO_NAME)
    pending.delivered_run(outputs[:2], GENERATION)
    assert (pending.floor(9), pending.last) == (4, Name(4, 0))
    pending.delivered_run(outputs[2:3], GENERATION)
    assert (pending.floor(9), pending.last, len(pending)) == (9, Name(6, 0), 0)


def test_a_name_that_is_on_its_way_twice_is_waited_for_twice() -> None:
    pending = waiting()
    ahead, all_of_them = [output(3), output(4)], [output(3), output(4), output(5)]
    pending.sent(ahead, GENERATION)
    pending.sent(all_of_them, GENERATION)
    pending.delivered_run(ahead, GENERATION)
    assert (pending.floor(9), pending.last) == (3, Name(4, 0))
    pending.delivered_run(all_of_them, GENERATION)
    assert (pending.floor(9), len(pending)) == (9, 0)


def test_what_arrives_from_an_earlier_term_does_not_turn_the_last_name_back() -> None:
    pending = waiting()
    pending.sent([output(3)], GENERATION)
    pending.begin(GENERATION, Name(8, 0))
    pending.delivered(Name(3, 0), RECOVERED, GENERATION)
    assert pending.last == Name(8, 0)


@given(st.permutations(range(8)))
def test_in_whatever_order_they_arrive_no_gap_is_acknowledged(order: list[int]) -> None:
    pending = waiting()
    outputs = [output(place // 2, place % 2, (RECOVERED, LATE)[place % 3 == 2]) for place in range(8)]
    pending.sent(outputs, GENERATION)
    arrived = set()
    for place in order:
        pending.delivered(outputs[place].name, outputs[place].topic, GENERATION)
        arrived.add(place)
        missing = min(set(range(8)) - arrived, default=8)
        assert pending.floor(99) == (missing // 2 if missing < 8 else 99)
    assert pending.last == Name(3, 1)


def test_a_place_that_is_not_behind_the_last_says_that_the_log_has_lost_its_end() -> None:
    queue = waiting()
    queue.sent([output(1), output(2), output(3)], GENERATION)
    assert queue.place(Name(1, 0), GENERATION, 5, 1)
    queue.delivered(Name(1, 0), RECOVERED, GENERATION)
    assert queue.last_end == 6
    queue.delivered(Name(2, 0), RECOVERED, GENERATION)
    assert queue.last_end == 0  # of this one the place is not known
    assert not queue.place(Name(3, 0), GENERATION, 5, 1)
    queue.delivered(Name(3, 0), RECOVERED, GENERATION)
    assert queue.last_end == 6


@pytest.mark.parametrize(("place", "behind"), [(8, True), (9, True), (7, False), (6, False)])
def test_outputs_that_were_sent_in_a_row_stand_in_a_row(place: int, *, behind: bool) -> None:
    """The last of them may stand behind the old end although the log has lost it: the first ones do not."""
    queue = waiting()
    assert queue.place(Name(1, 0), GENERATION, 5, 1)
    assert queue.place(Name(2, 2), GENERATION, place, 3) == behind


def test_what_is_on_its_way_twice_arrives_twice_in_whatever_order() -> None:
    pending = waiting()
    first, second = output(1, topic=LATE), output(2)
    pending.sent([first, second], GENERATION)
    pending.sent([first, second], GENERATION)  # written again by a new owner that had written it before, as a standby
    for item in (second, second, first, first):
        pending.delivered(item.name, item.topic, GENERATION)
    assert len(pending) == 0
    assert pending.floor(9) == 9


@pytest.mark.parametrize("late", [False, True])
def test_outputs_of_an_earlier_generation_count_for_nothing_though_their_names_are_the_same(*, late: bool) -> None:
    queue = waiting()
    earlier, new = [output(5), output(6)], [output(3), output(5)]
    queue.sent(earlier, GENERATION)
    queue.begin(GENERATION + 1, NO_NAME)
    queue.sent(new, GENERATION + 1)
    for number, item in enumerate(earlier):
        if late:
            assert queue.place(item.name, GENERATION, number, 1)
            queue.delivered_run([item], GENERATION)
        assert (queue.floor(9), queue.last, queue.last_end) == (3, NO_NAME, 0)
    for number, item in enumerate(new):
        assert queue.floor(9) == (item.name.offset if late else 3)
        assert queue.place(item.name, GENERATION + 1, 2 + number, 1)
        queue.delivered(item.name, item.topic, GENERATION + 1)
    assert (queue.floor(9), queue.last, queue.last_end) == ((9, Name(5, 0), 4) if late else (3, NO_NAME, 0))


def columns(begin: int, count: int) -> PlainOutputs:
    """Outputs of the inputs from an offset on, as columns."""
    origin = np.arange(count)
    run = measured_run(1, 1, np.zeros(count, np.uint32), np.ones(count), np.ones(count, np.int64), origin)
    numbers = np.array([origin + begin, origin + 1, origin + 1, origin + 1])
    made = plain_outputs(numbers, PackedColumns(run), origin, 1)
    assert made is not None
    return made


def test_columns_of_outputs_arrive_as_a_whole() -> None:
    pending, runs = waiting(), [columns(3, 5), columns(8, 4)]
    for run in runs:
        pending.sent(run, GENERATION)
    assert (len(pending), pending.floor(20)) == (9, 3)
    pending.delivered_run(runs[0], GENERATION)
    assert (len(pending), pending.floor(20), pending.last) == (4, 8, Name(7, 0))
    pending.delivered_run(runs[1], GENERATION)
    assert (len(pending), pending.floor(20), pending.last) == (0, 20, Name(11, 0))


def test_columns_of_outputs_may_arrive_one_by_one_and_out_of_turn() -> None:
    pending, first, second = waiting(), columns(3, 2), columns(6, 2)
    pending.sent(first, GENERATION)
    pending.sent([output(5, topic=LATE)], GENERATION)
    pending.sent(second, GENERATION)
    pending.delivered_run(second, GENERATION)
    assert (pending.floor(9), pending.last) == (3, NO_NAME)
    pending.delivered_run([first[0]], GENERATION)
    assert (pending.floor(9), pending.last) == (4, Name(3, 0))
    pending.delivered_run([first[1]], GENERATION)
    assert (pending.floor(9), pending.last) == (5, Name(4, 0))
    pending.delivered(Name(5, 0), LATE, GENERATION)
    assert (len(pending), pending.floor(9), pending.last) == (0, 9, Name(7, 0))


def test_columns_of_another_generation_hold_nothing_back() -> None:
    pending, run = waiting(), columns(3, 2)
    pending.sent(run, GENERATION + 1)
    assert pending.floor(9) == 9
    pending.delivered_run(run, GENERATION + 1)
    assert (len(pending), pending.last) == (0, NO_NAME)
