"""The kit by which users test operators of their own finds what is wrong with them, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame
from tsunagi.slot.operators import Stateless
from tsunagi.slot.testkit import LawError, check_operators

HERE = __name__
SMOOTH: dict[str, Any] = {"use": "tests.unit.slot.example_operator:Smooth", "weight": 0.5}
SHIFT: dict[str, Any] = {"use": "tests.unit.slot.example_shift:Shift", "by": 1.0}


class Random(Stateless):
    draw = np.random.default_rng()

    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        return (replace(frame, mean=frame.mean + self.draw.random()),)


class Forgetful(Stateless):
    """Counts, and does not say so in its context."""

    def __init__(self, config: SlotConfig) -> None:
        del config
        self.count = 0

    def process(self, frame: Frame) -> Sequence[Frame]:
        self.count += 1
        return (replace(frame, mean=frame.mean + self.count),)


class OfARun(Stateless):
    """Takes a run for something that means anything."""

    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        return (replace(frame, mean=frame.mean + len(frame.mean)),)


class Writes(Stateless):
    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        frame.mean[:1] = 0.0
        return (frame,)


class NoRun(Stateless):
    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        columns = (frame.sensor, frame.mean, frame.sd, frame.quality, frame.bound)
        return (Frame(frame.step, frame.event_time_us, *columns),)


class Throws(Stateless):
    def __init__(self, config: SlotConfig) -> None:
        del config

    def process(self, frame: Frame) -> Sequence[Frame]:
        if np.isinf(frame.mean).any():
            raise ZeroDivisionError
        return (frame,)


@pytest.mark.parametrize(
    "operators",
    [
        (SMOOTH,),
        (SHIFT,),
        ({"use": "select", "at_least": 0.0, "share": 0.7},),
        ({"use": "project", "sensors": ["s1", "s3"]},),
        ({"use": "aggregate", "function": "sum", "window": 5, "slide": 2},),
        (SHIFT, {"use": "recover"}, {"use": "aggregate", "function": "max", "window": 3}),
    ],
)
def test_sound_operators_pass_in_steps(operators: tuple[dict[str, Any], ...]) -> None:
    check_operators(*operators)


@pytest.mark.slow
@pytest.mark.parametrize(
    "operators",
    [
        (SHIFT,),
        ({"use": "select", "at_least": 0.0, "share": 0.7},),
        ({"use": "project", "sensors": ["s1", "s3"]},),
        ({"use": "aggregate", "function": "sum", "window": 5, "slide": 2},),
        ({"use": "select", "at_least": -1.0}, {"use": "aggregate", "function": "min", "window": 3, "slide": 1}, SHIFT),
    ],
)
def test_sound_operators_pass_without_steps(operators: tuple[dict[str, Any], ...]) -> None:
    check_operators(*operators, mode="tuples")


@pytest.mark.parametrize(
    ("name", "mode", "law"),
    [
        ("Random", "steps", "not deterministic"),
        ("Random", "tuples", "not deterministic"),
        ("Forgetful", "steps", "not resumable"),
        ("Forgetful", "tuples", "not resumable"),
        ("OfARun", "tuples", "depends on cuts"),
        ("Writes", "tuples", "writes into the arrays"),
        ("NoRun", "tuples", "expected a Run"),
    ],
)
def test_what_breaks_a_law_is_found(name: str, mode: Any, law: str) -> None:
    with pytest.raises(LawError, match=law):
        check_operators({"use": f"{HERE}:{name}"}, mode=mode)


def test_what_is_raised_for_data_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        check_operators({"use": f"{HERE}:Throws"})
