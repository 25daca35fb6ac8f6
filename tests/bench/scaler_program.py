"""Programs: time of a look-ahead solution, and the paper's program against a dynamic program.

python -m tests.bench.scaler_program --instances 1000 --out out/scaler-program.json

program_ms    20 types x 24 slots with paid blocks, boot and backlog, the integer program: p50, p95, `held_to`
marginal_ms   the same instances solved greedily
optimum       random instances of figure 1: how many, and how many differ from the dynamic program
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.unit.scaler.oracles import cheapest, instance
from tsunagi.scaler.lookahead_program import Lookahead
from tsunagi.scaler.marginal import Offer, Prices, plan
from tsunagi.scaler.policy import WorkerType
from tsunagi.scaler.program import ProgramError, solve
from tsunagi.scaler.risk import MULTIPLES

TYPES, SLOTS, SLOT_S, BLOCK = 20, 24, 300.0, 12
P95_MS = 50.0


def look_ahead(draw: np.random.Generator) -> tuple[float, float]:
    """Return milliseconds (wall) of the program and of the greedy plan on one random instance."""
    rates = draw.uniform(20, 200, TYPES)
    kinds = tuple(
        WorkerType(f"t{i}", float(rate), float(rate * draw.uniform(0.0019, 0.0026)), limit=int(draw.integers(1, 20)))
        for i, rate in enumerate(rates)
    )
    means = np.maximum(500 + 400 * np.sin(np.arange(SLOTS) / draw.uniform(3, 20)) + draw.normal(0, 30, SLOTS), 1.0)
    share = np.maximum(1.5 - MULTIPLES, 0.0) ** 2 / 2.25
    late = share * (means * SLOT_S * 10 * 6e-7)[:, None]
    shift = np.zeros(SLOTS)
    shift[0] = draw.uniform(0, 100)
    prices = Prices(means, shift, MULTIPLES, late)
    running = [int(draw.integers(0, 3)) for _ in kinds]
    ends = np.zeros((TYPES, SLOTS))
    capacity = np.full(SLOTS, 300.0)
    for i, count in enumerate(running):
        for _ in range(min(count, kinds[i].limit or 0)):
            end = int(draw.integers(0, BLOCK))
            ends[i, end] += 1
            capacity[:end] += kinds[i].rate
    believed = {kind.name: kind.rate for kind in kinds}
    started = time.perf_counter()
    Lookahead(kinds, SLOT_S, "hourly").solve(prices, capacity, ends, running, believed)
    middle = time.perf_counter()
    offers = [
        Offer(kind.rate, kind.price_h, 1, 2 / 3, max(0, (kind.limit or 0) - running[i]), ends[i])
        for i, kind in enumerate(kinds)
    ]
    plan(prices, capacity, offers, BLOCK)
    return (middle - started) * 1e3, (time.perf_counter() - middle) * 1e3


def optima(count: int, draw: np.random.Generator) -> int:
    """Return on how many random instances the program and the dynamic program differ."""
    wrong = 0
    for _ in range(count):
        need, sizes = instance(draw)
        best = cheapest(need, sizes)
        try:
            found = solve(need, sizes)
            price = sum(size.price * found[size.name] for size in sizes)
        except ProgramError:
            price = math.inf
        wrong += not (price == best or abs(price - best) < 1e-9)
    return wrong


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"p50": float(np.percentile(values, 50)), "p95": float(np.percentile(values, 95))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--solves", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/scaler-program.json"))
    options = parser.parse_args()
    draw = np.random.default_rng(1)
    times = np.array([look_ahead(draw) for _ in range(options.solves)])
    result: dict[str, Any] = {
        "bench": "scaler_program",
        "types": TYPES,
        "slots": SLOTS,
        "program_ms": _spread(times[:, 0]) | {"held_to": P95_MS},
        "marginal_ms": _spread(times[:, 1]),
        "optimum": {"instances": options.instances, "differ": optima(options.instances, draw), "held_to": 0},
    }
    outcome.write(result, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
