"""Operators against plain loops over the same steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.slot.small_slot import MODEL, NAMES, REFIT, SLIDE_US, make_config
from tsunagi.recovery.filter import Recovery
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import BOUNDED, EXACT, UNBOUNDED, UNMODELLED
from tsunagi.slot.controls import BoundsControl, RefitControl
from tsunagi.slot.operators import Chain, Frame, OperatorError, Select, build_chain
from tsunagi.slot.recover import Recover

STEPS = 30


def make(*operators: dict[str, Any], model: bool = False) -> Chain:
    return build_chain(make_config(*operators), MODEL if model else None)


@pytest.fixture(scope="module")
def steps() -> Floats:
    draw = np.random.default_rng(3)
    values = draw.normal(size=(STEPS, 5))
    values[draw.random(values.shape) < 0.3] = np.nan
    values[7] = np.nan
    return values


def run(chain: Chain, steps: Floats) -> list[Frame]:
    return [frame for step, values in enumerate(steps) for frame in chain.process(step, values)]


def rows(frame: Frame) -> dict[int, float]:
    return dict(zip(frame.sensor.tolist(), frame.mean.tolist(), strict=True))


def test_no_operator_passes_on_what_has_a_value(steps: Floats) -> None:
    frames = run(make(), steps)
    assert [frame.step for frame in frames] == list(range(STEPS))
    assert all(frame.event_time_us == frame.step * SLIDE_US for frame in frames)
    assert len(frames[7].mean) == 0
    for frame, values in zip(frames, steps, strict=True):
        assert list(rows(frame).values()) == [value for value in values if not math.isnan(value)]
        assert set(frame.quality.tolist()) <= {EXACT}


def test_select_keeps_a_range_with_both_its_ends() -> None:
    chain = make({"use": "select", "at_least": 1.0, "at_most": 2.0})
    (frame,) = chain.process(0, np.array([0.999, 1.0, 2.0, 2.001, np.nan]))
    assert rows(frame) == {2: 1.0, 3: 2.0}


def test_the_share_that_select_keeps_is_the_same_in_every_release() -> None:
    """A standby of another release must keep the same rows: the hash is SplitMix64's finalizer, in plain integers."""
    mask = 2**64 - 1
    kept = []
    for sensor in (0, 2, 3, 5, 8):
        mixed = ((sensor << 40) ^ (11 * SLIDE_US)) & mask
        mixed = (mixed + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        kept.append((mixed ^ (mixed >> 31)) / 2.0**64)
    for number, share in enumerate(sorted(kept)):
        for least, expected in ((share, number), (np.nextafter(share, 1.0), number + 1)):
            (frame,) = make({"use": "select", "share": least}).process(11, np.arange(5.0))
            assert len(frame.mean) == expected


def test_project_keeps_the_named_sensors_and_passes_over_those_of_other_slots() -> None:
    chain = make({"use": "project", "sensors": ["e", "b", "of another slot"]})
    (frame,) = chain.process(0, np.arange(5.0))
    assert rows(frame) == {2: 1.0, 8: 4.0}


REDUCED: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda xs: sum(xs) / len(xs),
    "min": min,
    "max": max,
    "count": len,
}


@pytest.mark.parametrize("function", REDUCED)
@pytest.mark.parametrize(("window", "slide"), [(1, 1), (4, 1), (5, 3)])
def test_aggregate_agrees_with_a_plain_loop(steps: Floats, function: str, window: int, slide: int) -> None:
    frames = run(make({"use": "aggregate", "function": function, "window": window, "slide": slide}), steps)
    due = [step for step in range(window - 1, STEPS) if step % slide == 0]
    assert [frame.step for frame in frames] == due
    for frame in frames:
        part = steps[frame.step - window + 1 : frame.step + 1]
        wanted = {}
        for sensor, column in zip((0, 2, 3, 5, 8), part.T, strict=True):
            values = [value for value in column.tolist() if not math.isnan(value)]
            if values:
                wanted[sensor] = REDUCED[function](values)
        assert rows(frame) == pytest.approx(wanted)


@pytest.mark.parametrize(("function", "sd"), [("sum", 0.6), ("mean", 0.3), ("max", 0.4), ("count", 0.0)])
def test_an_aggregate_carries_spread_and_the_worst_quality(function: str, sd: float) -> None:
    class Marked:
        def __init__(self, config: object) -> None:
            del config

        def process(self, frame: Frame) -> Sequence[Frame]:
            spread = np.full(5, 0.2 if frame.step == 0 else 0.4)
            quality = np.full(5, EXACT if frame.step else BOUNDED, dtype=np.uint8)
            return (Frame(frame.step, frame.event_time_us, frame.sensor, frame.mean, spread, quality, 2 * spread),)

        def context(self) -> bytes:
            return b""

        def restore(self, context: bytes) -> None:
            del context

    chain = make({"use": "select"}, {"use": "aggregate", "function": function, "window": 2})
    chain._operators[0] = Marked(None)
    chain.process(0, np.ones(5))
    (frame,) = chain.process(1, np.ones(5))
    assert frame.sd == pytest.approx([sd] * 5)
    assert frame.bound == pytest.approx([2 * sd] * 5)
    assert frame.quality.tolist() == [BOUNDED] * 5


