"""Which sensors of other slots help this one while edges are down: the owner's choice (the paper's section 4.2).

What comes of it is a request in `plan`, which the edges follow, and a control record in the slot's log, from which on
the filter uses those sensors. Neither is waited for, and until readings come they count as missing.
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
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.task import Task
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.recover import Recover

LOOK_S = 0.1
"""Between two looks at which edges of other slots have gone silent."""
LEAST_HELD = 8
"""Steps of an outage that a value must be within reach for, to be helped: helpers come after two or three."""
MOST_HELD = 2**12
"""Steps past which an outage counts as endless here."""
REASONS = ("no helper", "cap", "off", "not calibrated")
"""Why a value misses its bound all the same: nothing that is read reaches it; there are as many helpers as may be;
helpers are switched off; the bound is the model's own, which nothing has been compared with yet."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Helpers of a slot.

    Attributes:
        sensors: ids, ascending; `names` and `edges`: of each.
        unmet: lost sensors that will miss (eps, delta) when no past helps any more, by reason: "no helper" (nothing
            that is read anywhere reaches it), "cap" (it was reached first), "off" (none may be asked for), "not
            calibrated" (the model's own bounds are all there is, and are not met).
    """

    sensors: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    unmet: tuple[tuple[str, int], ...] = ()


class _Chosen(NamedTuple):
    """What came of a choice.

    Attributes:
        wanted: the helpers.
        until: step of each edge's outage at which values of it are given up.
    """

    wanted: Wanted
    until: dict[str, float]


class Helping:
    """Chooses for one slot, while this node owns it.

    A value that nothing keeps within its bound for as long as an outage may last is helped for as long as something
    does: while little time has passed, the past still tells much of it.

    In a fleet of more than `reach.AT_ONCE` sensors the choice takes seconds: it is made beside the loop, and the
    helpers before stay until it is there.

    Args:
        model: of the whole fleet; what it knows and the table lacks counts as lost.
        known: tells which values no helper reaches, once it is there.

    Attributes:
        wanted: what was chosen last.
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
        self._own = np.array([places[config.names[place]] for place in recover.places], dtype=np.intp)
        self._others = tuple(sorted({edge for edge in self._edges if edge} - set(config.edges)))
        self._reach = known
        self._known: Known | None = None  # of the model, once an edge is out
        self._told = persistence_share(model)[self._own]
        self._until: dict[str, float] = {}  # step of each edge's outage at which values of it are given up
        self._lost_others: frozenset[str] = frozenset()
        self._looked_at = -np.inf
        self._key: tuple[object, ...] = ()
        self._choice: Task[_Chosen] | None = None
        self.wanted = Wanted()

    def fits(self, recover: Recover, model: Model, config: SlotConfig) -> bool:
        """Return whether it is still of this operator, model and configuration."""
        return self._recover is recover and self.model is model and self.config.hash == config.hash

    def decide(self, out: Mapping[str, int], lost: Callable[[str], bool], cap: int, now: float) -> Wanted:
        """Return the helpers that should be in force.

        Args:
            out: edges of this slot that it does not wait for, and how many steps they have missed.
            lost: whether an edge of other slots has gone silent.
            cap: helpers at most.
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
        # While nothing changes the helpers stay, or each new factor would begin anew with others.
        if key != self._key or any(steps >= self._until.get(edge, np.inf) for edge, steps in out.items()):
            self._key = key
            given = dict(out), self._lost_others | out.keys(), np.array(distrusted, np.intp), cap, precision
            work = partial(self._choose, *given, self._factors())
            self._choice = Task(work, "helpers", at_once=len(self.model) <= reach.AT_ONCE)
            self._take()
        return self.wanted

    def _take(self) -> None:
        """Take over what was chosen, if that is ready."""
        if self._choice is not None and self._choice.done.is_set():
            choice, self._choice = self._choice, None
            self.wanted, self._until = choice.result()

    def _choose(
        self,
        out: Mapping[str, int],
        dead: AbstractSet[str],
        distrusted: npt.NDArray[np.intp],
        cap: int,
        precision: Floats | None,
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
            found = choose_helpers(self.model.prior, self._own, places, limits, cap=cap)
        except HelpersError:  # a model at the edge of what can be computed: the slot does without
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
        self, strict: Floats, out: Mapping[str, int], precision: Floats, lost: npt.NDArray[np.intp]
    ) -> tuple[Floats, dict[str, float]]:
        """Return the variance that each of the slot's values must meet without a past, float64[own], and until when.

        Infinite where nothing that is read anywhere reaches the bound.

        After k steps of an outage about 1 - r^k of that is left of it, r = the share that the step before tells. What
        stays within reach for 2^j steps, but not for good, has a limit as much greater until then: so helpers change
        few times in an outage.
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
        """Return why something is not satisfied, of `REASONS`."""
        if not cap:
            return "off"
        recovery = self._recover.recovery
        calibrated = recovery is not None and (recovery.given_factors is not None or recovery.model.calibration)
        if found.reason == "cap":
            return "cap"
        return "no helper" if calibrated else "not calibrated"

    def _factors(self) -> Floats:
        """Return what the standard deviations of the slot's sensors are multiplied by."""
        recovery = self._recover.recovery
        given = None if recovery is None else recovery.given_factors
        return np.full(len(self._own), self.model.inflation(self.config.delta)) if given is None else given.base
