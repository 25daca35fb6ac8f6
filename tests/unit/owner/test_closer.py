"""Whom the owner stops waiting for, and when; time is the test's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SENSORS, batch, make_config
from tsunagi.owner.closer import ASK_S, DRAIN_SHARE, RECONNECT_S, REPEAT_S, Closer
from tsunagi.runtime.messages import EdgeOut, Punctuation
from tsunagi.runtime.settings import StepsSettings
from tsunagi.slot.deciding import OwnerView
from tsunagi.slot.edges import NEVER
from tsunagi.slot.ownership import Register
from tsunagi.slot.steps import StepBook
from tsunagi.slot.wish import Wish

LATER_US = 1 << 60
STEPS = StepsSettings(interval_s=0.1, window=10, slide=2, grace_s=0.5, max_skew_s=0.6)
SLIDE_S = 0.2
PATIENCE_S = 0.7
TICK_S = 0.05


def decide(
    closer: Closer,
    book: StepBook,
    now: float,
    log_us: int,
    lost: Mapping[str, float] = MappingProxyType({}),
    connected: bool = True,
) -> list[EdgeOut | Punctuation]:
    """Return what the closer decides on a book; the epoch is 0."""
    slot: Any = SimpleNamespace(book=book, appended_us=log_us, register=Register())
    records = closer.decide(OwnerView(slot, Wish(book.config), now, connected, lost))
    return [record.edge_out if record.HasField("edge_out") else record.punctuation for record in records]


class Owner:
    """A slot's owner, its clock and its edges; decisions are read back at once unless `deaf`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.book = StepBook(make_config(slide_us=STEPS.slide_us, max_skew_steps=STEPS.max_skew_steps), FIRST)
        self.closer = Closer(STEPS, self.now)
        self.connected = True
        self.lost: dict[str, float] = {}
        self.deaf = False
        self.decided: list[tuple[float, EdgeOut | Punctuation]] = []
        self.closed: list[int] = []
        self._began = self.now

    @property
    def step(self) -> int:
        return FIRST + round((self.now - self._began) / SLIDE_S)

    def deliver(self, edge: str, step: int) -> str:
        reason = self.book.accept(batch(edge, step), LATER_US)
        self.closer.on_batch(batch(edge, step), self.now)
        self.closed += [item.step for item in self.book.close()]
        return reason

    def tick(self) -> None:
        self.now = round(self.now + TICK_S, 6)
        for decision in decide(self.closer, self.book, self.now, round(self.now * 1e6), self.lost, self.connected):
            self.decided.append((round(self.now - self._began, 3), decision))
            if self.deaf:
                continue
            if isinstance(decision, EdgeOut):
                self.book.edge_out(decision.edge, decision.from_step, round(self.now * 1e6))
            else:
                self.book.punctuate(decision.step)
            self.closed += [item.step for item in self.book.close()]

    def run(self, seconds: float, shifts: dict[str, int], *, sent: bool = True) -> None:
        """Let time pass; each edge delivers a step a slide, `shifts` steps ahead of (or behind) the clock."""
        for _ in range(round(seconds / TICK_S)):
            before = self.step
            self.tick()
            if self.step != before and sent:
                for edge, shift in shifts.items():
                    self.deliver(edge, self.step + shift)

    @property
    def outs(self) -> list[tuple[float, str, int]]:
        return [(at, item.edge, item.from_step) for at, item in self.decided if isinstance(item, EdgeOut)]

    @property
    def punctuations(self) -> list[tuple[float, int]]:
        return [(at, item.step) for at, item in self.decided if isinstance(item, Punctuation)]


ALL = dict.fromkeys(EDGES, 0)
LEFT = dict.fromkeys(("e1", "e2"), 0)


def settled() -> Owner:
    owner = Owner()
    owner.run(2.0, ALL)
    assert owner.decided == []
    return owner


