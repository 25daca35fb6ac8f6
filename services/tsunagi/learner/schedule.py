"""When the learner fits a model: after so much history, and again when there is much more of it."""

from __future__ import annotations

from dataclasses import dataclass

AGAIN = 0.5
"""A history whose model was not good enough must have grown by this share before the next fit."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The last fit.

    Attributes:
        steps: to how many steps it was fitted.
        newest: the newest of them.
        sensors: the names of the sensors that the model knows.
        good: whether the model was put in force.
    """

    steps: int
    newest: int
    sensors: frozenset[str]
    good: bool = True


def new_steps(last: Fitted | None, least_steps: int) -> int:
    """Return how many steps must come after the last fit before the next one.

    The first fit needs `least_steps`. Each later one needs as many new steps as the last one was fitted to: a model
    changes little before its history has doubled, and each of them takes a filter and a calibration anew.
    """
    if last is None:
        return least_steps
    return last.steps if last.good else max(1, round(AGAIN * last.steps))


def is_due(last: Fitted | None, steps: int, newest: int, least_steps: int, *, joining: bool = False) -> bool:
    """Return whether a model is to be fitted now.

    Args:
        steps: how many steps of history there are.
        newest: the newest of them.
        joining: whether a sensor that no model knows has enough readings; it joins with the next model.
    """
    if last is None:
        return steps >= least_steps
    return newest - last.newest >= new_steps(last, least_steps) or (joining and newest > last.newest)
