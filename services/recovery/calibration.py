"""Bounds that hold on real data: how wide they must be is measured all the time, on edges that are alive.

A *shadow failure* masks a living edge in the model's eyes only: what the filter says of its sensors is compared with
what they send. The ratio of error to stated standard deviation, collected by group of sensors, tells by which factor
the standard deviation must be multiplied for a bound of probability delta: its quantile at delta over the Gaussian's
(split conformal; Vovk, Gammerman, Shafer 2005). Newer ratios weigh more, so that the factor follows the data as they
drift. Two things that ratios of one group do not share are taken out before and put back after: that a sensor is worse
than its group, and that all of them are worse these days.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.recovery.filter import Recovery
from services.recovery.model import Model, half_width
from services.recovery.numbering import numbered
from services.runtime.columns import Floats, pack_arrays, unpack_arrays

Places = npt.NDArray[np.intp]

KEPT = 4000
"""Ratios kept of a group: for a bound of 0.99, 40 lie beyond it."""
LEAST_BEYOND = 5.0
"""Ratios that must lie beyond a level, by weight, before its quantile is believed rather than the model's table."""
OWN_WEIGHT = 20.0
"""Ratios of its own that a sensor needs to weigh as much as its group."""
LATELY_WEIGHT = 30.0
"""Ratios of the last steps that weigh as much as all before."""
LATELY_HALF_LIFE = 15.0
"""Steps after which the last steps' ratios weigh half."""
HALF_LIFE = 1000.0
"""Steps after which a ratio weighs half."""
LARGEST = 20.0
"""A ratio past this says that the model broke, not by how much."""
OUTLYING = 9.0
"""A square counts as this many usual ones at most where spreads are measured: three usual distances. One jump
would else widen the bounds of its sensor for a thousand steps, and those of its group for tens."""
SHADOW_STEPS = (10, 3, 30)
"""Lengths of shadow failures, in steps, in turn."""


@dataclass(slots=True)
class _Group:
    """Ratios of one group, newest last, each with its step."""

    ratios: Floats
    steps: Floats
    lately: float = 1.0
    lately_count: float = 0.0

    def follow(self, excess: Floats) -> None:
        """Take in a step's squares, in units of the usual one, that `lately` was already taken out of."""
        kept = 0.5 ** (1 / LATELY_HALF_LIFE)
        square = self.lately**2
        before = square * (LATELY_WEIGHT + self.lately_count) - LATELY_WEIGHT
        count = kept * self.lately_count + len(excess)
        total = LATELY_WEIGHT + kept * before + square * float(np.sum(excess))
        self.lately = float(np.sqrt(max(total / (LATELY_WEIGHT + count), 0.05)))
        self.lately_count = count


