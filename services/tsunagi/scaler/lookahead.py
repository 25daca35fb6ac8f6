"""The default program: which blocks to buy in each of the next slots, with what already runs and is paid.

A block is what one payment buys: an hour, or a slot where billing is by the second. A worker's next block can be
bought only when the present one ends (a renewal, without boot) or by a launch (whose capacity is there after the boot
time). In the first two slots workers are whole, later fractional: only the first slot's decisions are carried out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.marginal import SWITCH_COST, Prices
from tsunagi.scaler.policy import HOUR_S, Billing, WorkerType
from tsunagi.scaler.program import ProgramError

Ints = NDArray[np.intp]
_WHOLE_SLOTS = 2
_GAP = 1e-3
_WHOLE = 1e-6
_FREE = 1e-15


class Lookahead:
    """Builds and solves the program for fixed types.

    Args:
        slot_s: length of a slot.
        limit_s: time that a solution may take.
        hour_s: what a paid hour lasts.

    Attributes:
        block: slots that a paid block lasts; `block_h`: what it costs, in prices of an hour.
    """

    def __init__(
        self,
        types: Sequence[WorkerType],
        slot_s: float,
        billing: Billing,
        limit_s: float = 5.0,
        hour_s: float = HOUR_S,
    ) -> None:
        self._types = list(types)
        self._slot_s = slot_s
        self.block = max(1, round(hour_s / slot_s)) if billing == "hourly" else 1
        self.block_h = 1.0 if billing == "hourly" else slot_s / hour_s
        self._limit_s = limit_s

    def solve(
        self, prices: Prices, capacity: Floats, ends: Floats, running: Sequence[int], rates: Mapping[str, float]
    ) -> list[int]:
        """Return for each type the blocks that begin in the first slot, renewals and launches.

        Args:
            prices: what lateness costs in each slot.
            capacity, ends: as `standing` gives them.
            running: workers of each type.
            rates: type -> tuples/s believed of one worker.

        Raises:
            ProgramError: no solution in time.
        """
        return (
            self._program(prices, capacity, ends, rates, running)
            if self._worth(prices, capacity, ends, rates)
            else [0] * len(self._types)
        )

    def _worth(self, prices: Prices, paid: Floats, ends: Floats, rates: Mapping[str, float]) -> bool:
        """Return whether any plan could buy a block in the first slot.

        What a block saves shrinks with all else that is bought (the price of lateness is convex), so a block that does
        not pay beside what is paid already never does.
        """
        end = min(self.block, len(paid))
        without = prices(paid)[:end].sum()
        for i, kind in enumerate(self._types):
            full = np.zeros(len(paid))
            full[:end] = rates[kind.name]
            if not ends[i, 0]:
                boots = self._boots(kind)
                full[:boots] = 0.0
                full[boots - 1 : boots] = rates[kind.name] * self._first(kind)
            if without - prices(paid + full)[:end].sum() > kind.price_h * self.block_h * (end / self.block):
                return True
        return False

    def _boots(self, kind: WorkerType) -> int:
        """Return the number of slots that a worker boots in."""
        return max(1, math.ceil(kind.boot_s / self._slot_s - 1e-9))

    def _first(self, kind: WorkerType) -> float:
        """Return the share of the last of them in which it is ready."""
        return self._boots(kind) - kind.boot_s / self._slot_s

    def _program(
        self, prices: Prices, paid: Floats, ends: Floats, rates: Mapping[str, float], running: Sequence[int]
    ) -> list[int]:
        """Return for each type the renewals and launches of the first slot.

        Variables, each of `slots`: launches, renewals and blocks held of each type, capacity missing in tiers.
        """
        slots, kinds, block = len(paid), len(self._types), self.block
        launch = np.arange(kinds * slots).reshape(kinds, slots)
        renew = launch + kinds * slots
        held = renew + kinds * slots
        tiers, widths, need = _tiers(prices, paid)
        of_slot, tier = np.nonzero(widths)
        short = 3 * kinds * slots + np.arange(len(tier))
        price = np.zeros(3 * kinds * slots + len(tier))
        upper = np.full(len(price), np.inf)
        price[short] = tiers[of_slot, tier]
        upper[short] = widths[of_slot, tier]
        matrix = _Rows()
        matrix.add(of_slot, short, 1.0)
        low: list[Floats] = [need]
        high: list[Floats] = [np.full(slots, np.inf)]
        start = np.arange(slots)
        within = np.minimum(block, slots - start) / block  # a block past the horizon is worth what is beyond
        row = slots
        for i, kind in enumerate(self._types):
            cost = kind.price_h * self.block_h
            price[launch[i]] = cost * within + SWITCH_COST * cost
            price[renew[i]] = cost * within
            matrix.add(start, held[i], rates[kind.name])
            for age in range(self._boots(kind)):  # what is launched boots first
                absent = 1.0 - self._first(kind) * (age == self._boots(kind) - 1)
                matrix.add(start[age:], launch[i, : slots - age], -rates[kind.name] * absent)
            # What is held is what was held, with what begins and without what began a block ago.
            matrix.add(row + start, held[i], 1.0)
            matrix.add(row + start[1:], held[i, :-1], -1.0)
            for begun in (launch[i], renew[i]):
                matrix.add(row + start, begun, -1.0)
                matrix.add(row + start[block:], begun[: slots - block], 1.0)
            low.append(np.zeros(slots))
            high.append(np.zeros(slots))
            row += slots
            # No more is renewed than ends.
            matrix.add(row + start, renew[i], 1.0)
            for begun in (launch[i], renew[i]):
                matrix.add(row + start[block:], begun[: slots - block], -1.0)
            low.append(np.full(slots, -np.inf))
            high.append(ends[i])
            row += slots
            if kind.limit is not None:
                upper[held[i]] = np.maximum(kind.limit - (running[i] - np.cumsum(ends[i])), 0.0)
        whole = np.concatenate([launch[:, :_WHOLE_SLOTS].ravel(), renew[:, :_WHOLE_SLOTS].ravel()])
        found = self._solve(
            price,
            upper,
            LinearConstraint(matrix.matrix(row, len(price)), np.concatenate(low), np.concatenate(high)),
            whole,
        )
        return [round(found[launch[i, 0]] + found[renew[i, 0]]) for i in range(kinds)]

    def _solve(self, price: Floats, upper: Floats, rows: LinearConstraint, whole: Ints) -> Floats:
        """Return a solution whose `whole` variables are, within `_GAP` of the best.

        Most have an optimum of the relaxed program that is whole where it must be. Where not, the neighbouring whole
        numbers are tried first; the relaxed optimum says how good they are. Only then is the program solved as it is.
        """
        began = time.perf_counter()

        def solve(low: Floats, high: Floats, integrality: Floats) -> OptimizeResult:
            left_s = max(self._limit_s - (time.perf_counter() - began), 1e-3)
            options = {"time_limit": left_s, "mip_rel_gap": _GAP}
            return milp(price, integrality=integrality, bounds=Bounds(low, high), constraints=rows, options=options)

        low, integrality = np.zeros(len(price)), np.zeros(len(price))
        relaxed = solve(low, upper, integrality)
        if relaxed.x is None:
            raise ProgramError(f"no plan: {relaxed.message} ({self._limit_s:g} s)")
        if np.abs(relaxed.x[whole] - np.round(relaxed.x[whole])).max() < _WHOLE:
            return np.asarray(relaxed.x)
        integrality[whole] = 1
        near_low, near_high = low.copy(), upper.copy()
        near_low[whole] = np.floor(relaxed.x[whole] + _WHOLE)
        near_high[whole] = np.minimum(upper[whole], np.ceil(relaxed.x[whole] - _WHOLE))
        found = solve(near_low, near_high, integrality)
        if found.x is None or found.fun > relaxed.fun + _GAP * abs(relaxed.fun):
            found = solve(low, upper, integrality)
        if found.x is None:
            raise ProgramError(f"no plan: {found.message} ({self._limit_s:g} s)")
        return np.asarray(found.x)


def _tiers(prices: Prices, paid: Floats) -> tuple[Floats, Floats, Floats]:
    """Return what missing capacity costs in tiers, (slots, tiers), their widths, and the capacity needed, (slots,).

    Capacity below the last point is missing in tiers, the cheapest first since the price is convex. A tier is 0 wide if
    it costs nothing (less is needed then) or lies beyond all that can be missing; the first has no end, since a backlog
    may be more than all that can be had.
    """
    widths = prices.unit[:, None] * np.diff(prices.multiples)
    tiers = -np.diff(prices.price, axis=1) / widths
    priced = np.where(tiers > _FREE, widths, 0.0)
    free = (widths - priced).sum(axis=1)
    need = np.maximum(prices.unit * prices.multiples[-1] + prices.shift - paid - free, 0.0)
    need[tiers[:, 0] <= _FREE] = 0.0  # lateness costs nothing there
    cheaper = np.cumsum(priced[:, ::-1], axis=1)[:, ::-1] - priced
    useful = np.where(cheaper < need[:, None], priced, 0.0)
    useful[:, 0] = np.where(useful[:, 0] > 0, np.inf, 0.0)
    return tiers, useful, need


class _Rows:
    """The entries of a sparse matrix, as they come."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Floats]] = []

    def add(self, rows: Ints, columns: Ints, value: float) -> None:
        self._parts.append((rows, columns, np.full(len(columns), value)))

    def matrix(self, rows: int, columns: int) -> sparse.csr_matrix:
        row, column, value = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return sparse.csr_matrix((value, (row, column)), shape=(rows, columns))
