"""Bounds that hold on real data: how wide they must be is measured all the time on edges that are alive.

A *shadow failure* hides a living edge from a copy of the filter; what that copy says about the edge's sensors is
compared with what they send. The ratios of error to stated standard deviation are collected by group of sensors. The
factor by which the standard deviation must be multiplied for a bound of probability delta is their quantile at delta,
divided by the Gaussian's (split conformal; Vovk, Gammerman, Shafer 2005). Newer ratios weigh more, so the factor
follows the data as they drift. Ratios of one group differ in three ways, which are taken out before the quantile and
put back after it: a sensor is worse than its group, the whole group is worse at present, and an estimate's traits
matter (`factors`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import linalg

from tsunagi.recovery.factors import COLUMNS, Factors, Places, Traits, shape
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model, half_width
from tsunagi.recovery.numbering import numbered
from tsunagi.runtime.columns import Floats

KEPT = 4000
"""Ratios that are kept for a group: for a bound of probability 0.99, 40 of them lie beyond it."""
LEAST_BEYOND = 5.0
"""This weight of ratios must lie beyond a level before their quantile is believed; until then the model's table
holds."""
OWN_WEIGHT = 80.0
"""With this weight of own ratios a sensor's spread counts as much as its group's. It is high because the ratios of one
outage are much alike."""
LATELY_WEIGHT = 30.0
"""With this many ratios the last steps count as much for a group's present spread as all that was before."""
LATELY_HALF_LIFE = 15.0
"""Half-life of a ratio among those of the last steps, in steps."""
HALF_LIFE = 1000.0
"""Half-life of a ratio, in steps."""
LARGEST = 20.0
"""A ratio counts as this at most: a larger one says that the model broke, and nothing more by its size."""
OUTLYING = 9.0
"""Where spreads are measured, a squared ratio counts as this many usual ones at most, which is three usual distances.
Otherwise one jump would widen the bounds of its sensor for a thousand steps, and those of its group for tens of
steps."""
SHADOW_STEPS = (10, 3, 30)
"""Lengths of shadow failures, in steps; each edge has them in this order."""
SLOPE_EVERY = 10
"""Steps between two fits of how ratios depend on traits."""
SLOPE_WEIGHT = 300.0
"""A slope is shrunk towards 0 as by this weight of ratios that show no slope (a ridge, in units of each trait's
variance)."""
SLOPE_ROUNDS = 3
"""Newton steps in one such fit; the next fit goes on from there."""
MARKS = np.array([1.0, 3, 10, 30, 100, 300, 1000, 3000, 10_000])
"""Ages of outages, in steps: it is counted how many outages lasted to each of them."""
LEAST_OUTAGES = 1.5
"""This weight of outages must have reached an age before its factors may be below the table's: two outages, not long
ago.

With a weight of three, bounds from short histories were far too wide where the table's are: the interval score of 240
rows was up to 2.5 times as great."""


@dataclass(slots=True)
class _Group:
    """The ratios of one group, newest last, each with its step and the columns of its traits; and what they show."""

    ratios: Floats = field(default_factory=lambda: np.empty(0))
    steps: Floats = field(default_factory=lambda: np.empty(0))
    columns: Floats = field(default_factory=lambda: np.empty((0, COLUMNS)))
    slope: Floats = field(default_factory=lambda: np.zeros(COLUMNS))
    centre: Floats = field(default_factory=lambda: np.zeros(COLUMNS))
    reached: Floats = field(default_factory=lambda: np.zeros(len(MARKS)))
    lately: float = 1.0
    lately_count: float = 0.0
    looked: float = -np.inf

    def add(self, step: int, ratios: Floats, columns: Floats, half_life: float) -> None:
        """Keep the ratios of a step, and fit again how they depend on traits if it is time to."""
        self.ratios = np.concatenate([self.ratios, ratios])[-KEPT:]
        self.steps = np.concatenate([self.steps, np.full(len(ratios), float(step))])[-KEPT:]
        self.columns = np.concatenate([self.columns, columns])[-KEPT:]
        if step - self.looked >= SLOPE_EVERY:
            self.looked = step
            self._look(0.5 ** ((step - self.steps) / half_life))

    def standard(self) -> Floats:
        """Return the ratios without the part that their traits explain."""
        return self.ratios / shape(self.columns, self.slope, self.centre)

    def tried(self) -> float:
        """Return the greatest age that enough outages have reached, in steps; 0 if none has."""
        return float(np.max(MARKS, initial=0.0, where=self.reached >= LEAST_OUTAGES))

    def follow(self, excess: Floats) -> None:
        """Update `lately` by a step's squared ratios, in units of the usual one and without `lately` itself."""
        kept = 0.5 ** (1 / LATELY_HALF_LIFE)
        square = self.lately**2
        before = square * (LATELY_WEIGHT + self.lately_count) - LATELY_WEIGHT
        count = kept * self.lately_count + len(excess)
        total = LATELY_WEIGHT + kept * before + square * float(np.sum(excess))
        self.lately = float(np.sqrt(max(total / (LATELY_WEIGHT + count), 0.05)))
        self.lately_count = count

    def _look(self, weights: Floats) -> None:
        """Fit the logarithm of a squared ratio, linear in its columns: gamma likelihood, penalised, outliers cut."""
        self.centre = weights @ self.columns / weights.sum()
        columns = self.columns - self.centre
        squares = np.square(self.ratios)
        usual = float(weights @ squares / weights.sum())
        if usual <= 0:
            return
        design = np.column_stack([np.ones(len(columns)), columns])
        penalty = np.diag([0.0, *(SLOPE_WEIGHT * np.maximum(weights @ np.square(columns) / weights.sum(), 1e-6))])
        found = np.array([np.log(usual), *(2 * self.slope)])
        hessian = design.T @ (design * weights[:, None]) + penalty
        factor = linalg.cho_factor(hessian)
        for _ in range(SLOPE_ROUNDS):
            expected = np.exp(np.clip(design @ found, found[0] - 4, found[0] + 4))
            excess = np.minimum(squares / expected, OUTLYING) - 1
            found += np.clip(linalg.cho_solve(factor, design.T @ (weights * excess) - penalty @ found), -1.0, 1.0)
        self.slope = found[1:] / 2


