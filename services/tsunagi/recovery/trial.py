"""How wrong a model is about edges that were alive: trial outages on rows that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.forms import choose_form
from tsunagi.recovery.model import Model
from tsunagi.recovery.state import State
from tsunagi.runtime.columns import Floats

LEAST_ERROR = 1e-9
"""Error of a history that repeats itself exactly, in units of scale, so that its logarithm is finite."""
OUTAGES = (3, 10, 30)
"""Lengths of the trial outages, in steps. What a filter still knows after 30 steps it mostly knows for good."""
OUTAGES_OF_A_LENGTH = 40
"""Most trial outages of one length, evenly chosen."""

Edges = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Trial:
    """Errors at the hidden truths, float64[k] each, in units of scale.

    Attributes:
        error, sd: errors and standard deviations of the model's estimates.
        last_value, mean: errors if the last value, or the mean, were taken instead.
        squares: float64[lengths], mean squared error over the outages of each length, shortest first.
    """

    error: Floats
    sd: Floats
    last_value: Floats
    mean: Floats
    squares: Floats

    @property
    def score(self) -> float:
        """The score of the trial, see `score_of`."""
        return float(score_of(self.squares))


def score_of(squares: Floats) -> Floats:
    """Return the logarithm of the root mean square, as the mean over the lengths (last axis); lower is better.

    So outages of each length have the same weight, though the long ones have more and greater errors.
    """
    return np.asarray(np.log(np.sqrt(squares) + LEAST_ERROR).mean(axis=-1))


def run_trial(
    model: Model, masked: Floats, groups: list[Edges], first_step: int = 0, lengths: Sequence[int] = OUTAGES
) -> Trial:
    """Hide each group in turn, in outages of each length, one after the other.

    Args:
        masked: float64[T, n], sensor units; the first outages start from the first row.
        groups: groups of sensors that fail together.
        first_step: number of the step of row 0.
        lengths: lengths of the outages, ascending.

    The outages of a group have the same missing sets, so all run side by side: a step's matrices are made once for all.
    """
    means = np.stack([model.mean_at(first_step + row) for row in range(len(masked))])
    truth = ((masked - means) / model.scale).T  # float64[n, steps]
    seen = np.isfinite(truth)
    filled = _hold(truth)
    starts, lasting = outages(truth.shape[1], lengths)
    since = np.arange(1, int(lasting.max()) + 1)
    # float64[steps since, outages]; an outage that is over runs on beside the others, and is not scored.
    at = np.minimum(starts + since[:, None], truth.shape[1] - 1)
    lasts = (since[:, None] <= lasting) & (starts + since[:, None] < truth.shape[1])
    form = choose_form(model).form
    nobody, nothing = np.empty(0, dtype=np.intp), np.empty((0, 0))
    parts: list[tuple[Floats, Floats, Floats, Floats, Edges]] = []
    for group in groups:
        state = State(nobody, nothing, filled[:, starts], np.empty(0))
        estimates, variances = np.empty((len(group), *at.shape)), np.empty((len(group), len(since), 1))
        for row, columns in enumerate(at):
            readings = filled[:, columns]
            readings[group] = 0.0
            state = form.following(state, readings, group)
            estimates[:, row], variances[:, row, 0] = state.x[group], state.variance
        hidden, before = truth[group][:, at], filled[group][:, None, starts]
        scored = lasts & seen[group][:, at]
        sd = np.broadcast_to(np.sqrt(variances), scored.shape)
        length = np.broadcast_to(lasting, scored.shape)
        naive = (hidden - before)[scored]
        parts.append(((hidden - estimates)[scored], sd[scored], naive, hidden[scored], length[scored]))
    error, sd, last_value, mean = (np.concatenate([part[i] for part in parts]) for i in range(4))
    length = np.concatenate([part[4] for part in parts])
    squares = [float(np.mean(error[length == value] ** 2)) for value in np.unique(length)]
    return Trial(error, sd, last_value, mean, np.array(squares or [1.0]))


def outages(steps: int, of: Sequence[int] = OUTAGES) -> tuple[Edges, Edges]:
    """Return the first step (still observed) and the length of each trial outage, for these lengths."""
    starts, lengths = [], []
    for length in sorted({min(length, steps - 1) for length in of}):
        every = np.arange(0, steps - 1, length + 1)
        chosen = every[evenly(len(every), OUTAGES_OF_A_LENGTH)]
        starts.append(chosen)
        lengths.append(np.full(len(chosen), length))
    return np.concatenate(starts), np.concatenate(lengths)


def evenly(count: int, most: int) -> Edges:
    """Return at most `most` of the numbers below `count`, evenly from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def _hold(truth: Floats) -> Floats:
    """Fill gaps with the value before (at the start: the one after; without any: 0); they are never scored."""
    seen = np.isfinite(truth)
    steps = np.arange(truth.shape[1])
    before = np.maximum.accumulate(np.where(seen, steps, -1), axis=1)
    first = np.where(seen.any(axis=1), seen.argmax(axis=1), 0)
    filled = np.take_along_axis(truth, np.where(before < 0, first[:, None], before), axis=1)
    return np.where(np.isfinite(filled), filled, 0.0)
