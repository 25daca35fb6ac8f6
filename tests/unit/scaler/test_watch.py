"""A slot as seen from outside: protection, silence, Spark's lag, the resume point's age."""

from __future__ import annotations

import pytest

from tsunagi.runtime.messages import Ack, Level0Ack, Level1Ack, SlotBeat
from tsunagi.scaler.thinning import MOST
from tsunagi.scaler.watch import MARK_S, SlotMonitor

GENERATION = 77


def written(offset: int, *, epoch: int = 1, generation: int = GENERATION, node: str = "a") -> Ack:
    return Ack(level0=Level0Ack(slot=0, node=node, epoch=epoch, generation=generation, last_offset=offset))


def taken(offset: int, *, generation: int = GENERATION) -> Ack:
    return written(offset, generation=generation, node="spark")


def resume(offset: int, appended_us: int, *, epoch: int = 1) -> Ack:
    return Ack(
        level1=Level1Ack(slot=0, node="a", epoch=epoch, generation=GENERATION, offset=offset, appended_us=appended_us)
    )


def workers(*roles: tuple[str, str, int, bool]) -> list[tuple[str, SlotBeat]]:
    return [(name, SlotBeat(slot=0, role=role, epoch=epoch, ready=ready)) for name, role, epoch, ready in roles]


def lag(watch: SlotMonitor, now: float) -> float:
    return watch.snapshot((), now, 0).spark_lag_s


@pytest.mark.parametrize(
    ("parts", "protected"),
    [
        (workers(("a", "primary", 1, True), ("b", "standby", 1, True)), True),
        (workers(("a", "primary", 1, True), ("b", "standby", 1, False)), False),
        (workers(("a", "primary", 1, True), ("b", "rebuilding", 1, True)), False),
        (workers(("a", "primary", 1, True)), False),
        (workers(("b", "standby", 1, True)), False),  # it is about to be the owner, and then nobody stands by
        (workers(("a", "primary", 1, True), ("b", "primary", 2, True)), False),
        (workers(("a", "standby", 2, True), ("b", "primary", 2, True), ("c", "primary", 1, True)), True),
        ({}, False),
    ],
)
def test_protected_means_a_living_owner_and_another_that_could_take_over(
    parts: list[tuple[str, SlotBeat]], protected: bool
) -> None:
    assert SlotMonitor(0).snapshot(parts, 0.0, 0).protected is protected


def test_a_part_of_another_slot_protects_nothing() -> None:
    parts = workers(("a", "primary", 1, True), ("b", "standby", 1, True))
    assert not SlotMonitor(1).snapshot(parts, 0.0, 0).protected


def test_silence_counts_from_the_last_new_output() -> None:
    watch = SlotMonitor(0)
    assert watch.snapshot((), 9.0, 0).silence_s is None
    watch.on_ack(written(-1), 0, 1.0)
    assert watch.snapshot((), 9.0, 0).silence_s is None
    watch.on_ack(written(10), 0, 2.0)
    watch.on_ack(written(10), 0, 5.0)  # the owner lives and acknowledges, but writes nothing
    assert watch.snapshot((), 6.0, 0).silence_s == 4.0


def test_a_deposed_owner_does_not_break_the_silence() -> None:
    watch = SlotMonitor(0)
    watch.on_ack(written(10, epoch=2), 0, 2.0)
    watch.on_ack(written(99, epoch=1), 0, 5.0)
    assert watch.snapshot((), 6.0, 0).silence_s == 4.0


def test_after_a_log_made_anew_names_start_again() -> None:
    watch = SlotMonitor(0)
    watch.on_ack(written(1000), 0, 2.0)
    watch.on_ack(taken(1000), 0, 2.5)
    watch.on_ack(written(3, generation=5), 0, 4.0)
    assert watch.snapshot((), 5.0, 0).silence_s == 1.0
    assert lag(watch, 5.0) == 1.0
    watch.on_ack(taken(3, generation=5), 0, 5.0)
    assert lag(watch, 6.0) == 0.0


def test_spark_lags_by_the_oldest_output_it_has_not_taken() -> None:
    watch = SlotMonitor(0)
    for second in range(10):
        watch.on_ack(written(second), 0, float(second))
    assert lag(watch, 10.0) == 10.0  # no Spark was ever heard: everything waits
    watch.on_ack(taken(3), 0, 10.0)
    assert lag(watch, 10.0) == 6.0  # number 4 came at 4.0
    watch.on_ack(taken(9), 0, 11.0)
    assert lag(watch, 50.0) == 0.0


def test_an_output_between_two_marks_is_waited_for_as_well() -> None:
    watch = SlotMonitor(0)
    watch.on_ack(written(1), 0, 0.0)
    watch.on_ack(written(2), 0, MARK_S / 2)
    watch.on_ack(taken(1), 0, 1.0)
    assert lag(watch, 5.0) == 5.0 - MARK_S / 2


def test_a_spark_down_for_long_costs_little_memory() -> None:
    watch = SlotMonitor(0)
    for number in range(4 * MOST):
        watch.on_ack(written(number), 0, float(number))
    assert len(watch._marks) <= MOST
    assert lag(watch, 4.0 * MOST) == 4.0 * MOST
    watch.on_ack(taken(2 * MOST), 0, 4.0 * MOST)
    assert lag(watch, 4.0 * MOST) == pytest.approx(2.0 * MOST, abs=16)


def test_what_waited_before_we_came_has_waited_since_sparks_last_word() -> None:
    watch = SlotMonitor(0)
    watch.on_ack(taken(5), 0, -3600.0, old=True)
    watch.on_ack(written(900), 0, -1.0, old=True)
    assert lag(watch, 0.0) == 3600.0


def test_the_resume_points_age_is_that_of_the_newest_record_before_it() -> None:
    watch = SlotMonitor(0)
    assert watch.snapshot((), 0.0, 10_000_000).resume_age_s is None
    watch.on_ack(resume(100, 4_000_000), 9_000_000, 0.0)
    assert watch.snapshot((), 0.0, 10_000_000).resume_age_s == 6.0
    watch.on_ack(resume(50, 8_000_000), 9_500_000, 0.0)  # an older one
    assert watch.snapshot((), 0.0, 10_000_000).resume_age_s == 6.0
    watch.on_ack(resume(60, 7_000_000, epoch=2), 9_500_000, 0.0)  # a new owner's counts, even if it is further back
    assert watch.snapshot((), 0.0, 10_000_000).resume_age_s == 3.0


def test_without_a_resume_point_it_is_the_age_of_the_first_owner() -> None:
    watch = SlotMonitor(0)
    watch.on_ack(written(1), 2_000_000, 0.0)
    watch.on_ack(written(2), 7_000_000, 5.0)
    assert watch.snapshot((), 5.0, 8_000_000).resume_age_s == 6.0
