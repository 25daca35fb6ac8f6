"""The closing rules, one by one, and that the order in which the edges' batches stand in the log changes nothing."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.slot.small_slot import EDGES, FIRST, SENSORS, SLIDE_US, batch, make_config
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.messages import Events, TupleBatch, TypedColumn
from tsunagi.slot.edges import NEVER, OUT_AGAIN_US, ClosedStep
from tsunagi.slot.steps import StepBook

LATER_US = (FIRST + 10_000) * SLIDE_US


def make(cursor: int = FIRST, **changes: int) -> StepBook:
    return StepBook(make_config(**changes), cursor)


def deliver(book: StepBook, *edges: str, step: int = FIRST, incarnation: int = 1) -> list[int]:
    for edge in edges:
        assert book.accept(batch(edge, step, incarnation=incarnation), LATER_US) == ""
    return [closed.step for closed in book.close()]


def test_a_step_closes_when_every_edge_has_delivered_it() -> None:
    book = make()
    assert deliver(book, "e1", "e2") == []
    assert deliver(book, "e3") == [FIRST]
    assert book.cursor == FIRST + 1
    assert book.open == {}


def test_an_edge_that_is_ahead_speaks_for_the_steps_it_left_out() -> None:
    book = make()
    deliver(book, "e1", "e2")
    assert deliver(book, "e3", step=FIRST + 2) == [FIRST]
    assert deliver(book, "e1", "e2", step=FIRST + 2) == [FIRST + 1, FIRST + 2]


def test_values_of_edges_that_did_not_deliver_are_nan() -> None:
    book = make()
    book.edge_out("e2", FIRST, LATER_US)
    for edge in ("e1", "e3"):
        book.accept(batch(edge, FIRST), LATER_US)
    (closed,) = book.close()
    np.testing.assert_array_equal(closed.values, [FIRST, FIRST, np.nan, FIRST, FIRST])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"edge": "e9"}, "unknown-edge"),
        ({"sensor": pack_sensors([3, 5])}, "unknown-sensor"),
        ({"sensor": pack_sensors([0, 99])}, "unknown-sensor"),
        ({"value": b"\0" * 8}, "damaged"),
        ({"sensor": b"\0" * 7, "value": b"\0" * 14}, "damaged"),
        ({"event_time_us": 1}, "damaged"),
        ({"events": {"stream": ""}}, "damaged"),
        ({"events": {"rows": 3}}, "damaged"),
        ({"events": {"column": []}}, "damaged"),
        ({"column": {"kind": "TEXTS"}}, "damaged"),
        ({"column": {"value": b"\0" * 15}}, "damaged"),
        ({"column": {"valid": b"\1"}}, "damaged"),
        ({"column": {"kind": "TEXT", "value": b"\0\0\0\1" * 2, "text": ["a"]}}, "damaged"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_no_trace(change: dict[str, Any], reason: str) -> None:
    book = make()
    changed = batch("e1", FIRST, events=2)
    parts: dict[str, tuple[Any, type]] = {
        "events": (changed.events, Events),
        "column": (changed.events[0].column, TypedColumn),
    }
    for name, value in change.items():
        if name in parts:
            field, kind = parts[name]
            item = kind()
            item.CopyFrom(field[0])
            for inner, given in value.items():
                item.ClearField(inner)
                item.MergeFrom(kind(**{inner: given}))
            field[0].CopyFrom(item)
        else:
            setattr(changed, name, value)
    before = book.edge_states()
    assert book.accept(changed, LATER_US) == reason
    assert book.edge_states() == before
    assert book.open == {}


def test_a_batch_too_far_ahead_of_its_append_time_is_refused_and_the_edge_still_waited_for() -> None:
    book = make(max_ahead_us=2 * SLIDE_US)
    ahead = batch("e1", FIRST + 3, incarnation=9)
    assert book.accept(ahead, FIRST * SLIDE_US) == "ahead"
    assert book.edges["e1"].incarnation == 0
    assert book.accept(batch("e1", FIRST + 2), FIRST * SLIDE_US) == ""


def test_duplicates_late_ones_and_those_of_replaced_incarnations() -> None:
    book = make()
    deliver(book, *EDGES)
    assert book.accept(batch("e1", FIRST), LATER_US) == "closed"
    assert book.accept(batch("e1", FIRST + 1, incarnation=5), LATER_US) == ""
    assert book.accept(batch("e1", FIRST + 1, {0: -1.0}, incarnation=5), LATER_US) == "duplicate"
    assert book.accept(batch("e1", FIRST + 2, incarnation=4), LATER_US) == "replaced"
    assert book.accept(batch("e1", FIRST, incarnation=6), LATER_US) == "closed"
    assert book.accept(batch("e1", FIRST + 2, incarnation=5), LATER_US) == "replaced"  # the late one counted for that
    for edge in ("e2", "e3"):
        book.accept(batch(edge, FIRST + 1), LATER_US)
    assert book.close()[0].values[0] == FIRST + 1  # the first in the log won


def test_an_edge_is_out_from_its_step_on_and_a_batch_for_an_open_step_takes_it_back() -> None:
    book = make(max_skew_steps=1)
    deliver(book, "e1", "e2", step=FIRST + 1)
    book.edge_out("e3", FIRST, LATER_US)
    assert [closed.step for closed in book.close()] == [FIRST, FIRST + 1]
    assert deliver(book, "e1", "e2", step=FIRST + 2) == [FIRST + 2]
    assert deliver(book, "e3", step=FIRST + 4) == []
    assert book.edges["e3"].out_from == NEVER
    assert book.awaited(FIRST + 5) == list(EDGES)


def test_an_edge_is_never_out_before_what_it_has_delivered() -> None:
    book = make()
    deliver(book, "e1", step=FIRST + 3)
    book.edge_out("e1", FIRST, LATER_US)
    assert book.edges["e1"].out_from == FIRST + 4
    book.edge_out("nobody", FIRST, LATER_US)


def test_a_batch_for_a_closed_step_does_not_take_its_edge_back() -> None:
    book = make()
    book.edge_out("e3", FIRST, LATER_US)
    deliver(book, "e1", "e2")
    assert book.accept(batch("e3", FIRST), LATER_US) == "closed"
    assert book.edges["e3"].out_from == FIRST


def test_when_all_are_out_punctuation_moves_the_steps_on() -> None:
    book = make()
    for edge in EDGES:
        book.edge_out(edge, FIRST, LATER_US)
    assert book.close() == []
    book.punctuate(FIRST + 1)
    book.punctuate(FIRST)  # an older one takes nothing back
    closed = book.close()
    assert [item.step for item in closed] == [FIRST, FIRST + 1]
    assert all(np.isnan(item.values).all() for item in closed)


def test_punctuation_does_not_close_a_step_that_waits_for_an_edge() -> None:
    book = make()
    book.punctuate(FIRST + 5)
    assert deliver(book, "e1", "e2") == []


def test_readings_of_helpers_are_taken_while_their_step_is_open() -> None:
    book = make()
    book.helpers = {6: "e9", 11: "e9"}
    lent = TupleBatch(edge="e9", incarnation=1, step=FIRST, event_time_us=FIRST * SLIDE_US)
    lent.helper, lent.helper_value = pack_sensors([6, 7]), pack_floats([0.5, 0.25])
    assert book.accept(lent, LATER_US) == ""
    for edge in EDGES:
        book.accept(batch(edge, FIRST), LATER_US)
    (closed,) = book.close()
    assert closed.helpers == {6: 0.5}  # nobody wants the other one
    assert book.helper_readings == [1, 0]
    assert book.accept(lent, LATER_US) == ""
    assert book.helper_readings == [1, 2]
    assert book.lent_batches() == []
    lent.step, lent.event_time_us = FIRST + 2, (FIRST + 2) * SLIDE_US
    at_us = lent.event_time_us - book.config.max_ahead_us
    assert [book.accept(lent, appended_us) for appended_us in (at_us - 1, at_us)] == ["ahead", ""]
    assert book.lent_batches() == [lent]


def test_a_gap_longer_than_allowed_is_passed_over() -> None:
    book = make(max_gap_steps=5)
    deliver(book, *EDGES)
    for edge in EDGES:
        book.edge_out(edge, FIRST, LATER_US)
    assert deliver(book, "e1", step=FIRST + 7) == [FIRST + 7]
    assert book.skipped == 6
    assert deliver(book, "e1", step=FIRST + 13) == list(range(FIRST + 8, FIRST + 14))


def test_a_slot_begins_with_its_first_batch_less_what_clocks_may_differ() -> None:
    book = make(cursor=FIRST - 500, max_skew_steps=2)
    assert deliver(book, "e2", step=FIRST) == []
    assert book.cursor == FIRST - 2
    assert deliver(book, "e1", "e3", step=FIRST - 1) == [FIRST - 2, FIRST - 1]
    early = make(cursor=FIRST + 5)
    assert early.accept(batch("e1", FIRST), LATER_US) == "closed"


def test_a_context_goes_on_where_it_was_taken() -> None:
    book = make()
    deliver(book, "e1", step=FIRST + 1)
    book.edge_out("e2", FIRST + 1, LATER_US)
    other = StepBook(book.config, book.cursor, book.punctuated)
    other.restore(book.edge_states(), book.open_batches())
    for copy in (book, other):
        copy.accept(batch("e3", FIRST + 1), LATER_US)
        copy.accept(batch("e2", FIRST), LATER_US)
    assert same(book.close(), other.close())
    assert book.edge_states() == other.edge_states()


def same(one: list[ClosedStep], two: list[ClosedStep]) -> bool:
    return [(item.step, item.values.tobytes()) for item in one] == [(item.step, item.values.tobytes()) for item in two]


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[list[str], dict[str, list[int]]]:
    """Return the edges in the order of their batches, and each edge's steps (some are left out, the last is not)."""
    steps = {edge: sorted({*draw(st.sets(st.integers(FIRST, FIRST + 6))), FIRST + 7}) for edge in EDGES}
    order = [edge for edge, mine in steps.items() for _ in mine]
    return draw(st.permutations(order)), steps