class Calibration:
    """Measures factors on a model's standard deviation, by group of sensors.

    Args:
        model: its table is used until enough has been seen.
        group_of: the group of each sensor; None means that all are one group.
        half_life: half-life of a ratio, in steps.

    Attributes:
        group_of: intp[n], the number of each sensor's group; `groups`: the names of the groups.
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
        self._found = [_Group() for _ in self.groups]
        self._own_sum = np.zeros(n)  # sum of each sensor's squared ratios, and below their number, both fading
        self._own_count = np.zeros(n)
        self._step = 0
        self._cached: dict[float, Factors] = {}

    def observe(self, step: int, sensors: Places, ratios: Floats, traits: Traits) -> None:
        """Add abs(truth - mean) / sd of estimates of some sensors; sd is the model's own, without calibration."""
        good = np.isfinite(ratios)
        if not good.any():
            return
        sensors, ratios, traits = sensors[good], np.minimum(ratios[good], LARGEST), traits.at(good)
        self._cached.clear()
        columns = traits.columns()
        own, lately = self._spreads()
        left = ratios / (own * lately)[sensors]
        faded = 0.5 ** ((step - self._step) / self._half_life)
        groups = self.group_of[sensors]
        squares = np.empty(len(sensors))
        for number, group in enumerate(self._found):
            group.reached *= faded
            mine = groups == number
            if not mine.any():
                continue
            group.reached += np.isin(MARKS, traits.age[mine])
            squares[mine] = np.square(left[mine] / shape(columns[mine], group.slope, group.centre))
            group.add(step, left[mine], columns[mine], self._half_life)
            before = np.square(group.standard())
            usual = max(float(np.mean(np.minimum(before, OUTLYING * before.mean()))), 1e-12)
            squares[mine] = np.minimum(squares[mine], OUTLYING * usual)
            group.follow(squares[mine] / usual)
        self._step = step
        self._own_sum *= faded
        self._own_count *= faded
        np.add.at(self._own_sum, sensors, squares * np.square(own[sensors]))
        np.add.at(self._own_count, sensors, 1.0)

    def factors(self, delta: float) -> Factors:
        """Return the factors on standard deviations for bounds of probability `delta`.

        A group about which too little is known has the factor of the model's table.
        """
        if delta not in self._cached:
            table = Factors.plain(np.full(len(self._model), self._model.inflation(delta)), self.group_of)
            self._cached[delta] = self.measured(delta, table)
        return self._cached[delta]

    def measured(self, delta: float, otherwise: Factors) -> Factors:
        """Return the factors; a group about which too little is known has the ones in `otherwise`."""
        if not np.array_equal(otherwise.group, self.group_of):
            otherwise = Factors.plain(otherwise.base, self.group_of)
        multiple = half_width(delta)
        own, lately = self._spreads()
        spread = own * lately
        base, slope, centre, tried = (
            values.copy() for values in (otherwise.base, otherwise.slope, otherwise.centre, otherwise.tried)
        )
        for number, group in enumerate(self._found):
            quantile = self._quantile(group, delta)
            if quantile is not None:
                mine = self.group_of == number
                base[mine] = quantile / multiple * spread[mine]
                slope[number], centre[number], tried[number] = group.slope, group.centre, group.tried()
        return Factors(base, self.group_of, slope, centre, tried)

    def counts(self) -> list[int]:
        """Return the number of ratios from which each group's factor comes."""
        return [len(group.ratios) for group in self._found]

    def newest(self, group: int, count: int) -> Floats:
        """Return the columns of a group's newest ratios, float64[up to count, COLUMNS]."""
        return self._found[group].columns[-count:]

    def _spreads(self) -> tuple[Floats, Floats]:
        """Return how much worse a sensor is than its group, and its group than usual at present, float64[n] each."""
        total = np.bincount(self.group_of, self._own_sum, minlength=len(self._found))
        count = np.bincount(self.group_of, self._own_count, minlength=len(self._found))
        usual = np.divide(total, count, out=np.ones(len(total)), where=(count > 0) & (total > 0))[self.group_of]
        own = (OWN_WEIGHT + self._own_sum / usual) / (OWN_WEIGHT + self._own_count)
        return np.sqrt(own), np.array([group.lately for group in self._found])[self.group_of]

    def _quantile(self, group: _Group, delta: float) -> float | None:
        """Return the weighted quantile with the finite-sample correction; None if there are too few ratios."""
        if not len(group.ratios):
            return None
        weights = 0.5 ** ((group.steps[-1] - group.steps) / self._half_life)
        total = float(weights.sum())
        if total * (1 - delta) < LEAST_BEYOND:
            return None
        ratios = group.standard()
        order = np.argsort(ratios, kind="stable")
        reached = np.cumsum(weights[order])
        wanted = delta * (total + 1.0)
        place = int(np.searchsorted(reached, wanted))
        return float(ratios[order[min(place, len(order) - 1)]])


