"""Unusable readings in an edge's own log: what the user has settled is no cause for a warning."""

from __future__ import annotations

from typing import Any

import pytest

from tsunagi.edge.dead_letters import DeadLetters
from tsunagi.edge.source import Unusable
from tsunagi.runtime.clock import ManualClock


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **_: Any) -> None:
        self.lines.append(f"info {event}")

    def warning(self, event: str, **_: Any) -> None:
        self.lines.append(f"warning {event}")


def unusable(reason: str, *, letter: bool) -> Unusable:
    return Unusable(reason, "s", 0, "", b"", letter=letter)


@pytest.mark.parametrize(
    ("reason", "letter", "level"),
    [
        ("foreign-sensor", False, "info"),
        ("foreign-sensor", True, "warning"),
        ("removed-sensor", False, "info"),
        ("missing", False, "info"),
        ("overflow", False, "warning"),
        ("unknown-sensor", True, "warning"),
    ],
)
def test_a_warning_is_of_what_may_need_somebody(reason: str, letter: bool, level: str) -> None:
    clock, log, producer = ManualClock(), Log(), Producer()
    letters = DeadLetters(producer, "edge-1", clock, log)  # type: ignore[arg-type]
    letters.write(unusable(reason, letter=letter))
    letters.write(unusable("foreign-sensor", letter=False))
    clock.advance(5.0)
    letters.write(unusable("foreign-sensor", letter=False))
    assert log.lines == [f"{level} unusable readings", "info unusable readings"]


def test_what_came_between_two_lines_counts_for_the_next() -> None:
    clock, log = ManualClock(), Log()
    letters = DeadLetters(Producer(), "edge-1", clock, log)  # type: ignore[arg-type]
    letters.write(unusable("foreign-sensor", letter=False))
    letters.write(unusable("overflow", letter=False))
    clock.advance(5.0)
    letters.write(unusable("foreign-sensor", letter=False))
    assert log.lines == ["info unusable readings", "warning unusable readings"]


class Producer:
    def send(self, *_: Any) -> None: ...

    def poll(self, *_: Any) -> None: ...
