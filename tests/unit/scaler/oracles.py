"""Answers found another way: a dynamic program for the paper's integer program, and random instances of it."""

from __future__ import annotations

import math

import numpy as np

from tsunagi.scaler.program import Size


def cheapest(need: int, sizes: list[Size]) -> float:
    """Return the least price of amounts (whole numbers) that add up to `need`; infinity = it cannot be had."""
    best = np.full(need + 1, math.inf)
    best[0] = 0.0
    for size in sizes:
        amount, limit = round(size.amount), size.limit
        if limit is None:
            for total in range(1, need + 1):
                best[total] = min(best[total], best[max(0, total - amount)] + size.price)
            continue
        for _ in range(min(limit, -(-need // amount))):  # one worker more each time
            shifted = np.array([best[max(0, total - amount)] for total in range(need + 1)])
            best = np.minimum(best, shifted + size.price)
            best[0] = 0.0
    return float(best[need])


def instance(draw: np.random.Generator) -> tuple[int, list[Size]]:
    """Return a random need and sizes, some of them limited."""
    sizes = [
        Size(
            f"t{i}",
            float(draw.integers(5, 120)),
            float(np.round(draw.uniform(0.02, 0.5), 3)),
            int(draw.integers(0, 5)) if draw.random() < 0.4 else None,
            0.0,
        )
        for i in range(draw.integers(1, 6))
    ]
    return int(draw.integers(0, 900)), sizes
