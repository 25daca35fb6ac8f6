"""Many fault schedules, on all cores: `make simulation N=10000`, or python -m tests.simulation.run --help.

A failing schedule is printed with its seed and what happened in it; `--seed SEED --count 1` runs it again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.checker import check
from tests.simulation.schedule import run_schedule
from tests.simulation.world import World

BATCH = 10
"""Schedules a process takes at once."""

TICKS_S = (0.02, 0.05, 0.05, 0.05)
"""Turns of the workers, by seed: in most runs the machines are busy, and the turns longer."""

REPORT_S = 10.0
NICE = 10


def run_seed(seed: int, cells: int = 1) -> str:
    """Run one schedule, with so many cells; return "" if all holds, else what does not, and what happened."""
    world = World.of_seed(seed, cells)
    world.tick_s = TICKS_S[seed // 8 % len(TICKS_S)]  # of each kind of world, which go by eights
    try:
        run_schedule(world)
        wrong = check(world)
    except Exception as error:  # noqa: BLE001 - whatever it was, the seed is what is wanted
        wrong = [f"{type(error).__name__}: {error}"]
    if not wrong:
        return ""
    history = "\n".join(f"  {at:8.3f} {event}" for at, event in world.events)
    return f"seed {seed}: {wrong}\n{history}"


def run_batch(seeds: list[int]) -> list[tuple[int, str]]:
    """Run some schedules; return (seed, what is wrong) of each.

    A schedule makes hundreds of thousands of small objects that live to its end: looking for cycles among them while it
    runs finds none, and takes a tenth of the time.
    """
    found = []
    gc.freeze()  # nor are modules looked through after each of them
    for seed in seeds:
        gc.disable()
        try:
            found.append((seed, run_seed(seed)))
        finally:
            gc.enable()
        gc.collect()
    return found


def submit(pool: ProcessPoolExecutor, seeds: Iterable[int]) -> list[Future[list[tuple[int, str]]]]:
    """Hand all seeds to the pool's processes."""
    every = list(seeds)
    return [pool.submit(run_batch, every[place : place + BATCH]) for place in range(0, len(every), BATCH)]


def make_pool() -> ProcessPoolExecutor:
    """Return a process for each core; started anew, since a fork of one that has threads may wait for ever.

    They have virtual time, so they give way to whatever else runs here in real time.
    """
    return ProcessPoolExecutor(
        max_workers=os.cpu_count(), mp_context=get_context("spawn"), initializer=os.nice, initargs=(NICE,)
    )


def results(seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield (seed, what is wrong) in the order of seeds."""
    with make_pool() as pool:
        for future in submit(pool, seeds):
            yield from future.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="schedules to run")
    parser.add_argument("--seed", type=int, default=1, help="the first one's seed")
    parser.add_argument("--out", type=Path, help="file for one JSON object: count, seeds that failed, seconds")
    options = parser.parse_args()
    began = told = time.monotonic()
    failed = []
    done = 0
    for seed, wrong in results(range(options.seed, options.seed + options.count)):
        done += 1
        if wrong:
            failed.append(seed)
            sys.stdout.write(wrong + "\n")
        now = time.monotonic()
        if now - told > REPORT_S or done == options.count:
            told = now
            rate = done / (now - began)
            sys.stdout.write(f"{done} of {options.count} schedules, {len(failed)} failed, {rate:.1f} a second\n")
            sys.stdout.flush()
    found = {
        "bench": "simulation",
        "first_seed": options.seed,
        "schedules": done,
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