class Calibration:
    """Factors on a model's standard deviation, by group of sensors.

    Args:
        model: its table is used until enough has been seen.
        group_of: each sensor's group; None = all are one.
        half_life: of a ratio, in steps.

    Attributes:
        group_of: intp[n], each sensor's group by number; `groups`: their names.
    """

    def __init__(
        self, model: Model, group_of: Sequence[Hashable] | None = None, *, half_life: float = HALF_LIFE
    ) -> None:
        n = len(model)
        names = group_of if group_of is not None else [0] * n
        if len(names) != n:
            raise ValueError(f"calibration: found {len(names)} groups for {n} sensors")
        self.group_of, self.groups = numbered(names)
        self._model = model
        self._half_life = half_life
        self._found = [_Group(np.empty(0), np.empty(0)) for _ in self.groups]
        self._own_sum = np.zeros(n)  # of squared ratios, and how many, with the half-life's weights
        self._own_count = np.zeros(n)
        self._own_step = 0
        self._cached: dict[float, Floats] = {}

    def observe(self, step: int, sensors: Places, ratios: Floats) -> None:
        """Take in abs(truth - mean) / sd of some sensors, sd the model's own (not calibrated)."""
        good = np.isfinite(ratios)
        if not good.any():
            return
        sensors, ratios = sensors[good], np.minimum(ratios[good], LARGEST)
        self._cached.clear()
        own, lately = self._spreads()
        groups = self.group_of[sensors]
        squares = np.square(ratios / (own * lately)[sensors])
        for number in np.unique(groups).tolist():
            group, mine = self._found[number], groups == number
            group.ratios = np.concatenate([group.ratios, np.sqrt(squares[mine])])[-KEPT:]
            group.steps = np.concatenate([group.steps, np.full(int(mine.sum()), float(step))])[-KEPT:]
            before = np.square(group.ratios)
            usual = max(float(np.mean(np.minimum(before, OUTLYING * before.mean()))), 1e-12)
            squares[mine] = np.minimum(squares[mine], OUTLYING * usual)
            group.follow(squares[mine] / usual)
        faded = 0.5 ** ((step - self._own_step) / self._half_life)
        self._own_step = step
        self._own_sum *= faded
        self._own_count *= faded
        np.add.at(self._own_sum, sensors, squares * np.square(own[sensors]))
        np.add.at(self._own_count, sensors, 1.0)

    def factors(self, delta: float) -> Floats:
        """Return float64[n]: what each sensor's standard deviation must be multiplied by for bounds of `delta`.

        Of groups of which too little is known it is what the model's table says.
        """
        if delta not in self._cached:
            table = np.full(len(self._model), self._model.inflation(delta))
            self._cached[delta] = self.measured(delta, table)
        return self._cached[delta]

    def measured(self, delta: float, otherwise: Floats) -> Floats:
        """Return the same, with the given factors of groups of which too little is known."""
        multiple = half_width(delta)
        own, lately = self._spreads()
        spread = own * lately
        result = otherwise.copy()
        for number, group in enumerate(self._found):
            quantile = self._quantile(group, delta)
            if quantile is not None:
                mine = self.group_of == number
                result[mine] = quantile / multiple * spread[mine]
        return result

    def counts(self) -> list[int]:
        """Return how many ratios each group's factor rests on."""
        return [len(group.ratios) for group in self._found]

    def _spreads(self) -> tuple[Floats, Floats]:
        """Return by how much a sensor is worse than its group, and its group lately than usual, float64[n] each."""
        total = np.bincount(self.group_of, self._own_sum, minlength=len(self._found))
        count = np.bincount(self.group_of, self._own_count, minlength=len(self._found))
        usual = np.divide(total, count, out=np.ones(len(total)), where=(count > 0) & (total > 0))[self.group_of]
        own = (OWN_WEIGHT + self._own_sum / usual) / (OWN_WEIGHT + self._own_count)
        return np.sqrt(own), np.array([group.lately for group in self._found])[self.group_of]

    def _quantile(self, group: _Group, delta: float) -> float | None:
        """Return the weighted quantile, with the finite-sample correction; None = too few ratios to say."""
        if not len(group.ratios):
            return None
        weights = 0.5 ** ((group.steps[-1] - group.steps) / self._half_life)
        total = float(weights.sum())
        if total * (1 - delta) < LEAST_BEYOND:
            return None
        order = np.argsort(group.ratios, kind="stable")
        reached = np.cumsum(weights[order])
        wanted = delta * (total + 1.0)
        place = int(np.searchsorted(reached, wanted))
        return float(group.ratios[order[min(place, len(order) - 1)]])

    def context(self) -> bytes:
        """Return the state; `restore` of it continues with the same factors."""
        sizes = np.array([len(group.ratios) for group in self._found], dtype=np.float64)
        return pack_arrays(
            {
                "sizes": sizes,
                "ratios": np.concatenate([group.ratios for group in self._found]),
                "steps": np.concatenate([group.steps for group in self._found]),
                "lately": np.array([[group.lately, group.lately_count] for group in self._found]),
                "own": np.stack([self._own_sum, self._own_count]),
                "own_step": np.array([float(self._own_step)]),
            }
        )

    def restore(self, context: bytes) -> None:
        """Go on from the state that `context` returned."""
        arrays = unpack_arrays(context)
        ends = np.cumsum(arrays["sizes"].astype(np.intp))
        ratios = np.split(arrays["ratios"].astype(np.float64), ends[:-1])
        steps = np.split(arrays["steps"].astype(np.float64), ends[:-1])
        lately = arrays["lately"].astype(np.float64).tolist()
        self._found = [_Group(r, s, *pair) for r, s, pair in zip(ratios, steps, lately, strict=True)]
        self._own_sum, self._own_count = arrays["own"].astype(np.float64).copy()
        self._own_step = int(arrays["own_step"][0])
        self._cached.clear()


