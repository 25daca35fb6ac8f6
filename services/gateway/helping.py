"""Which sensors of other slots help this one while edges are down: the owner's choice (the paper's section 4.2).

What comes of it is a request in `plan`, which the edges follow, and a control record in the slot's log, from which on
the filter uses those sensors. Neither is waited for, and until readings come they count as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from services.gateway.config import SlotConfig
from services.gateway.recover import Recover
from services.recovery.forms import inverse
from services.recovery.helpers import Helpers, HelpersError, choose_helpers, variance_threshold
from services.recovery.model import Model
from services.runtime.columns import Floats
from services.runtime.sensors import SensorTable

LOOK_S = 0.1
"""Between two looks at which edges of other slots have gone silent."""
PRECISION_AT_MOST = 1000
"""Sensors up to which it is computed beforehand which values no helper can reach: beyond, the inverse takes so long
that the owner would look stalled."""
REASONS = ("no helper", "cap", "off", "not calibrated")


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


class Helping:
    """Chooses for one slot, while this node owns it.

    Args:
        model: of the whole fleet; what it knows and the table lacks counts as lost.

    Attributes:
        wanted: what was chosen last.
    """

    def __init__(self, recover: Recover, model: Model, config: SlotConfig, table: SensorTable) -> None:
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
        self._precision: Floats | None = None
        self._lost_others: frozenset[str] = frozenset()
        self._looked_at = -np.inf
        self._key: tuple[object, ...] = ()
        self.wanted = Wanted()

    def fits(self, recover: Recover, model: Model, config: SlotConfig) -> bool:
        """Return whether it is still of this operator, model and configuration."""
        return self._recover is recover and self.model is model and self.config.hash == config.hash

    def decide(self, out: Iterable[str], lost: Callable[[str], bool], cap: int, now: float) -> Wanted:
        """Return the helpers that should be in force.

        Args:
            out: edges of this slot that it does not wait for.
            lost: whether an edge of other slots has gone silent.
            cap: helpers at most.
        """
        mine = frozenset(out)
        if not mine:
            self._key, self.wanted = (), Wanted()
            return self.wanted
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._lost_others = frozenset(edge for edge in self._others if lost(edge))
        recovery = self._recover.recovery
        distrusted = () if recovery is None else tuple(np.flatnonzero(recovery.distrusted).tolist())
        key = (mine, self._lost_others, cap, self.config.eps, self.config.delta, distrusted)
        if key != self._key:  # while nothing changes the helpers stay, or each new factor would begin anew with others
            self._key, self.wanted = key, self._choose(mine | self._lost_others, np.array(distrusted, np.intp), cap)
        return self.wanted

    def _choose(self, dead: frozenset[str], distrusted: np.ndarray[tuple[int], np.dtype[np.intp]], cap: int) -> Wanted:
        lost = np.array([edge in dead or not edge for edge in self._edges])
        lost[self._own[distrusted]] = True
        threshold = np.full(len(self.model), np.inf)
        factors = self._factors()
        threshold[self._own] = variance_threshold(self.config.eps, self.config.delta) / np.square(factors)
        try:
            found = choose_helpers(
                self.model.prior, self._own, np.flatnonzero(lost), threshold, cap=cap, precision=self._reach()
            )
        except HelpersError:  # a model at the edge of what can be computed: the slot does without
            return Wanted(unmet=(("no helper", int(lost[self._own].sum())),))
        order = np.argsort(self._ids[found.chosen])
        chosen = found.chosen[order].tolist()
        short = int((~found.satisfied).sum())
        return Wanted(
            tuple(int(self._ids[place]) for place in chosen),
            tuple(self.model.names[place] for place in chosen),
            tuple(self._edges[place] for place in chosen),
            ((self._reason(found, cap), short),) if short else (),
        )

    def _reason(self, found: Helpers, cap: int) -> str:
        """Return why something is not satisfied, of `REASONS`."""
        if not cap:
            return "off"
        recovery = self._recover.recovery
        calibrated = recovery is not None and (recovery.given_factors is not None or recovery.model.calibration)
        return found.reason if calibrated or found.reason == "cap" else "not calibrated"

    def _factors(self) -> Floats:
        """Return what the standard deviations of the slot's sensors are multiplied by."""
        recovery = self._recover.recovery
        given = None if recovery is None else recovery.given_factors
        return np.full(len(self._own), self.model.inflation(self.config.delta)) if given is None else given

    def _reach(self) -> Floats | None:
        if self._precision is None and len(self.model) <= PRECISION_AT_MOST:
            try:
                self._precision = inverse(self.model.prior)
            except linalg.LinAlgError:  # nearly singular: the search itself finds out who helps
                return None
        return self._precision
