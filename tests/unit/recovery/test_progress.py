"""A long computation says what it is on, how far it is, and how long it may still take."""

from __future__ import annotations

import time

import pytest

from tsunagi.recovery import progress as module
from tsunagi.recovery.progress import FitStage, ProgressReporter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_stages_count_by_what_they_are_expected_to_take() -> None:
    clock = Clock()
    progress = ProgressReporter(clock=clock)
    assert progress.line() == "starting"
    progress.expect([FitStage("reading", 10.0), FitStage("searching", 70.0), FitStage("making", 20.0)])
    progress.begin("reading")
    clock.now += 2.0
    progress.begin("searching")
    progress.reach(0.5)
    clock.now += 7.0
    assert progress.line() == "searching: 50% of it, 45% of all in 9 s, about 11 s more"


def test_a_stage_that_says_nothing_is_told_by_the_rate_of_those_before() -> None:
    clock = Clock()
    progress = ProgressReporter(clock=clock)
    progress.expect([FitStage("searching", 80.0), FitStage("making", 20.0)])
    progress.begin("searching")
    clock.now += 8.0
    progress.begin("making")
    clock.now += 1.0
    assert progress.line() == "making: 50% of it, 90% of all in 9 s, about 1 s more"
    clock.now += 100.0
    assert progress.line().startswith("making: 95% of it, 99% of all")


def test_lines_come_while_it_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    lines: list[str] = []
    with ProgressReporter(lines.append) as progress:
        progress.expect([FitStage("reading", 1.0)])
        progress.begin("reading")
        deadline = time.monotonic() + 60.0
        while not any(line.startswith("reading: 0% of it") for line in lines):  # the first may have come before
            assert time.monotonic() < deadline, lines
            time.sleep(0.001)