@settings(max_examples=60, deadline=None)
@given(interleavings())
def test_any_interleaving_of_the_edges_gives_the_same_steps_and_every_value_once(
    drawn: tuple[list[str], dict[str, list[int]]],
) -> None:
    order, steps = drawn
    book = make(max_skew_steps=7)
    left = {edge: list(mine) for edge, mine in steps.items()}
    closed: list[ClosedStep] = []
    for edge in order:
        assert book.accept(batch(edge, left[edge].pop(0)), LATER_US) == ""
        closed += book.close()
    closed = [item for item in closed if item.step >= FIRST]
    assert [item.step for item in closed] == list(range(FIRST, FIRST + 8))
    for item in closed:
        for sensor, place in zip(book.config.sensors, range(5), strict=True):
            edge = next(edge for edge, mine in SENSORS.items() if sensor in mine)
            assert np.isnan(item.values[place]) == (item.step not in steps[edge])
            assert np.isnan(item.values[place]) or item.values[place] == item.step


@pytest.mark.parametrize("seed", range(8))
def test_an_edge_goes_out_once_a_second_of_the_log_however_often_somebody_says_so(seed: int) -> None:
    """Two deciders contradict each other at every turn: one puts the edge out, the other takes it back."""
    draw = random.Random(seed)
    book = make()
    log_us, step, seconds = LATER_US, FIRST, 40
    changes: list[tuple[int, bool]] = []  # (when, whether out)
    while log_us < LATER_US + seconds * 1_000_000:
        log_us += draw.randrange(200_000)
        before = book.edges["e2"].out_from
        if draw.random() < 0.5:
            step += 1
            book.accept(batch("e2", step), log_us)
        else:
            book.edge_out("e2", draw.choice((FIRST, step + 1, NEVER)), log_us)
        after = book.edges["e2"].out_from
        if (before == NEVER) != (after == NEVER):
            changes.append((log_us, after != NEVER))
        if draw.random() < 0.1:  # a new owner goes on from a context
            states, waiting = book.edge_states(), book.open_batches()
            book = make()
            book.restore(states, waiting)
    outs = [at for at, out in changes if out]
    assert 5 < len(outs) <= seconds + 1
    assert all(later - earlier >= OUT_AGAIN_US for earlier, later in pairwise(outs))


