"""A type whose workers stall now and then: is it found out by its latency, and given less, on a real broker?

    python -m tests.bench.stalls --seconds 300 --out out/stalls.json

The scaler launches two workers of each of two types of the same rate as processes of this machine. Those of one type
are stopped for a part of a second again and again, for shorter than detection takes. They are not saturated, so nothing
that is measured of throughput tells of it. One JSON object comes out: by thirds of the time the share of outputs that
were later than promised, what share of the slots the type had, and the share of its rate that it is believed to keep
the promise with.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.launched import Load, Watch, judge, running, type_of, wait_outputs
from tests.bench.system import say
from tsunagi.runtime import metrics
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.by_hand import ask
from tsunagi.system import processes

STALLS = "shaky"
WANTED = {"local": 2, STALLS: 2}
SLOTS = 16
RATE = 500.0
STALL_S, EVERY_S = 0.5, 3.0
LOOK_S = 5.0
SCALER = f"""\
workers = 2
slo_s = 0.3
sizes = {{ local = {{ rate = {RATE}, limit = {RATE} }}, {STALLS} = {{ rate = {RATE}, limit = {RATE} }} }}
"""


def stall(settings: Settings, ended: threading.Event) -> None:
    """Stop the workers of one type for a moment, again and again."""
    while not ended.wait(EVERY_S - STALL_S):
        workers = [
            item
            for item in processes.list_processes(settings.state)
            if item.role == "worker" and type_of(item.node) == STALLS
        ]
        for worker in workers:
            processes.send_signal(worker, signal.SIGSTOP, session=True)
        time.sleep(STALL_S)
        for worker in workers:
            processes.send_signal(worker, signal.SIGCONT, session=True)


def believed(watch: Watch) -> list[float]:
    """Return the share of its rate with which each type of `WANTED` is believed to keep the promise."""
    name = next(iter(metrics.TYPE_WITHIN.describe())).name
    found = {item.labels["type"]: item.value for item in watch.samples("scaler") if item.name == name}
    return [found.get(kind, 1.0) for kind in WANTED]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the bench; return its figures."""
    with running(options.work, options.port, SLOTS, SCALER) as settings:
        watch = Watch(settings)
        watch.wait({"local": 2})
        ask(settings, None, [f"{kind}={count}" for kind, count in WANTED.items()], lambda _line: None)
        watch.wait(WANTED)
        source, ended = Load(settings, options.rate), threading.Event()
        staller = threading.Thread(target=stall, args=(settings, ended))
        source.start()
        time.sleep(4 * LOOK_S)
        began_us = time.time_ns() // 1000
        staller.start()
        looks: list[list[float]] = []
        try:
            while len(looks) * LOOK_S < options.seconds:
                time.sleep(LOOK_S)
                watch.workers()
                owners = list(watch.owners().values())
                share = sum(type_of(name) == STALLS for name in owners) / max(1, len(owners))
                looks.append([share, *believed(watch)])
                others, stalling = looks[-1][1:]
                say(f"{len(looks) * LOOK_S:g} s: {share:.2f} of the slots; within {stalling:.2f}, others {others:.2f}")
        finally:
            ended.set()
            staller.join()
            source.end()
            watch.close()
        wait_outputs(settings, source.sent)
        wrong, late = judge(settings, source.sent)
        times, waits = np.array(late).T
        edges = began_us + np.linspace(0.0, options.seconds, 4) * 1e6
        slots, others_within, within = (_thirds(column) for column in np.array(looks).T)
        return {
            "bench": "stalls",
            "rate": options.rate,
            **wrong,
            "late_before": _late(waits[times < began_us], settings),
            "late_share": [_late(waits[(times >= low) & (times < high)], settings) for low, high in pairwise(edges)],
            "slots_share": slots,
            "within": within,
            "within_others": others_within,
        }


def _thirds(column: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [round(float(part.mean()), 3) for part in np.array_split(column, 3)]


def _late(waits: np.ndarray[Any, np.dtype[np.float64]], settings: Settings) -> float:
    return round(float((waits > settings.scaler.slo_s).mean()), 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long they stall [300]")
    parser.add_argument("--rate", type=float, default=600.0, help="tuples/s of all slots together [600]")
    parser.add_argument("--port", type=int, default=19393, help="of the broker [19393]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-stalls"), help="scratch directory")
    parser.add_argument("--out", type=Path, default=Path("out/stalls.json"), help="where the figures go")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    found = run(options)
    outcome.write(found, options.out)
    say(json.dumps(found, indent=1))
    return 0 if not (found["lost"] or found["duplicates"] or found["reordered"]) else 1


if __name__ == "__main__":
    sys.exit(main())
