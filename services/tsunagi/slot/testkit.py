"""Checks a user's operator against the laws of docs/howto/operators.md, in the operator's own tests."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tsunagi.runtime.columns import Floats, Sensors
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import Frame, Integers, Run, measured_run
from tsunagi.slot.operators import Chain, OperatorFailedError, build_chain

SENSORS = 7
"""Number of sensors of the slot in which an operator is tried."""
STEP_US = 1_000_000
"""Length of this slot's steps, microseconds."""
PRESENT = 0.9
"""Share of ordinary readings; the others are of `ODD`. Without steps it is also the share of sensors in a record."""
ODD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, -1e308, 5e-324)
"""Values that each operator must cope with."""


class LawError(AssertionError):
    """An operator breaks a law; the message says which, and where."""


def check_operators(
    *operators: dict[str, Any], mode: Literal["steps", "tuples"] = "steps", count: int = 200, seed: int = 0
) -> None:
    """Run a chain of operators over made-up data, in every way in which a slot may run it.

    Args:
        operators: as in `[query] operators`, each with `use`.
        mode: as `[query] mode`.
        count: number of steps, or of records of tuples.
        seed: seed of the made-up data.

    Raises:
        LawError: the operators are not deterministic, cannot be resumed, depend on how records are cut into runs, write
            into the arrays that they are given, or return something else than a `Run` for a `Run`.
        OperatorError: an operator cannot be made from its options.
        Exception: what an operator raises when it processes the data.
    """
    config = SlotConfig(
        slot=0,
        sensors=tuple(range(SENSORS)),
        names=tuple(f"s{number}" for number in range(SENSORS)),
        edges=("edge",) * SENSORS,
        slide_us=STEP_US if mode == "steps" else 1,
        max_ahead_us=STEP_US,
        max_skew_steps=1,
        max_gap_steps=10,
        operators=operators,
        eps=1.0,
        delta=0.9,
        mode=mode,
    )
    inputs = _inputs(mode, count, np.random.default_rng(seed))
    straight = build_chain(config, None)
    expected = [_process(straight, item) for item in inputs]
    again = build_chain(config, None)
    for place, item in enumerate(inputs):
        if _process(again, item) != expected[place]:
            raise LawError(f"not deterministic: run once more, input {place} gives other rows")
    context = None
    for place, item in enumerate(inputs):
        resumed = build_chain(config, None)
        if context is not None:
            resumed.restore(context)
        if _process(resumed, item) != expected[place]:
            raise LawError(
                f"not resumable: restored before input {place}, it gives other rows than run straight through"
            )
        context = resumed.context()
    if mode == "tuples":
        _check_cuts(config, inputs, expected, np.random.default_rng(seed + 1))


def _inputs(mode: str, count: int, draw: np.random.Generator) -> list[Run]:
    runs = []
    for number in range(count):
        ids = np.arange(SENSORS, dtype=np.uint32)
        if mode == "tuples":
            ids = ids[draw.random(SENSORS) < PRESENT]
        values = draw.normal(size=len(ids))
        odd = draw.random(len(ids)) < 1 - PRESENT
        values[odd] = draw.choice(ODD, int(odd.sum()))
        runs.append(_run(number, ids, values, np.zeros(len(ids), dtype=np.int64), np.full(len(ids), number * STEP_US)))
    return runs


def _run(step: int, ids: Sensors, values: Floats, origin: Integers, times: Integers) -> Run:
    run = measured_run(step, step * STEP_US, ids, values, times, origin)
    for column in (run.sensor, run.mean, run.sd, run.quality, run.bound, run.time_us, run.origin):
        column.flags.writeable = False
    return run


def _process(chain: Chain, item: Run) -> list[Any]:
    try:
        if chain.mode == "steps":
            return [_plain(frame) for frame in chain.process(item.step, item.mean)]
        return [row for run in chain.process_run(item) for row in _rows(run)]
    except OperatorFailedError as error:
        if isinstance(error.__cause__, ValueError) and "read-only" in str(error):
            raise LawError(f"it writes into the arrays that it is given: {error}") from error
        raise error.__cause__ or error from None
    except TypeError as error:
        if "expected a Run" in str(error):
            raise LawError(str(error)) from error
        raise


def _plain(frame: Frame) -> bytes:
    return pickle.dumps((frame.step, frame.sensor, frame.mean, frame.sd, frame.quality, frame.bound))


def _rows(run: Run) -> list[tuple[Any, ...]]:
    """Return the rows as texts, so that NaN equals NaN, without the columns that depend on where runs are cut."""
    columns = (run.sensor, run.mean, run.sd, run.quality, run.bound, run.time_us)
    return [tuple(map(repr, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _together(runs: Sequence[Run]) -> Run:
    """Return several runs as one."""
    sizes = [len(run.mean) for run in runs]
    return _run(
        runs[-1].step,
        np.concatenate([run.sensor for run in runs]),
        np.concatenate([run.mean for run in runs]),
        np.repeat(np.arange(len(runs)), sizes),
        np.concatenate([run.time_us for run in runs]),
    )


def _check_cuts(
    config: SlotConfig, inputs: Sequence[Run], expected: Sequence[list[Any]], draw: np.random.Generator
) -> None:
    chain = build_chain(config, None)
    place = 0
    while place < len(inputs):
        part = inputs[place : place + int(draw.integers(1, 30))]
        whole = _together(part)
        wanted = [row for rows in expected[place : place + len(part)] for row in rows]
        if _process(chain, whole) != wanted:
            raise LawError(
                f"it depends on cuts: the inputs {place} to {place + len(part) - 1} as one run give other rows "
                "than one by one"
            )
        place += len(part)
