"""The default program: which blocks to buy in each of the next slots, given what already runs and is paid.

A block is what one payment buys: an hour, or one slot where billing is by the second. A worker can continue only at the
end of its block, without a boot (a renewal); a launch brings a new worker, whose capacity is there after the boot. In
the first two slots the number of workers is whole; later it may be fractional, since only the decisions for the first
slot are carried out.
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
"""Number of slots, from the first, in which workers are whole."""
_GAP = 1e-3
"""A solution counts as optimal if its price is at most this share above the best possible one: an exact optimum takes
much longer."""
_WHOLE = 1e-6
"""A number counts as whole if it differs from a whole number by less than this."""
_FREE = 1e-15
"""A price of missing capacity below this is 0: it comes from rounding."""


class Lookahead:
    """Builds and solves the program for a fixed list of types.

    Args:
        slot_s: length of a slot in seconds.
        limit_s: longest time for a solution, in seconds.
        hour_s: length of a paid hour in seconds.

    Attributes:
        block: number of slots that a paid block lasts; `block_h`: its price, in prices of an hour.
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
        """Return for each type the number of blocks that begin in the first slot: renewals and launches.

        Args:
            prices: what lateness costs in each slot.
            capacity, ends: as `standing` returns them.
            running: number of workers of each type.
            rates: for each type, the tuples/s that one worker is believed to process.

        Raises:
            ProgramError: no solution was found in time.
        """
        return (
            self._program(prices, capacity, ends, rates, running)
            if self._worth(prices, capacity, ends, rates)
            else [0] * len(self._types)
        )

    def _worth(self, prices: Prices, paid: Floats, ends: Floats, rates: Mapping[str, float]) -> bool:
        """Return whether any plan could gain by buying a block in the first slot.

        A block saves less the more is bought beside it, since the price of lateness is convex. So a block that does not
        pay beside what is paid already never does.
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
        """Return the number of slots in which a worker boots."""
        return max(1, math.ceil(kind.boot_s / self._slot_s - 1e-9))

    def _first(self, kind: WorkerType) -> float:
        """Return the share of the last of these slots in which the worker is ready."""
        return self._boots(kind) - kind.boot_s / self._slot_s

    def _program(
        self, prices: Prices, paid: Floats, ends: Floats, rates: Mapping[str, float], running: Sequence[int]
    ) -> list[int]:
        """Return for each type the number of renewals and launches in the first slot.

        The variables are, for each slot: launches, renewals and held blocks of each type, and missing capacity in
        tiers.
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
        # of a block that ends after the horizon only this part is paid for
        within = np.minimum(block, slots - start) / block
        row = slots
        for i, kind in enumerate(self._types):
            cost = kind.price_h * self.block_h
            price[launch[i]] = cost * within + SWITCH_COST * cost
            price[renew[i]] = cost * within
            matrix.add(start, held[i], rates[kind.name])
            for age in range(self._boots(kind)):  # a launched worker boots first
                absent = 1.0 - self._first(kind) * (age == self._boots(kind) - 1)
                matrix.add(start[age:], launch[i, : slots - age], -rates[kind.name] * absent)
            # The blocks held are those held before, plus those that begin, minus those that began a block ago.
            matrix.add(row + start, held[i], 1.0)
            matrix.add(row + start[1:], held[i, :-1], -1.0)
            for begun in (launch[i], renew[i]):
                matrix.add(row + start, begun, -1.0)
                matrix.add(row + start[block:], begun[: slots - block], 1.0)
            low.append(np.zeros(slots))
            high.append(np.zeros(slots))
            row += slots
            # No more blocks are renewed than end.
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
        """Return a solution whose variables `whole` are whole, with a price within `_GAP` of the best.

        Most programs have an optimum of the relaxed program that is whole where it must be. If not, the neighbouring
        whole numbers are tried first; the relaxed optimum says how good they are. Only then is the whole program
        solved.
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
    """Return the prices of missing capacity in tiers, (slots, tiers), their widths, and the capacity needed, (slots,).

    Capacity below the last point is missing in tiers, the cheapest first, since the price is convex. A tier has the
    width 0 if it costs nothing (then less is needed) or lies beyond all that can be missing. The first tier has no end,
    since a backlog may be more than all the capacity that can be bought.
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
    """Collects the entries of a sparse matrix."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Floats]] = []

    def add(self, rows: Ints, columns: Ints, value: float) -> None:
        self._parts.append((rows, columns, np.full(len(columns), value)))

    def matrix(self, rows: int, columns: int) -> sparse.csr_matrix:
        row, column, value = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return sparse.csr_matrix((value, (row, column)), shape=(rows, columns))
