"""How long the loop may be on what it does, as its heartbeats tell it."""

from __future__ import annotations

from tsunagi.standby.detector import MIN_STALL_S
from tsunagi.standby.workload import SLOWEST, TURN_OPERATIONS, Workload


def test_a_pause_says_nothing_of_a_turn() -> None:
    assert Workload().snapshot(5.0).since is None


def test_work_that_is_not_announced_is_short() -> None:
    work = Workload()
    work.begin(0.0)
    assert work.snapshot(10.0)[:2] == (10.0, 10.0 + MIN_STALL_S)
    assert work.snapshot(10.9)[:2] == (10.0, 10.0 + MIN_STALL_S)
    work.end()
    work.begin(3.0)  # its records cost so much
    assert work.snapshot(11.0)[:2] == (11.0, 14.0)


def test_announced_work_may_last_by_its_size_and_counts_from_when_it_began() -> None:
    work = Workload()
    work.begin(0.0)
    work.snapshot(10.0)
    work.announce(4 * SLOWEST)
    assert work.snapshot(10.5)[:2] == (10.0, 15.5)
    assert work.snapshot(15.4)[:2] == (10.0, 15.5)  # it goes on, and is not due yet
    work.announce(1.0)  # the next piece of the same turn
    assert work.snapshot(15.6)[:2] == (10.0, 20.6)
    assert work.heavy


def test_a_loop_that_hangs_between_two_turns_is_overdue_as_well() -> None:
    work = Workload()
    work.begin(0.0)
    work.snapshot(1.0)
    work.end()
    assert work.snapshot(2.0)[:2] == (None, 2.0 + MIN_STALL_S)
    assert work.snapshot(9.0)[:2] == (None, 2.0 + MIN_STALL_S)
    work.begin(0.0)
    assert work.snapshot(9.5)[:2] == (9.5, 9.5 + MIN_STALL_S)


def test_each_turn_counts_its_own_operations() -> None:
    work = Workload()
    assert not work.heavy
    assert work.on is False
    work.begin(0.0)
    assert work.on is True
    work.announce(TURN_OPERATIONS)
    assert not work.heavy
    work.announce(1.0)
    assert work.heavy
    work.end()
    assert work.on is False
    work.begin(0.0)
    assert not work.heavy


def test_a_piece_that_no_heartbeat_saw_is_not_taken_for_one_that_was_seen() -> None:
    work = Workload()
    work.begin(0.0)
    work.snapshot(1.0)
    work.announce(1.0)
    work.end()
    assert work.snapshot(5.0)[:2] == (None, 5.0 + MIN_STALL_S)