def test_nothing_is_decided_while_all_deliver() -> None:
    owner = settled()
    assert owner.closed[-1] == owner.step


def test_a_silent_edge_is_waited_for_a_slide_and_the_grace() -> None:
    owner = settled()
    last = owner.step
    owner.run(PATIENCE_S - 3 * TICK_S, LEFT)
    assert owner.outs == []
    owner.run(3 * TICK_S, LEFT)
    ((_, edge, from_step),) = owner.outs
    assert (edge, from_step) == ("e3", last + 1)
    assert owner.closed[-1] >= last + 3
    owner.run(1.0, LEFT)
    assert len(owner.decided) == 1


def test_an_edge_that_comes_back_is_waited_for_again() -> None:
    owner = settled()
    owner.run(2.0, LEFT)
    owner.deliver("e3", owner.step + 1)
    assert owner.book.edges["e3"].out_from == NEVER
    owner.run(1.0, ALL)
    assert len(owner.decided) == 1


def test_an_edge_that_leaves_in_good_order_is_out_at_once() -> None:
    owner = settled()
    owner.closer.on_leaving("e3", 1, owner.step)
    left_at = owner.step
    owner.run(SLIDE_S, LEFT)
    owner.tick()
    assert [(edge, from_step) for _, edge, from_step in owner.outs] == [("e3", left_at + 1)]


def test_batches_on_their_way_when_it_left_are_still_waited_for() -> None:
    owner = settled()
    owner.closer.on_leaving("e3", 1, owner.step + 2)
    owner.run(2 * SLIDE_S, LEFT)
    assert owner.outs == []
    owner.deliver("e3", owner.step - 1)
    owner.deliver("e3", owner.step)
    owner.run(SLIDE_S, LEFT)
    owner.tick()
    assert [edge for _, edge, _ in owner.outs] == ["e3"]


def test_a_new_process_of_an_edge_that_left_is_waited_for() -> None:
    owner = settled()
    owner.closer.on_leaving("e3", 1, owner.step)
    owner.deliver("e3", owner.step + 1)
    owner.run(1.0, ALL)
    assert owner.outs == []


