"""Each clause of the rule of suspicion; time is the test's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.settings import StandbySettings
from tsunagi.standby.detector import (
    GAP_INTERVALS,
    HINT_S,
    MIN_STALL_S,
    REPLACED_INTERVALS,
    SETTLE_S,
    STALL_RECORDS,
    STUCK_S,
    Detector,
)

INTERVAL_S = 0.1
SLOT = 2


class Watch:
    """A node that watches "n1", the owner of one slot."""

    def __init__(self) -> None:
        self.detector = Detector("me", 7, INTERVAL_S)
        self.now = 10.0
        self.sequence = 0

    def own(self, incarnation: int = 7) -> None:
        self.detector.on_heartbeat(Heartbeat(node="me", incarnation=incarnation), self.now)

    def other(self, node: str = "n1", incarnation: int = 1, *, leaving: bool = False, **part: Any) -> None:
        fields: dict[str, Any] = {"slot": SLOT, "role": "primary", "epoch": 1, "busy_offset": -1}
        slots = [SlotBeat(**(fields | part))]
        beat = Heartbeat(node=node, role="worker", incarnation=incarnation, leaving=leaving, slots=slots)
        self.detector.on_heartbeat(beat, self.now)

    def run(self, seconds: float, *, own: bool = True, other: bool = True, **part: Any) -> None:
        for _ in range(round(seconds / INTERVAL_S)):
            self.now = round(self.now + INTERVAL_S, 6)
            if other:
                self.other(**part)
            if own:
                self.own()

    def silence(self, since: float = 0.0) -> float:
        return self.detector.owner_silence("n1", SLOT, since, self.now)


@pytest.fixture
def watch() -> Watch:
    made = Watch()
    made.run(2.0)
    return made


def test_a_node_that_beats_is_not_silent(watch: Watch) -> None:
    assert watch.silence() == 0.0
    assert watch.detector.silence("n1", watch.now) == 0.0
    assert watch.detector.age("n1", watch.now) == 0.0
    assert watch.detector.settled(watch.now)


def test_silence_counts_while_our_own_heartbeats_come_back(watch: Watch) -> None:
    watch.run(0.8, other=False)
    assert watch.silence() == pytest.approx(0.8)
    assert watch.detector.silence("n1", watch.now) == pytest.approx(0.8)


def test_nothing_counts_while_our_own_stay_away(watch: Watch) -> None:
    watch.run(3.0, own=False, other=False)
    assert not watch.detector.connected(watch.now)
    assert watch.silence() == 0.0
    assert watch.detector.silence("n1", watch.now) == 0.0
    assert watch.detector.silence("never heard", watch.now) == 0.0


def test_two_of_our_own_must_have_come_back_since(watch: Watch) -> None:
    watch.other()
    watch.now += 0.15
    assert watch.silence() == 0.0
    watch.own()
    assert watch.silence() == 0.0
    watch.now += 0.1
    watch.own()
    assert watch.silence() == pytest.approx(0.25)


def test_their_order_in_the_log_counts_not_the_time_of_reading(watch: Watch) -> None:
    # A client that stalled reads everything at once: our own of that time, then the other's.
    for _ in range(8):
        watch.own()
    watch.other()
    assert watch.silence() == 0.0


def test_after_a_gap_in_our_own_nothing_counts_for_a_second(watch: Watch) -> None:
    watch.run(INTERVAL_S * (GAP_INTERVALS + 1), own=False, other=False)
    watch.own()
    assert watch.detector.gaps == 1
    assert watch.detector.connected(watch.now)
    watch.run(SETTLE_S - INTERVAL_S, other=False)
    assert not watch.detector.settled(watch.now)
    assert watch.silence() == 0.0
    watch.run(3 * INTERVAL_S, other=False)
    assert watch.silence() == pytest.approx(2 * INTERVAL_S)  # all have come back by now, or begin to be silent
    assert watch.detector.silence("n1", watch.now) == pytest.approx(2 * INTERVAL_S)


def test_one_that_started_during_an_outage_holds_nothing_against_those_it_heard_before() -> None:
    watch = Watch()
    watch.other()  # read back from the log at the start; then the broker goes
    watch.now += 2.0
    for _ in range(4):
        watch.now = round(watch.now + INTERVAL_S, 6)
        watch.own()
    assert not watch.detector.settled(watch.now)
    assert not watch.detector.lost("n1", 0.75, watch.now)
    watch.run(SETTLE_S + 0.8, other=False)
    assert watch.detector.lost("n1", 0.75, watch.now)


def test_a_short_delay_of_our_own_is_no_gap(watch: Watch) -> None:
    watch.run(INTERVAL_S * (GAP_INTERVALS - 1), own=False, other=False)
    watch.own()
    assert watch.detector.gaps == 0


def test_a_node_that_lives_but_does_not_claim_the_slot_is_silent_about_it(watch: Watch) -> None:
    watch.run(1.0, role="standby")
    assert watch.detector.silence("n1", watch.now) == 0.0
    assert watch.silence() == pytest.approx(1.0)


def test_a_node_that_leaves_claims_nothing(watch: Watch) -> None:
    watch.run(1.0, leaving=True)
    assert watch.silence() == pytest.approx(1.0)


def test_a_node_that_has_said_that_it_leaves_has_left_until_it_speaks_again(watch: Watch) -> None:
    assert not watch.detector.left("n1")
    watch.other(leaving=True)
    assert watch.detector.left("n1")
    watch.other(incarnation=2)
    assert not watch.detector.left("n1")
    assert not watch.detector.left("nobody")


def test_one_that_is_being_promoted_counts_as_an_owner(watch: Watch) -> None:
    watch.run(1.0, role="promoting")
    assert watch.silence() == 0.0


def test_silence_before_the_watch_began_does_not_count(watch: Watch) -> None:
    watch.run(2.0, other=False)
    assert watch.silence(since=watch.now - 0.5) == pytest.approx(0.5)
    assert watch.detector.owner_silence("unheard", SLOT, watch.now - 0.3, watch.now) == pytest.approx(0.3)


def test_one_never_heard_has_been_silent_for_ever(watch: Watch) -> None:
    assert watch.detector.silence("unheard", watch.now) == float("inf")
    assert watch.detector.age("unheard", watch.now) == float("inf")
    assert watch.detector.beat("unheard") is None
    heard = watch.detector.beat("n1")
    assert heard is not None
    assert heard.node == "n1"
    assert watch.detector.owner_beat("unheard", SLOT) is None


def test_late_heartbeats_of_a_replaced_process_are_passed_over(watch: Watch) -> None:
    watch.run(0.5, incarnation=5, role="standby")
    assert not watch.detector.on_heartbeat(Heartbeat(node="n1", incarnation=1, sequence=99), watch.now)
    watch.run(0.2, incarnation=1)
    assert watch.silence() == pytest.approx(0.7)


def test_a_process_started_when_the_clock_was_set_back_is_heard_in_the_end(watch: Watch) -> None:
    late_s = REPLACED_INTERVALS * INTERVAL_S
    watch.run(0.5, incarnation=5)
    watch.run(late_s - 0.1, incarnation=3)
    assert watch.silence() == pytest.approx(late_s - 0.1)
    watch.run(0.2, incarnation=3)
    assert watch.silence() == 0.0
    assert late_s < StandbySettings().detect_s


def test_heartbeats_of_our_own_earlier_process_are_another_nodes(watch: Watch) -> None:
    before = watch.now
    watch.now += 3.0
    watch.own(incarnation=6)
    assert not watch.detector.connected(watch.now)
    assert watch.detector.age("me", watch.now) == 0.0
    assert before < watch.now


def test_an_owner_whose_work_is_announced_as_long_is_given_its_time_and_no_more(watch: Watch) -> None:
    for offset in (5, -1):  # on a record of this slot, or on the work of another one
        watch.other(busy_offset=offset, busy_us=9_000_000, busy_limit_us=9_500_000, record_us=100.0)
        assert not watch.detector.stalled("n1", SLOT, 0.0)
        watch.other(busy_offset=offset, busy_us=9_600_000, busy_limit_us=9_500_000, record_us=100.0)
        assert watch.detector.stalled("n1", SLOT, 0.0)


def test_a_loop_on_one_record_for_far_longer_than_its_records_cost_is_stalled(watch: Watch) -> None:
    cheap, dear = 1000.0, 200_000.0  # microseconds a record
    assert not watch.detector.stalled("n1", SLOT, 0.0)
    watch.other(busy_offset=5, busy_us=round((MIN_STALL_S + 0.1) * 1e6), record_us=cheap)
    assert watch.detector.stalled("n1", SLOT, 0.0)
    watch.other(busy_offset=5, busy_us=round((MIN_STALL_S + 0.1) * 1e6), record_us=dear)
    assert not watch.detector.stalled("n1", SLOT, 0.0)
    watch.other(busy_offset=5, busy_us=round(STALL_RECORDS * dear) + 1, record_us=dear)
    assert watch.detector.stalled("n1", SLOT, 0.0)
    watch.other(busy_offset=-1, busy_us=10**9)
    assert not watch.detector.stalled("n1", SLOT, 0.0)


def test_what_an_owner_announced_is_known_until_it_reports_that_it_survived(watch: Watch) -> None:
    watch.other(busy_offset=5, busy_until=9)
    assert watch.detector.announced(SLOT, 1) == [(5, 9)]
    watch.other(busy_offset=7, busy_until=7)
    assert watch.detector.announced(SLOT, 1) == []
    assert watch.detector.announced(SLOT, 2) == []


def test_what_a_speculating_standby_announced_is_known_until_it_says_itself_that_it_survived(watch: Watch) -> None:
    watch.other(busy_offset=5, busy_until=9)
    watch.other(node="n2", role="standby", busy_offset=7, busy_until=8)
    assert watch.detector.announced(SLOT, 1) == [(7, 8), (5, 9)]
    watch.other(node="n3", role="standby")
    assert watch.detector.announced(SLOT, 1) == [(7, 8), (5, 9)]
    watch.other(node="n2", role="standby")
    assert watch.detector.announced(SLOT, 1) == [(5, 9)]


def test_what_the_dead_announced_is_not_forgotten_when_another_is_promoted(watch: Watch) -> None:
    watch.other(busy_offset=5, busy_until=9)
    watch.other(node="n2", role="promoting", epoch=1)  # it still names the epoch of the dead
    assert watch.detector.announced(SLOT, 1) == [(5, 9)]


def test_a_heartbeat_sent_again_is_no_sign_of_life() -> None:
    detector = Detector("me", 1, 0.1)
    beat = Heartbeat(node="other", role="worker", incarnation=5, sequence=7)
    detector.on_heartbeat(beat, 10.0)
    detector.on_heartbeat(beat, 11.0)
    detector.on_heartbeat(Heartbeat(node="other", role="worker", incarnation=5, sequence=6), 12.0)
    assert detector.age("other", 12.0) == 2.0
    detector.on_heartbeat(Heartbeat(node="other", role="worker", incarnation=5, sequence=8), 12.0)
    assert detector.age("other", 12.0) == 0.0
    detector.on_heartbeat(Heartbeat(node="other", role="worker", incarnation=6, sequence=1), 13.0)
    assert detector.age("other", 13.0) == 0.0


def test_nothing_of_a_former_process_is_heard_twice_however_long_the_node_is_silent() -> None:
    detector = Detector("me", 1, 0.1)
    words = [Heartbeat(node="other", role="worker", incarnation=5, sequence=number) for number in range(1, 30)]
    words += [Heartbeat(node="other", role="worker", incarnation=6, sequence=number) for number in range(1, 10)]
    assert all(detector.on_heartbeat(beat, 10.0) for beat in words)
    random.Random(1).shuffle(words)
    for number, beat in enumerate(words):
        assert not detector.on_heartbeat(beat, 20.0 + number)
    assert detector.age("other", 60.0) == 50.0
    back = Heartbeat(node="other", role="worker", incarnation=4, sequence=1)  # its clock was set back meanwhile
    assert detector.on_heartbeat(back, 60.0)


def test_our_own_heartbeat_sent_again_tells_nothing() -> None:
    detector = Detector("me", 1, 0.1)
    own = Heartbeat(node="me", role="worker", incarnation=1, sequence=1)
    assert detector.on_heartbeat(own, 10.0)
    assert not detector.on_heartbeat(own, 20.0)
    assert not detector.connected(20.0)


def stuck_after(watch: Watch, seconds: float, end: int, **part: Any) -> bool:
    """Return whether the owner counts as stuck once it has said the same for so long."""
    found = False
    for _ in range(round(seconds / INTERVAL_S)):
        watch.run(INTERVAL_S, **part)
        found = watch.detector.stuck("n1", SLOT, 0.0, end, watch.now)
    return found


def test_an_owner_that_beats_and_reads_nothing_of_a_log_that_goes_on_is_stuck(watch: Watch) -> None:
    assert not stuck_after(watch, STUCK_S, 8, position=7, ready=True)
    assert stuck_after(watch, 0.5, 9, position=7, ready=True)
    assert not stuck_after(watch, 0.5, 9, position=8, ready=True)  # it moves
    assert stuck_after(watch, STUCK_S + 0.5, 9, position=8, ready=True)
    assert not stuck_after(watch, 0.5, 9, position=9, ready=True)  # it is there


def test_an_owner_that_was_busy_between_is_not_stuck(watch: Watch) -> None:
    assert not stuck_after(watch, STUCK_S - 0.5, 9, position=8, ready=True)
    assert not stuck_after(watch, 0.2, 9, position=8, ready=True, busy_offset=8)
    assert not stuck_after(watch, STUCK_S - 0.5, 9, position=8, ready=True)


def test_the_first_record_of_a_log_can_be_announced(watch: Watch) -> None:
    watch.other(busy_offset=0, busy_until=5)
    assert watch.detector.announced(SLOT, 1) == [(0, 5)]


def test_who_owns_a_slot_again_is_not_judged_by_what_it_said_in_an_earlier_term(watch: Watch) -> None:
    """It was killed in the middle of a record, or far behind the log's end, and another has owned the slot since."""
    watch.run(STUCK_S + 1, position=7, ready=True)
    assert not watch.detector.stuck("n1", SLOT, 0.0, 9, watch.now)
    watch.other(busy_offset=7, busy_us=round((MIN_STALL_S + 0.1) * 1e6), record_us=1.0)
    watch.run(10.0, other=False)
    new_term = watch.now
    assert watch.detector.stalled("n1", SLOT, 0.0)
    assert not watch.detector.stalled("n1", SLOT, new_term)
    watch.run(0.5, position=7, ready=True)
    assert not watch.detector.stuck("n1", SLOT, new_term, 9, watch.now)
    watch.run(STUCK_S, position=7, ready=True)
    assert watch.detector.stuck("n1", SLOT, new_term, 9, watch.now)


