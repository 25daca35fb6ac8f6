"""The owner's choice of helpers: sensors of other slots that make bounds narrower while edges are out.

See section 4.2 of Takao et al. (DEIM 2023). The choice becomes a request in `plan`, which the edges obey, and a control
record in the slot's log, from which on the filter uses the helpers. Nobody waits for their readings: until they come
they count as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.owner import reach
from tsunagi.owner.reach import REACH, Known, Reach
from tsunagi.recovery.helpers import (
    Helpers,
    HelpersError,
    best_variance,
    choose_helpers,
    persistence_share,
    steps_within,
    variance_threshold,
)
from tsunagi.recovery.low_rank import LowRankInverse
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.task import Task
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.recover import Recover

LOOK_S = 0.1
"""Seconds between two looks at which edges of other slots have gone silent."""
LEAST_HELD = 8
"""A value is helped only if helpers can keep its bound for so many steps of an outage: they come after two or three."""
MOST_HELD = 2**12
"""After this many steps an outage counts as endless here."""
REASONS = ("no helper", "cap", "off", "not calibrated")
"""Why a value's bound stays wider than eps: no sensor that is read helps enough; the slot has as many helpers as it may
have; helpers are switched off; the bound is that of the model, which no truth has been compared with yet."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The helpers that a slot should have.

    Attributes:
        sensors: the helpers' ids, ascending.
        names, edges: the name and the edge of each helper.
        unmet: (reason, number) for the lost sensors whose bounds will be wider than eps once the readings before the
            outage tell nothing any more. `REASONS` has the reasons.
    """

    sensors: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    unmet: tuple[tuple[str, int], ...] = ()


class _Chosen(NamedTuple):
    """The result of a choice.

    Attributes:
        wanted: the helpers.
        until: the step of each edge's outage at which helping some of its values is given up, by edge.
    """

    wanted: Wanted
    until: dict[str, float]


class Helping:
    """Chooses the helpers of one slot, while this node owns it.

    Some values cannot be kept within their bounds for a whole outage. They are helped as long as helpers suffice: soon
    after the last reading, that reading still tells much of the value.

    In a fleet of more than `reach.AT_ONCE` sensors the choice takes seconds. It is then made in another thread, and the
    old helpers stay until it is ready.

    Args:
        recover: the operator `recover` of the slot's chain.
        model: the model of the whole fleet. Sensors that it knows and the table lacks count as lost.
        config: the slot's configuration.
        table: the table of all sensors.
        known: has what tells for which values no helper suffices, once that is computed.

    Attributes:
        wanted: the last choice.
    """

    def __init__(
        self, recover: Recover, model: Model, config: SlotConfig, table: SensorTable, known: Reach = REACH
    ) -> None:
        self.model = model
        self.config = config
        self._recover = recover
        self._table = table
        rows = table.ids(list(model.names))
        self._ids = np.array([rows.get(name, -1) for name in model.names], dtype=np.int64)
        self._edges = [table.sensors[row].edge if row >= 0 else "" for row in self._ids.tolist()]
        places = {name: place for place, name in enumerate(model.names)}
        self._own = np.array([places[config.model_names[place]] for place in recover.places], dtype=np.intp)
        self._others = tuple(sorted({edge for edge in self._edges if edge} - set(config.edges)))
        self._reach = known
        self._known: Known | None = None  # what `known` has of the model; None = no edge was out yet
        self._told = persistence_share(model)[self._own]
        self._until: dict[str, float] = {}  # as `_Chosen.until`
        self._lost_others: frozenset[str] = frozenset()
        self._looked_at = -np.inf
        self._key: tuple[object, ...] = ()
        self._choice: Task[_Chosen] | None = None
        self.wanted = Wanted()

    def fits(self, recover: Recover, model: Model, config: SlotConfig) -> bool:
        """Return whether this object was made for this operator, model and configuration."""
        return self._recover is recover and self.model is model and self.config.hash == config.hash

    def decide(self, out: Mapping[str, int], lost: Callable[[str], bool], cap: int, now: float) -> Wanted:
        """Return the helpers that should be in force.

        Args:
            out: the slot's edges that are out, each with the number of steps that it has missed.
            lost: returns whether an edge of other slots has gone silent.
            cap: the most helpers that the slot may have.
            now: monotonic seconds.
        """
        if not out:
            self._key, self.wanted, self._choice = (), Wanted(), None
            return self.wanted
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._lost_others = frozenset(edge for edge in self._others if lost(edge))
        recovery = self._recover.recovery
        distrusted = () if recovery is None else tuple(np.flatnonzero(recovery.distrusted).tolist())
        self._known = self._known or self._reach.of(self.model)
        precision = self._known.precision
        known = precision is not None
        key = (frozenset(out), self._lost_others, cap, self.config.eps, self.config.delta, distrusted, known)
        self._take()
        if self._choice is not None:
            return self.wanted
        # The helpers stay while nothing else changes. Otherwise each new factor would bring other helpers.
        if key != self._key or any(steps >= self._until.get(edge, np.inf) for edge, steps in out.items()):
            self._key = key
            given = dict(out), self._lost_others | out.keys(), np.array(distrusted, np.intp), cap, precision
            work = partial(self._choose, *given, self._factors())
            self._choice = Task(work, "helpers", at_once=len(self.model) <= reach.AT_ONCE)
            self._take()
        return self.wanted

    def _take(self) -> None:
        """Take over the choice if it is ready."""
        if self._choice is not None and self._choice.done.is_set():
            choice, self._choice = self._choice, None
            self.wanted, self._until = choice.result()

    def _choose(
        self,
        out: Mapping[str, int],
        dead: AbstractSet[str],
        distrusted: npt.NDArray[np.intp],
        cap: int,
        precision: Floats | LowRankInverse | None,
        factors: Floats,
    ) -> _Chosen:
        lost = np.array([edge in dead or not edge for edge in self._edges])
        lost[self._own[distrusted]] = True
        strict, limits = np.full((2, len(self.model)), np.inf)
        strict[self._own] = variance_threshold(self.config.eps, self.config.delta) / np.square(factors)
        places = np.flatnonzero(lost)
        until: dict[str, float] = {}
        try:
            own = strict[self._own]
            limits[self._own] = own
            if precision is not None:
                limits[self._own], until = self._limits(own, out, precision, places)
            found = choose_helpers(self.model.kept()[1], self._own, places, limits, cap=cap)
        except HelpersError:  # the model is numerically too near to singular: no helpers
            return _Chosen(Wanted(unmet=(("no helper", int(lost[self._own].sum())),)), until)
        order = np.argsort(self._ids[found.chosen])
        chosen = found.chosen[order].tolist()
        short = int((found.variance > strict[found.targets]).sum())
        wanted = Wanted(
            tuple(int(self._ids[place]) for place in chosen),
            tuple(self.model.names[place] for place in chosen),
            tuple(self._edges[place] for place in chosen),
            ((self._reason(found, cap), short),) if short else (),
        )
        return _Chosen(wanted, until)

    def _limits(
        self, strict: Floats, out: Mapping[str, int], precision: Floats | LowRankInverse, lost: npt.NDArray[np.intp]
    ) -> tuple[Floats, dict[str, float]]:
        """Return the limits of the variances for `choose_helpers`, and when helping is given up.

        `choose_helpers` knows nothing of readings before the outage. k steps into an outage the variance of a value is
        about 1 - r^k of its variance without them, r = the share of the variance that the step before tells. So a value
        that helpers can keep within its bound for 2^j steps, but not for good, gets until then its limit divided by
        1 - r^(2^j). Powers of two let helpers change only a few times in an outage.

        Args:
            strict: float64[own], the variances that eps and delta allow.
            out: as in `decide`.
            precision: the inverse of the model's prior covariance.
            lost: the places of lost sensors in the model.

        Returns:
            float64[own], infinite where no sensor that is read helps enough; and `_Chosen.until`.
        """
        own = np.isin(self._own, lost)
        best = np.full(len(strict), strict)
        best[own] = best_variance(precision, lost, self._own[own])
        edges = [self._edges[place] for place in self._own.tolist()]
        age = np.array([out.get(edge, MOST_HELD) for edge in edges])
        steps = steps_within(best, strict, self._told)
        brief = (steps >= LEAST_HELD) & np.isfinite(steps)
        until = np.where(brief, 2 ** np.floor(np.log2(np.clip(steps, 1.0, MOST_HELD))), 0.0)
        held = age < until
        given_up = {edge: min(until[held & (np.array(edges) == edge)], default=np.inf) for edge in out}
        eased = strict / (1 - self._told ** np.maximum(until, 1.0))
        return np.where(held, eased, np.where(best > strict, np.inf, strict)), given_up

    def _reason(self, found: Helpers, cap: int) -> str:
        """Return which of `REASONS` keeps some bounds wider than eps."""
        if not cap:
            return "off"
        recovery = self._recover.recovery
        calibrated = recovery is not None and (recovery.given_factors is not None or recovery.model.calibration)
        if found.reason == "cap":
            return "cap"
        return "no helper" if calibrated else "not calibrated"

    def _factors(self) -> Floats:
        """Return the factors of the standard deviations of the slot's sensors, float64[own]."""
        recovery = self._recover.recovery
        given = None if recovery is None else recovery.given_factors
        return np.full(len(self._own), self.model.inflation(self.config.delta)) if given is None else given.base
