"""The paper's way to choose helpers (Takao et al., DEIM 2023, section 4.2), to compare `choose_helpers` with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.helpers import Helpers, Places, variance_given
from tsunagi.runtime.columns import Floats

AT_A_TIME = 5
"""Sensors of the paper's list that are added before the bound is checked again."""


class ListOrder:
    """The paper's way: candidates in a fixed order for each slot, added until the bound holds (`proposed+`).

    Args:
        correlation: float64[n, n] of all sensors.
        edge_of: each sensor's edge.
        slot_of: each sensor's slot.
        threshold: variance up to which a value is good enough.
        cap: sensors of a slot and its helpers together, at most (the paper: 150).
        at_a_time: sensors added before the bound is checked again.

    Attributes:
        lists: L_i: candidates of slot i, by what each adds to equation (12), greatest first.
        first: O'_ij: helpers of slot i that the outage of edge j alone needs.
    """

    def __init__(
        self,
        correlation: Floats,
        edge_of: Sequence[Hashable] | npt.NDArray[np.generic],
        slot_of: npt.NDArray[np.intp],
        threshold: float,
        *,
        cap: int = 150,
        at_a_time: int = AT_A_TIME,
    ) -> None:
        self._correlation, self._threshold, self._cap, self._at_a_time = correlation, threshold, cap, at_a_time
        edges = np.asarray(edge_of)
        self._members = [np.flatnonzero(slot_of == slot) for slot in range(int(slot_of.max()) + 1)]
        self._sensors = {edge: np.flatnonzero(edges == edge) for edge in np.unique(edges).tolist()}
        self.lists: list[Places] = []
        for members in self._members:
            weights = np.square(correlation[members])
            weights[edges[members][:, None] == edges] = 0.0
            gain = weights.sum(axis=0)
            gain[members] = -1.0
            order = np.argsort(-gain, kind="stable")
            self.lists.append(order[: len(order) - len(members)])
        self.first: list[Mapping[Hashable, Places]] = [
            {
                edge: self._add(slot, lost, np.empty(0, dtype=np.intp)).chosen
                for edge, lost in self._sensors.items()
                if np.isin(members, lost).any()
            }
            for slot, members in enumerate(self._members)
        ]

    def choose(self, slot: int, edges: Sequence[Hashable]) -> Helpers:
        """Return the helpers of a slot while these edges are down: the O'_ij of each, then L_i from its start."""
        lost = np.concatenate([self._sensors[edge] for edge in edges])
        start = [self.first[slot][edge] for edge in edges if edge in self.first[slot]]
        return self._add(slot, lost, np.concatenate(start) if start else np.empty(0, dtype=np.intp))

    def _add(self, slot: int, lost: Places, start: Places) -> Helpers:
        members = self._members[slot]
        down = np.isin(members, lost)
        targets, read = members[down], members[~down]
        chosen = list(dict.fromkeys(sensor for sensor in start.tolist() if sensor not in set(lost.tolist())))
        gone = {*lost.tolist(), *chosen}
        rest = [sensor for sensor in self.lists[slot].tolist() if sensor not in gone]
        room = max(0, self._cap - len(members))
        chosen = chosen[:room]
        while True:
            used = np.concatenate([read, np.array(chosen, dtype=np.intp)])
            variance = variance_given(self._correlation, used, targets)
            if (variance <= self._threshold).all() or not rest or len(chosen) >= room:
                break
            more = min(self._at_a_time, room - len(chosen))
            chosen, rest = chosen + rest[:more], rest[more:]
        satisfied = variance <= self._threshold
        reason: Literal["satisfied", "cap", "no helper"] = "satisfied" if satisfied.all() else "cap"
        if not satisfied.all() and not rest:
            reason = "no helper"
        return Helpers(np.array(chosen, dtype=np.intp), targets, variance, satisfied, reason)