def test_recover_says_what_the_filter_says(steps: Floats) -> None:
    reference = Recovery(MODEL.select(list(NAMES)), eps=1.0, delta=0.9)
    for frame, values in zip(run(make({"use": "recover"}, model=True), steps), steps, strict=True):
        estimate = reference.step(values)
        assert frame.mean.tolist() == estimate.mean.tolist()
        assert frame.sd.tolist() == estimate.sd.tolist()
        assert frame.bound.tolist() == estimate.bound.tolist()
        assert frame.quality.tolist() == estimate.quality.tolist()
        assert len(frame.mean) == 5


def test_sensors_that_the_model_does_not_know_pass_through_as_unmodelled() -> None:
    chain = build_chain(make_config({"use": "recover"}, names=("a", "x", "c", "y", "e")), MODEL)
    (frame,) = chain.process(0, np.array([1.0, 2.0, np.nan, np.nan, 5.0]))
    assert frame.sensor.tolist() == [0, 2, 3, 8]  # y has no value and nobody can estimate it
    assert frame.quality.tolist() == [EXACT, UNMODELLED, UNBOUNDED, EXACT]


def test_a_new_model_starts_the_recovery_afresh_and_leaves_the_others_alone() -> None:
    chain = make({"use": "recover"}, {"use": "aggregate", "function": "count", "window": 2})
    chain.process(0, np.full(5, np.nan))
    chain.set_model(MODEL)
    (frame,) = chain.process(1, np.full(5, np.nan))
    assert rows(frame) == dict.fromkeys((0, 2, 3, 5, 8), 1.0)


def test_a_refit_is_followed_and_another_slots_is_not() -> None:
    chain = make({"use": "recover"}, model=True)
    assert chain.recover is not None
    chain.process(0, np.full(5, 1.0))
    refit = REFIT.select(list(NAMES))
    chain.on_control(RefitControl(replace(refit, names=("v", "w", "x", "y", "z")), 0))
    chain.on_control(RefitControl(replace(refit, scale=2 * refit.scale), 0))
    assert chain.recover.recovery is not None
    assert chain.recover.recovery.model.mean.tolist() == MODEL.mean.tolist()
    chain.on_control(RefitControl(refit, 0))
    assert chain.recover.recovery.model.mean.tolist() == REFIT.mean.tolist()
    make({"use": "recover"}).on_control(RefitControl(refit, 0))  # nothing that could follow


def test_what_becomes_of_unbounded_values_can_change_while_it_runs() -> None:
    operator = {"use": "recover"}
    chain = build_chain(make_config(operator, eps=0.01), MODEL)
    values = np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    assert len(chain.process(0, values)[0].mean) == 5
    chain.on_control(BoundsControl(make_config(operator, eps=0.01, unbounded="withhold")))
    assert len(chain.process(1, values)[0].mean) == 4
    chain.on_control(BoundsControl(make_config(operator, eps=0.01)))
    assert len(chain.process(2, values)[0].mean) == 5


@pytest.mark.parametrize(
    ("operators", "says"),
    [
        (({"use": "sort"},), r"use = 'sort', expected select, project, aggregate, recover or module:Class"),
        (({"use": "select", "above": 1},), r"select: .*above"),
        (({"use": "project"},), r"project: .*sensors"),
        (({"use": "aggregate", "function": "median"},), r"function: found 'median', expected sum, count"),
        (({"use": "aggregate", "window": 2, "slide": 3},), r"slide = 3, window = 2; expected 1 <= slide <= window"),
        (({"use": "aggregate", "window": 2, "slide": 0},), r"slide = 0"),
        (({"use": "no.such:Thing"},), r"no.such:Thing.*No module"),
        (({"use": "math:Thing"},), r"math:Thing.*no attribute"),
        (
            ({"use": "tests.unit.slot.example_operator:Smooth", "weight": 2},),
            r"weight: found 2, expected more than 0",
        ),
        (({"use": "select"}, {"use": "recover"}), r"found select, recover; expected recover before select"),
    ],
)
def test_what_cannot_be_made_says_why(operators: tuple[dict[str, Any], ...], says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        make(*operators)


def test_an_operator_without_a_state_refuses_one() -> None:
    select = Select(make_config())
    select.restore(select.context())
    with pytest.raises(OperatorError, match="3 bytes"):
        select.restore(b"abc")


def test_a_recovery_without_a_model_has_no_state() -> None:
    recover = Recover(make_config())
    assert recover.context() == b""
    recover.restore(b"")


def test_the_documented_operator_smooths() -> None:
    chain = make({"use": "tests.unit.slot.example_operator:Smooth", "weight": 0.25})
    first, second, third = (
        chain.process(step, np.full(5, value))[0] for step, value in enumerate((4.0, math.nan, 8.0))
    )
    assert first.mean.tolist() == [4.0] * 5
    assert second.mean.tolist() == []
    assert third.mean.tolist() == [5.0] * 5