class Turn(NamedTuple):
    """One shadow failure.

    Attributes:
        sensors: of the edge that is masked.
        steps: how long it lasts, of `SHADOW_STEPS`.
    """

    sensors: Places
    steps: int


class Turns:
    """Edges to fail in the eyes of a filter, one after the other, and each of them for every length in turn.

    Args:
        edge_of: each sensor's edge.
        offset: of the first edge.

    Attributes:
        edges: how many there are.
    """

    def __init__(self, edge_of: Sequence[Hashable], offset: int = 0) -> None:
        numbers, names = numbered(edge_of)
        self._sensors = [np.flatnonzero(numbers == number) for number in range(len(names))]
        self.edges = len(names)
        self._next = offset
        # Each edge counts its own failures: one count for all would give an edge the same length each time where the
        # number of edges is a multiple of the number of lengths.
        self._failures = list(range(offset, offset + self.edges))

    def take(self, seen: npt.NDArray[np.bool_]) -> Turn | None:
        """Return the failure of the next edge of which something was read, bool[n]; None = there is none.

        A sensor that is dead, or has gaps, is no reason to pass over its edge: it has no truth and is left out.
        """
        for turn in range(self.edges):
            edge = (self._next + turn) % self.edges
            if seen[self._sensors[edge]].any():
                self._next = edge + 1
                steps = SHADOW_STEPS[self._failures[edge] % len(SHADOW_STEPS)]
                self._failures[edge] += 1
                return Turn(self._sensors[edge], steps)
        return None


class Shadow:
    """Fails living edges in the eyes of a copy of the filter, one after the other, and tells how wrong it is then.

    Args:
        recovery: the slot's filter; each shadow failure begins with its state.
        edge_of: each sensor's edge.
        offset: of the first edge and length: several shadows side by side should not mask the same edge.
    """

    def __init__(self, recovery: Recovery, edge_of: Sequence[Hashable], *, offset: int = 0) -> None:
        self._turns = Turns(edge_of, offset)
        self._recovery = recovery
        self._filter = recovery.fork()
        self._masked: Places | None = None
        self._until = 0

    def observe(self, values: Floats, step: int) -> tuple[Places, Floats]:
        """Take in a step that the slot's filter has just taken; return masked sensors and their ratios."""
        seen = np.isfinite(values)
        sensors = self._masked
        if sensors is None or step >= self._until:
            self._choose(seen, step)
            return np.empty(0, dtype=np.intp), np.empty(0)
        masked = values.copy()
        masked[sensors] = np.nan
        estimate = self._filter.step(masked, step)
        known = sensors[seen[sensors]]
        return known, ratios(values[known], estimate.mean[known], estimate.sd[known])

    def _choose(self, seen: npt.NDArray[np.bool_], step: int) -> None:
        """Begin a failure of the next edge that is alive at the next step, from the slot's own state."""
        turn = self._turns.take(seen)
        self._masked = None
        if turn is not None:
            self._masked, self._until = turn.sensors, step + 1 + turn.steps
            self._filter = self._recovery.fork()


def ratios(truth: Floats, mean: Floats, sd: Floats) -> Floats:
    """Return abs(truth - mean) / sd; NaN where sd is 0."""
    return np.asarray(np.divide(np.abs(truth - mean), sd, out=np.full(len(sd), np.nan), where=sd > 0))
