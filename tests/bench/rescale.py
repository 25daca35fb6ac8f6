"""Rescaling under load on a real broker: what is lost, doubled or reordered, and how late outputs are around it.

    python -m tests.bench.rescale --rescales 50 --out out/rescale.json

The scaler launches workers of two sizes as processes of this machine, and is asked again and again for others than
there are. A generator of the bench's own numbers the tuples of each slot, so every slot's outputs, repeats dropped by
name as every reader does, must count up without a gap. In the end the load rises and the owner of most slots is killed.
Latency is from the log's time of an input to that of its output. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.launched import Load, Watch, judge, running, wait_outputs
from tests.bench.system import say, spread
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.by_hand import ask
from tsunagi.system import processes

REST_S = 5.0
AFTER_S = 2.0
"""An output that late after a rescale still counts as one of its."""
PEAK = 1.5
LAG_S = 10.0
CHOICES = ({"local": 2}, {"local": 3}, {"local": 4}, {"local": 1, "big": 1}, {"local": 2, "big": 1}, {"big": 2})

SCALER = """\
workers = 2
sizes = {{ local = {{ rate = {small}, limit = {small} }}, big = {{ rate = {big}, limit = {big} }} }}
"""


def rescale(settings: Settings, watch: Watch, chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Rescale so many times; return when each began and ended, microseconds, and what it was."""
    done: list[dict[str, Any]] = []
    present: Mapping[str, int] = {"local": 2}
    for number in range(count):
        wanted = chance.choice([choice for choice in CHOICES if choice != present])
        began_us = time.time_ns() // 1000
        ask(settings, None, [f"{kind}={wanted.get(kind, 0)}" for kind in ("local", "big")], lambda _line: None)
        took_s = watch.wait(wanted)
        done.append({"to": dict(wanted), "began_us": began_us, "ended_us": time.time_ns() // 1000, "took_s": took_s})
        say(f"{number + 1} of {count}: {dict(present)} -> {dict(wanted)} in {took_s:.1f} s")
        present = wanted
        time.sleep(REST_S)
    return done


def kill_at_peak(settings: Settings, watch: Watch, source: Load) -> dict[str, Any]:
    """Raise the load and kill the owner of most slots; return what became of it."""
    wanted = {"local": 3}
    ask(settings, None, ["local=3", "big=0"], lambda _line: None)
    watch.wait(wanted)
    source.rate *= PEAK
    time.sleep(2 * REST_S)
    watch.workers()
    (victim, slots), *_ = Counter(watch.owners().values()).most_common(1)
    process = processes.find(settings.state, victim)
    if process is None:
        raise RuntimeError(f"no process of {victim}")
    killed_us = time.time_ns() // 1000
    processes.kill(process)
    time.sleep(3.0)  # its last heartbeats count as fresh for two seconds
    replaced_s = 3.0 + watch.wait(wanted)
    say(f"killed {victim} with {slots} slots: replaced and protected again after {replaced_s:.1f} s")
    time.sleep(2 * REST_S)
    return {"slots": slots, "killed_us": killed_us, "replaced_s": round(replaced_s, 1), "rate": source.rate}


def latencies(
    late: list[tuple[int, float]], done: list[dict[str, Any]], upto_us: int
) -> dict[str, dict[str, float | None] | float | None]:
    """Return the latency far from rescales and around each of them."""
    times = np.array([at for at, _ in late])
    values = np.array([value for _, value in late])
    quiet = times < upto_us
    p99s = []
    for item in done:
        around = (times >= item["began_us"]) & (times <= item["ended_us"] + AFTER_S * 1e6)
        quiet &= ~around
        if around.any():
            p99s.append(float(np.percentile(values[around], 99)))
    calm = float(np.percentile(values[quiet], 99))
    rises = [p99 - calm for p99 in p99s]
    return {
        "p50_quiet_s": round(float(np.percentile(values[quiet], 50)), 4),
        "p99_quiet_s": round(calm, 4),
        "p99_around_s": spread(p99s),
        "p99_rise_most_s": round(max(rises), 4) if rises else None,
        "most_s": round(float(values[times < upto_us].max()), 4),
    }


def after_kill(late: list[tuple[int, float]], kill: dict[str, Any]) -> dict[str, Any]:
    """Return when outputs were within `LAG_S` again, and how late they were at most."""
    since = [(at, value) for at, value in late if at >= kill["killed_us"]]
    over = [at for at, value in since if value > LAG_S]
    back_s = (max(over) - kill["killed_us"]) / 1e6 if over else 0.0
    most_s = max(value for _, value in since)
    return kill | {"lag_back_s": round(back_s, 2), "lag_most_s": round(most_s, 2)}


def pauses(settings: Settings) -> list[float]:
    """Return the pause of every planned takeover, by the new owner's word."""
    return [line["pause_s"] for line in processes.logged(settings.state, "takeover") if line.get("pause_s") is not None]


def run(options: argparse.Namespace, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the bench; return its figures."""
    scaler = SCALER.format(small=options.small, big=options.big)
    with running(options.work, options.port, options.slots, scaler, options.batch) as settings:
        watch = Watch(settings)
        watch.wait({"local": 2})
        source = Load(settings, options.rate)
        source.start()
        try:
            time.sleep(2 * REST_S)
            done = rescale(settings, watch, random.Random(options.seed), options.rescales)
            upto_us = time.time_ns() // 1000
            kill = kill_at_peak(settings, watch, source) if options.kill else None
        finally:
            source.end()
            watch.close()
        tell("waiting for the last outputs")
        wait_outputs(settings, source.sent)
        wrong, late = judge(settings, source.sent)
        stalls = pauses(settings)
        return {
            "bench": "rescale",
            "rescales": len(done),
            "rate": options.rate,
            "slots": options.slots,
            "unsent": source.failed,
            **wrong,
            "moves": len(stalls),
            "pause_s": spread(stalls),
            "took_s": spread([item["took_s"] for item in done]),
            **latencies(late, done, upto_us),
            "kill": None if kill is None else after_kill(late, kill),
            "load_average": os.getloadavg()[0],
            "bounds": {"lost": 0, "duplicates": 0, "reordered": 0, "p99_rise_most_s": 2.0, "lag_back_s": 120.0},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rescales", type=int, default=50, help="how many [50]")
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples/s of all slots together [1000]")
    parser.add_argument("--slots", type=int, default=8, help="slots [8]")
    parser.add_argument("--batch", type=int, default=100, help="B of the standbys, tuples [100]")
    parser.add_argument("--small", type=float, default=2500.0, help="tuples/s of a local worker at most [2500]")
    parser.add_argument("--big", type=float, default=5000.0, help="tuples/s of a big one at most [5000]")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes asked for [1]")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="no worker is killed in the end")
    parser.add_argument("--port", type=int, default=19392, help="of the broker [19392]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-rescale"), help="scratch directory")
    parser.add_argument("--out", type=Path, default=Path("out/rescale.json"), help="where the figures go")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    found = run(options, say)
    outcome.write(found, options.out)
    say(json.dumps(found, indent=1))
    return 0 if not (found["lost"] or found["duplicates"] or found["reordered"]) else 1


if __name__ == "__main__":
    sys.exit(main())