@pytest.mark.parametrize(
    "part",
    [
        {"ready": False},
        {"busy_offset": 7, "ready": True},
        {"busy_offset": 0, "ready": True},
        {"busy_us": 3_000_000, "busy_limit_us": 9_000_000, "ready": True},  # it is on the work of another slot
        {"role": "promoting", "ready": True},
    ],
)
def test_an_owner_that_says_why_is_not_stuck(watch: Watch, part: dict[str, Any]) -> None:
    assert not stuck_after(watch, 2 * STUCK_S, 9, position=7, **part)


def test_a_log_that_rested_for_long_makes_nobody_stuck_when_it_goes_on(watch: Watch) -> None:
    assert not stuck_after(watch, 3 * STUCK_S, 7, position=7, ready=True)
    assert not stuck_after(watch, 0.5, 8, position=7, ready=True)


def test_an_outage_is_not_held_against_the_owners_reading(watch: Watch) -> None:
    assert not stuck_after(watch, STUCK_S - 0.5, 9, position=7, ready=True)
    watch.now += 10.0
    assert not stuck_after(watch, SETTLE_S + STUCK_S - 0.5, 9, position=7, ready=True)
    assert stuck_after(watch, 1.0, 9, position=7, ready=True)


def test_a_hint_stands_until_a_heartbeat_that_was_not_on_its_way_already(watch: Watch) -> None:
    assert not watch.detector.hinted("n1", watch.now)
    watch.detector.hint("n1", 1, watch.now)
    assert watch.detector.hinted("n1", watch.now)
    watch.run(2 * INTERVAL_S)  # these may have been sent before the connection ended
    assert watch.detector.hinted("n1", watch.now)
    watch.run(INTERVAL_S)
    assert not watch.detector.hinted("n1", watch.now)
    watch.run(2.0, other=False)
    assert not watch.detector.hinted("n1", watch.now), "what was refuted stays so"


def test_a_hint_is_forgotten_in_time(watch: Watch) -> None:
    watch.detector.hint("n1", 1, watch.now)
    watch.run(HINT_S, other=False)
    assert watch.detector.hinted("n1", watch.now)
    watch.run(INTERVAL_S, other=False)
    assert not watch.detector.hinted("n1", watch.now)


def test_hints_of_other_processes_and_without_a_connection_of_our_own_count_for_nothing(watch: Watch) -> None:
    watch.detector.hint("n1", 99, watch.now)
    watch.detector.hint("nobody", 1, watch.now)
    assert not any(watch.detector.hinted(node, watch.now) for node in ("n1", "nobody"))
    watch.detector.hint("n1", 1, watch.now)
    watch.run(3 * INTERVAL_S, own=False, other=False)
    assert not watch.detector.hinted("n1", watch.now), "our network may have ended the connection"
    watch.detector.hint("n1", 1, watch.now)
    watch.own()
    assert watch.detector.hinted("n1", watch.now)
    watch.other(incarnation=2)
    assert not watch.detector.hinted("n1", watch.now), "a new process has begun"
