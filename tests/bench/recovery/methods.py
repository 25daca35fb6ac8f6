"""The methods that are compared: how the fleet is split, who helps, and by which arithmetic it is computed.

`single`, `random`, `vanilla`, `proposed` and `proposed+` are those of the paper (section 5.1 d), computed by its
equations as they stand; the others are Tsunagi's, and what lies between, for the ablation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tests.bench.recovery.list_order import ListOrder
from tests.bench.recovery.scenario import CAP, DELTA, EPS, PERSISTENCE, Flags, Fleet
from tests.bench.recovery.splits import Split, split
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.forms import Places, inverse
from tsunagi.recovery.helpers import choose_helpers, variance_threshold
from tsunagi.recovery.partition import Slots
from tsunagi.runtime.columns import Floats

THRESHOLD = variance_threshold(EPS, DELTA)
NOBODY = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        name: in figures and tables.
        split: of `tests.bench.recovery.splits`.
        helpers: "list" = L_i and O'_ij; "greedy" = `choose_helpers`; "aged" = the same, and values that no helper
            keeps good enough for the whole outage are helped for as long as one does.
        arithmetic: "literal" = the equations as they stand, with inverses; "ours" = precision form, many slots at
            once, and where there are helpers the covariance form; "slot by slot" = the same, one slot after the other.
    """

    name: str
    split: Split
    helpers: Literal["none", "list", "greedy", "aged"] = "none"
    arithmetic: Literal["literal", "ours", "slot by slot"] = "literal"


PUBLISHED = (
    Method("single", "single"),
    Method("random", "random"),
    Method("vanilla", "vanilla"),
    Method("proposed", "proposed"),
    Method("proposed+", "proposed", "list"),
)
OURS = (Method("ours", "proposed-swap", "aged", "ours"), Method("ours, one slot", "single", "none", "ours"))
ABLATION = (
    Method("proposed+, as published", "proposed", "list"),
    Method("only our arithmetic", "proposed", "list", "ours"),
    Method("only proposed-swap", "proposed-swap", "list"),
    Method("only greedy helpers", "proposed", "greedy"),
    Method("only greedy helpers, aged limits", "proposed", "aged"),
    Method("only one slot (single)", "single"),
    Method("all, many slots (ours)", "proposed-swap", "aged", "ours"),
    Method("all, one slot (ours, one slot)", "single", "none", "ours"),
    Method("no helpers: proposed, as published", "proposed"),
    Method("no helpers: precision form, slot by slot", "proposed", "none", "slot by slot"),
    Method("no helpers: precision form, slots at once", "proposed", "none", "ours"),
    Method("no helpers: the same, proposed-swap", "proposed-swap", "none", "ours"),
)
"""Each device alone on top of what is published, and all together; and those that need no helpers, one by one."""


class Splits:
    """The splits of a fleet: each is made once, and how long that took is kept.

    Attributes:
        filters: of splits that are stepped slot by slot, before their first step, and seconds they took.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self._seed = seed
        self._known: dict[Split, tuple[Slots, float]] = {}
        self.filters: dict[Split, tuple[list[Recovery], float]] = {}

    def __getitem__(self, method: Split) -> tuple[Slots, float]:
        if method not in self._known:
            begun = time.process_time()
            slots = split(self.fleet.correlation, self.fleet.edges, self.fleet.slots, method, seed=self._seed)
            self._known[method] = slots, time.process_time() - begun
        return self._known[method]


class Decision(NamedTuple):
    """Helpers of each slot, and seconds it took: for all slots together, and float64[slots] for each."""

    helpers: list[Places]
    shared_s: float
    slot_s: Floats


class Chooser:
    """Decides who helps.

    Attributes:
        members: each slot's sensors.
        split_s, helpers_s: seconds spent on the split, and on what helpers are chosen by, before anything failed.
    """

    def __init__(self, splits: Splits, method: Method) -> None:
        self._fleet = splits.fleet
        slots, self.split_s = splits[method.split]
        self.members = [np.flatnonzero(slots == slot) for slot in range(int(slots.max()) + 1)]
        begun = time.process_time()
        self._order: ListOrder | None = None
        self._precision: Floats | None = None
        self._aged = method.helpers == "aged"
        if method.helpers == "list":
            self._order = ListOrder(self._fleet.correlation, self._fleet.edges, slots, THRESHOLD, cap=CAP)
        elif method.helpers != "none":
            self._precision = np.asarray(np.linalg.inv(self._fleet.correlation), dtype=np.float64)
        self.helpers_s = time.process_time() - begun

    @property
    def helping(self) -> bool:
        """Whether there are helpers at all."""
        return self._order is not None or self._precision is not None

    def holds(self, down: Flags, last: Flags) -> bool:
        """Return whether the last step's decision is this step's too."""
        return not self._aged and np.array_equal(down, last)

    def decide(self, down: Flags, age: Places) -> Decision:
        """Choose, for bool[edges], and for how many steps each edge has been down, this one among them."""
        lost = down[self._fleet.edges]
        dead = np.flatnonzero(down)
        begun = time.process_time()
        limits = self._limits(np.flatnonzero(lost), age)
        shared_s = time.process_time() - begun
        found, slot_s = [], np.zeros(len(self.members))
        for slot, members in enumerate(self.members):
            begun = time.process_time()
            if not lost[members].any():
                found.append(NOBODY)
            elif self._order is not None:
                found.append(self._order.choose(slot, dead.tolist()).chosen)
            else:
                cap = max(0, CAP - len(members))
                found.append(choose_helpers(self._fleet.correlation, members, lost, limits, cap=cap).chosen)
            slot_s[slot] = time.process_time() - begun
        return Decision(found, shared_s, slot_s)

    def _limits(self, lost: Places, age: Places) -> Floats:
        """Return float64[n], the variance that each must meet: none, where no helper can reach the threshold.

        What `choose_helpers` would find by the precision matrix for each slot, found once for all. While the same
        sensors are read, the variance after k steps of an outage is 1 - PERSISTENCE^2k of what it ends up with: an
        aged limit is as much greater.
        """
        limits = np.full(len(self._fleet), THRESHOLD)
        if not len(lost) or self._precision is None:
            return limits
        best = np.diag(inverse(self._precision[np.ix_(lost, lost)]))
        if self._aged:
            steps = age[self._fleet.edges[lost]]
            limits[lost] = np.where(best > THRESHOLD, THRESHOLD / (1 - PERSISTENCE ** (2.0 * steps)), THRESHOLD)
        limits[lost[best > limits[lost]]] = np.inf
        return limits
