"""Time that goes on steadily while the wall clock jumps, and follows where the log's time says so."""

from __future__ import annotations

import random

import pytest

from tsunagi.runtime.clock import JUMP_US, ManualClock, SteadyClock

HOUR_US = 3_600_000_000


def turn(steady: SteadyClock, clock: ManualClock, log_skew_us: int | None = None) -> int:
    """Let 0.1 s pass, hear of the log, whose clock is off by `log_skew_us`, and look."""
    clock.advance(0.1)
    if log_skew_us is not None:
        steady.hear(clock.now_us() - clock.skew_us + log_skew_us, clock.monotonic())
    return steady.look()


def test_drift_is_followed_and_is_no_jump() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    for number in range(1000):
        clock.skew_us = -number * 10_000
        assert turn(steady, clock) == 0
        assert steady.now_us() == clock.now_us()
    assert steady.jumps == 0


@pytest.mark.parametrize("jump_us", [-HOUR_US, -2 * JUMP_US, 2 * JUMP_US, HOUR_US])
def test_a_jump_away_from_the_logs_time_is_not_followed_and_one_back_to_it_ends_it(jump_us: int) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    turn(steady, clock, 0)
    before_us = steady.now_us()
    clock.skew_us = jump_us
    assert turn(steady, clock) == 0
    assert steady.now_us() == before_us + 100_000
    assert (steady.jumps, steady.apart_us) == (1, jump_us)
    clock.skew_us = 0
    assert turn(steady, clock, 0) == 0
    assert (steady.jumps, steady.apart_us) == (2, 0)
    assert steady.now_us() == clock.now_us()


@pytest.mark.parametrize("error_us", [-HOUR_US, HOUR_US])
def test_a_clock_that_was_wrong_from_the_start_is_followed_when_it_is_set_right(error_us: int) -> None:
    clock = ManualClock()
    clock.skew_us = error_us
    steady = SteadyClock(clock)
    turn(steady, clock, 0)
    clock.skew_us = 0
    assert turn(steady, clock, 0) == -error_us
    assert steady.now_us() == clock.now_us()
    assert steady.apart_us == 0


def test_without_a_word_of_the_log_a_jump_forward_is_followed_and_one_back_is_not() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.skew_us = HOUR_US
    assert turn(steady, clock) == HOUR_US
    clock.skew_us = 0
    assert turn(steady, clock) == 0
    assert steady.apart_us == -HOUR_US
    assert turn(steady, clock, 0) == -HOUR_US, "the log says now that it was wrong to follow"


def test_whoever_may_not_go_back_does_not() -> None:
    clock = ManualClock()
    clock.skew_us = HOUR_US
    steady = SteadyClock(clock)
    clock.skew_us = 0
    steady.hear(clock.now_us(), clock.monotonic())
    assert steady.look(may_go_back=False) == 0
    assert steady.look() == -HOUR_US


@pytest.mark.parametrize("seed", range(5))
def test_it_goes_on_at_its_pace_between_jumps_that_it_tells_of(seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    steady = SteadyClock(clock)
    last_us = steady.now_us()
    for _ in range(500):
        if chance.random() < 0.1:
            clock.skew_us = chance.choice([0, 0, chance.randrange(-HOUR_US, HOUR_US)])
        moved_us = turn(steady, clock, chance.choice([None, 0]))
        now_us = steady.now_us()
        assert abs(now_us - last_us - 100_000 - moved_us) <= JUMP_US
        assert steady.apart_us == 0 or abs(now_us - clock.now_us()) > JUMP_US
        last_us = now_us


class HeldUp(ManualClock):
    """A process that is stopped between reading the one clock and the other."""

    def now_us(self) -> int:
        before_us = super().now_us()
        self.advance(30.0)
        return before_us


def test_a_look_that_was_held_up_finds_no_jump() -> None:
    steady = SteadyClock(HeldUp())
    assert steady.look() == 0
    assert steady.jumps == 0