def test_an_edge_can_be_put_out_whatever_becomes_of_the_log_s_clock() -> None:
    book = make()
    book.edge_out("e2", FIRST, LATER_US)
    assert book.accept(batch("e2", FIRST), LATER_US) == ""
    book.edge_out("e2", FIRST + 1, LATER_US - 1)  # set back by as little as it may be
    assert book.edges["e2"].out_from == FIRST + 1


def test_readings_of_a_sensor_that_has_left_the_slot_since_are_left_out() -> None:
    """New settings, or a context of earlier ones: what was taken in keeps waiting, and closes without that sensor."""
    before = make()
    deliver(before, "e1", "e2")
    after = StepBook(
        make_config(sensors=(0, 3, 5, 8), names=("a", "c", "d", "e"), edges=("e1", "e2", "e3", "e3")), FIRST
    )
    after.restore(before.edge_states(), before.open_batches())
    assert after.accept(batch("e3", FIRST), LATER_US) == ""
    (closed,) = after.close()
    np.testing.assert_array_equal(closed.values, [FIRST] * 4)


def test_a_context_whose_batches_do_not_fit_is_refused() -> None:
    before = make()
    deliver(before, "e1")
    (waiting,) = before.open_batches()
    waiting.value = waiting.value[:-8]
    with pytest.raises(ValueError, match="the columns of e1's batch for step 1000 do not fit"):
        make().restore(before.edge_states(), [waiting])