@pytest.mark.parametrize(("lost", "at_once"), [(1, True), (3, True), (4, False), (12, False)])
def test_edges_whose_heartbeats_stop_together_are_waited_for_until_their_batches_stop(
    lost: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What befalls many edges at one moment lies between them and the owner."""
    names = [f"x{number}" for number in range(12)]
    for sensor, name in enumerate(names):
        monkeypatch.setitem(SENSORS, name, (sensor,))
    fleet: dict[str, Any] = {"sensors": tuple(range(12)), "names": tuple(names), "edges": tuple(names)}
    owner = Owner()
    owner.book = StepBook(make_config(slide_us=STEPS.slide_us, max_skew_steps=STEPS.max_skew_steps, **fleet), FIRST)
    owner.run(2.0, dict.fromkeys(names, 0))
    left = dict.fromkeys(names[lost:], 0)
    owner.lost = dict.fromkeys(names[:lost], owner.now)
    owner.run(SLIDE_S + 2 * TICK_S, left)
    assert len(owner.outs) == (lost if at_once else 0)
    owner.run(PATIENCE_S, left)
    assert sorted(edge for _, edge, _ in owner.outs) == sorted(names[:lost]), "each is put out once, and stays out"


def test_a_slow_clock_within_the_skew_is_waited_for() -> None:
    owner = settled()
    owner.run(3.0, {"e1": 0, "e2": 0, "e3": -STEPS.max_skew_steps})
    assert owner.decided == []
    assert owner.closed[-1] == owner.step - STEPS.max_skew_steps


def test_a_slow_clock_beyond_the_skew_is_not() -> None:
    owner = settled()
    owner.run(STEPS.grace_s - TICK_S, {"e1": 0, "e2": 0, "e3": -STEPS.max_skew_steps - 4})
    assert owner.outs == []
    owner.run(3.0, {"e1": 0, "e2": 0, "e3": -STEPS.max_skew_steps - 4})
    assert {edge for _, edge, _ in owner.outs} == {"e3"}
    assert owner.closed[-1] == owner.step


def test_a_fast_clock_expels_nobody() -> None:
    owner = settled()
    owner.run(3.0, {"e1": 3, "e2": 0, "e3": 0})
    assert owner.decided == []
    assert owner.closed[-1] == owner.step


def test_an_edge_out_whose_batches_come_a_little_late_is_taken_back() -> None:
    owner = settled()
    owner.run(2.0, LEFT)
    owner.run(3.0, {"e1": 0, "e2": 0, "e3": -1})
    assert owner.book.edges["e3"].out_from == NEVER
    assert owner.closed[-1] == owner.step - 1


def test_nothing_is_decided_while_not_connected_and_the_edges_get_time_afterwards() -> None:
    owner = settled()
    owner.connected = False
    owner.run(5.0, ALL, sent=False)
    assert owner.decided == []
    owner.connected = True
    owner.run(RECONNECT_S + DRAIN_SHARE * 5.0 + PATIENCE_S - TICK_S, ALL, sent=False)
    assert owner.decided == []
    owner.run(3 * TICK_S, ALL, sent=False)
    assert {edge for _, edge, _ in owner.outs} == set(EDGES)


def test_short_stalls_do_not_put_off_for_ever_what_is_due() -> None:
    owner = settled()
    for _ in range(4):
        owner.connected = False
        owner.run(0.2, LEFT)
        owner.connected = True
        owner.run(1.2, LEFT)
    assert [edge for _, edge, _ in owner.outs] == ["e3"]


def test_edges_are_not_silent_for_as_long_as_their_owner_was_busy_with_one_step() -> None:
    owner = settled()
    owner.now += 3.0  # one step of a large slot, say
    owner.tick()
    assert owner.decided == []
    for edge in EDGES:  # what they sent meanwhile is read
        owner.deliver(edge, owner.step)
    owner.run(1.0, ALL)
    assert owner.decided == []


def test_an_owner_that_is_always_busy_still_finds_who_is_silent() -> None:
    owner = settled()
    for _ in range(8):
        owner.now += 3 * SLIDE_S
        for edge in EDGES[1:]:
            owner.deliver(edge, owner.step)
        owner.tick()
    assert {edge for _, edge, _ in owner.outs} == {EDGES[0]}


def test_one_stall_after_the_other_does_not_hide_a_silent_edge() -> None:
    owner = settled()
    for _ in range(6):
        owner.connected = False
        owner.run(TICK_S, LEFT)
        owner.connected = True
        owner.run(0.3, LEFT)
    assert [edge for _, edge, _ in owner.outs] == ["e3"]


def test_edges_that_drain_their_spools_in_that_time_are_not_judged() -> None:
    owner = settled()
    first = owner.step + 1
    owner.connected = False
    owner.run(5.0, ALL, sent=False)
    owner.connected = True
    owner.run(1.0, ALL, sent=False)
    for edge in EDGES:
        for step in range(first, owner.step + 1):
            assert owner.deliver(edge, step) == ""
    owner.run(2.0, ALL)
    assert owner.decided == []


def test_when_all_are_silent_the_steps_go_on_at_most_one_a_slide() -> None:
    owner = settled()
    before = len(owner.closed)
    owner.run(4.0, {})
    assert {edge for _, edge, _ in owner.outs} == set(EDGES)
    assert [step for _, step in owner.punctuations] == owner.closed[before:]
    times = [at for at, _ in owner.punctuations]
    assert len(times) > 10
    assert all(late - early > SLIDE_S - 1e-6 for early, late in pairwise(times))


def test_a_punctuation_that_does_not_come_back_is_written_again_after_a_while() -> None:
    owner = settled()
    owner.run(PATIENCE_S + 1.0, {})
    owner.deaf = True
    owner.decided.clear()
    owner.run(2.0, {})
    times = [at for at, _ in owner.punctuations]
    assert len({step for _, step in owner.punctuations}) == 1
    assert 3 <= len(times) <= 5
    assert all(later - earlier >= REPEAT_S - 1e-6 for earlier, later in pairwise(times))


@pytest.mark.parametrize("heard", [True, False])
def test_a_short_stall_is_not_counted_as_an_edges_silence(heard: bool) -> None:
    owner = settled()
    if not heard:
        owner.closer = Closer(STEPS, owner.now)
    began = owner.now - 100.0
    owner.run(0.2, LEFT)
    owner.connected = False
    owner.run(0.4, LEFT)
    owner.connected = True
    owner.run(3.0, LEFT)
    stall_s = 0.4 + 0.4 + DRAIN_SHARE * 0.4  # it, and the time to connect again and to drain
    ((at, edge, _),) = owner.outs
    assert edge == "e3"
    assert PATIENCE_S + stall_s - SLIDE_S <= at - began <= PATIENCE_S + stall_s + 2 * TICK_S


def test_an_edge_that_never_delivers_is_not_waited_for_when_others_do() -> None:
    owner = Owner()
    owner.run(3.0, LEFT)
    assert [edge for _, edge, _ in owner.outs] == ["e3"]
    assert owner.closed[-1] == owner.step


def test_a_slot_that_no_edge_has_ever_fed_stands_still() -> None:
    owner = Owner()
    owner.run(5.0, {})
    assert owner.decided == []


def test_from_a_slots_first_batch_on_the_other_edges_have_their_whole_patience() -> None:
    owner = Owner()
    owner.run(60.0, {}, sent=False)  # long after the owner took over the first edge of many begins
    owner.run(PATIENCE_S, {"e1": 0})
    assert not owner.decided
    owner.run(0.2, {"e1": 0})
    assert sorted(item.edge for _, item in owner.decided if isinstance(item, EdgeOut)) == ["e2", "e3"]


def test_what_does_not_come_back_is_written_again() -> None:
    owner = settled()
    owner.deaf = True
    owner.run(PATIENCE_S + 2 * ASK_S + 0.2, LEFT)
    assert len(owner.outs) == 3
    assert len({(edge, from_step) for _, edge, from_step in owner.outs}) == 1


def test_a_new_owner_gives_every_edge_its_time_again() -> None:
    owner = settled()
    owner.run(0.5, LEFT)
    owner.closer = Closer(STEPS, owner.now)
    owner.run(PATIENCE_S - TICK_S, LEFT)
    assert owner.decided == []
    owner.run(3 * TICK_S, LEFT)
    assert [edge for _, edge, _ in owner.outs] == ["e3"]


def test_an_edge_whose_heartbeats_stopped_is_out_at_once_whenever_the_owner_took_over() -> None:
    book = StepBook(make_config(), cursor=FIRST)
    gone, *others = sorted(book.edges)
    for name in others:
        book.edges[name].last_step = FIRST
    book.edges[gone].last_step = FIRST - 1
    steps = StepsSettings(interval_s=0.1, window=10, slide=2, grace_s=0.5)
    closer = Closer(steps, now=100.0)
    assert decide(closer, book, 100.01, 0) == []
    decisions = decide(closer, book, 100.02, 0, {gone: 100.0})
    assert decisions == [EdgeOut(edge=gone, from_step=FIRST)]


@pytest.mark.parametrize("seed", range(6))
def test_a_last_word_said_again_does_nothing_to_an_edge_that_lives(seed: int) -> None:
    """Words of former processes, and of this one's past, in any order and at any time, to a new owner as well."""
    draw = random.Random(seed)
    owner = settled()
    words = [(incarnation, owner.step - draw.randrange(3, 50)) for incarnation in (0, 0, 1)]
    for _ in range(60):
        owner.closer.on_leaving("e3", *draw.choice(words))
        if draw.random() < 0.1:
            owner.closer = Closer(STEPS, owner.now)
        owner.run(draw.choice((TICK_S, 2 * TICK_S)), ALL)
    assert owner.decided == []


def test_batches_of_an_edge_whose_heartbeats_stay_away_show_that_it_lives() -> None:
    owner = settled()
    heartbeats_due = owner.now
    for _ in range(200):
        owner.lost = {"e3": heartbeats_due}
        owner.run(TICK_S, ALL)
    assert [edge for _, edge, _ in owner.outs] == ["e3", "e3"]  # none had come yet since the last heartbeat was due
    assert owner.book.edges["e3"].out_from == NEVER
    owner.run(PATIENCE_S + 2 * TICK_S, LEFT)  # by its data alone, then
    assert len(owner.outs) == 3
    assert owner.book.edges["e3"].out_from < NEVER


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_on_an_edge_are_a_second_apart_whatever_contradicts_whom(seed: int) -> None:
    draw = random.Random(seed)
    owner = settled()
    for _ in range(600):
        owner.lost = draw.choice(({}, {"e3": owner.now + 1.0}))
        if draw.random() < 0.3:
            owner.closer.on_leaving("e3", draw.randrange(2), owner.step - draw.randrange(4))
        owner.run(TICK_S, draw.choice((ALL, LEFT, {"e1": 0, "e2": 0, "e3": -1})))
    out = [at for at, _, from_step in owner.outs if from_step != NEVER]
    back = [at for at, _, from_step in owner.outs if from_step == NEVER]
    assert out
    assert all(later - earlier > ASK_S - 1e-6 for times in (out, back) for earlier, later in pairwise(times))


def doubted() -> tuple[StepBook, Closer, str]:
    """A step that waits for one edge whose heartbeats have stopped."""
    book = StepBook(make_config(max_skew_steps=STEPS.max_skew_steps), cursor=FIRST)
    gone, *others = sorted(book.edges)
    for name in others:
        book.edges[name].last_step = FIRST
    book.edges[gone].last_step = FIRST - 1
    return book, Closer(STEPS, now=100.0), gone


def test_a_verdict_that_would_be_void_is_not_written_while_it_is() -> None:
    book, closer, gone = doubted()
    book.edges[gone].out_us = 5_000_000  # and taken back since
    out = [EdgeOut(edge=gone, from_step=FIRST)]
    times = (100.0, 100.4, 100.75, 100.85)
    said = [decide(closer, book, now, 5_200_000, {gone: 100.0}) for now in times]
    assert said == [[], [], [], out]  # the log's clock goes on while nothing is appended
    book, closer, gone = doubted()
    book.edges[gone].out_us = 9_000_000  # by a log whose clock was set back
    assert decide(closer, book, 100.0, 5_200_000, {gone: 100.0}) == out


def test_an_edge_just_put_out_is_taken_back_at_once_and_put_out_again_a_second_later() -> None:
    book, closer, gone = doubted()

    def verdicts(now: float, *, lost: bool) -> list[int]:
        log_us = round(now * 1e6)
        found = decide(closer, book, now, log_us, {gone: now} if lost else {})
        assert all(isinstance(item, EdgeOut) and item.edge == gone for item in found)
        for item in found:
            assert isinstance(item, EdgeOut)
            book.edge_out(gone, item.from_step, log_us)
        return [item.from_step for item in found if isinstance(item, EdgeOut)]

    assert verdicts(100.1, lost=True) == [FIRST]
    book.cursor += 1
    closer.on_batch(batch(gone, FIRST), 100.2)
    assert verdicts(100.2, lost=False) == [NEVER]
    book.edges[sorted(book.edges)[1]].last_step = book.edges[sorted(book.edges)[2]].last_step = FIRST + 1
    assert verdicts(100.9, lost=True) == []
    assert verdicts(101.2, lost=True) == [FIRST + 1]