class Turn(NamedTuple):
    """One shadow failure.

    Attributes:
        sensors: the sensors of the edge that is hidden.
        steps: its length, one of `SHADOW_STEPS`.
    """

    sensors: Places
    steps: int


class Turns:
    """Chooses the edges that fail in shadow failures, one after the other, each with every length in turn.

    Args:
        edge_of: the edge of each sensor.
        offset: number of the first edge.

    Attributes:
        edges: number of edges.
    """

    def __init__(self, edge_of: Sequence[Hashable], offset: int = 0) -> None:
        numbers, names = numbered(edge_of)
        self._sensors = [np.flatnonzero(numbers == number) for number in range(len(names))]
        self.edges = len(names)
        self._next = offset
        # Each edge counts its own failures. With one count for all, an edge would always have the same length where
        # the number of edges is a multiple of the number of lengths.
        self._failures = list(range(offset, offset + self.edges))

    def take(self, seen: npt.NDArray[np.bool_]) -> Turn | None:
        """Return the failure of the next edge of which something was read, given bool[n]; None if there is none.

        A sensor that is dead or has gaps does not exclude its edge: it has no truth and is left out.
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
    """Lets living edges fail for a copy of the filter, one after the other, and measures how wrong it is then.

    Args:
        recovery: the filter of the slot; each shadow failure begins with its state.
        edge_of: the edge of each sensor.
        offset: number of the first edge and length: several shadows side by side should not hide the same edge.
    """

    def __init__(self, recovery: Recovery, edge_of: Sequence[Hashable], *, offset: int = 0) -> None:
        self._turns = Turns(edge_of, offset)
        self._recovery = recovery
        self._filter = recovery.fork()
        self._masked: Places | None = None
        self._until = 0

    def observe(self, values: Floats, step: int) -> tuple[Places, Floats, Traits]:
        """Follow a step that the slot's filter has just taken; return hidden sensors, their ratios and their traits."""
        seen = np.isfinite(values)
        sensors = self._masked
        if sensors is None or step >= self._until:
            self._choose(seen, step)
            none = np.empty(0)
            return np.empty(0, dtype=np.intp), none, Traits(none, none, none)
        masked = values.copy()
        masked[sensors] = np.nan
        estimate = self._filter.step(masked, step)
        known = sensors[seen[sensors]]
        return known, ratios(values[known], estimate.mean[known], estimate.sd[known]), self._filter.traits(known)

    def _choose(self, seen: npt.NDArray[np.bool_], step: int) -> None:
        """Begin a failure of the next edge that is alive, from the slot's own state; it shows from the next step on."""
        turn = self._turns.take(seen)
        self._masked = None
        if turn is not None:
            self._masked, self._until = turn.sensors, step + 1 + turn.steps
            self._filter = self._recovery.fork()


def ratios(truth: Floats, mean: Floats, sd: Floats) -> Floats:
    """Return abs(truth - mean) / sd; NaN where sd is 0."""
    return np.asarray(np.divide(np.abs(truth - mean), sd, out=np.full(len(sd), np.nan), where=sd > 0))
