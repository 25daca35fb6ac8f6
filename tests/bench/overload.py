"""Overload on a real broker: more comes than the workers can process, for minutes. What changes, and when is it over?

    python -m tests.bench.overload --seconds 120 --out out/overload.json

The scaler launches workers as processes of this machine, each held to a rate (`limit` in [scaler.sizes]). The load is
half of what they can process, then `--factor` times of it, then half again. A generator of the bench's own numbers the
tuples of each slot, so every slot's outputs must count up without a gap. Latency is from the log's time of an input to
that of its output. It is normal again once no output is later than the latest of before the overload, and than half a
second; by what the workers process, that takes (backlog at the end of the overload) / (capacity - load). One JSON
object comes out.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench import outcome
from tests.bench.launched import Load, Watch, judge, running, wait_outputs
from tests.bench.system import say
from tsunagi.runtime import metrics
from tsunagi.runtime.log import TUPLES
from tsunagi.runtime.settings import Settings
from tsunagi.slot.parsing import parse
from tsunagi.system.topics import read_partition, tool_log

CALM_S = 20.0
CALM_SHARE = 0.5
LEAST_NORMAL_S = 0.5
"""Latencies below this count as normal whatever they were before."""
LOOK_S = 5.0
MEMORY = "process_resident_memory_bytes"

SCALER = """\
workers = {workers}
sizes = {{ local = {{ rate = {limit}, limit = {limit} }} }}
"""


def claims(settings: Settings) -> list[int]:
    """Return when each claim of a slot was appended, microseconds."""
    log, found = tool_log(settings, "bench"), []
    for slot in range(settings.slots.count):
        records = read_partition(log, TUPLES, slot)
        found += [record.appended_us for record in records if parse(record)[2] == "ownership"]
    return found


class Look(NamedTuple):
    """What the workers that own slots say at one moment: seconds of overload, and bytes of memory of each."""

    at: float
    overloaded: list[float]
    memory: list[float]


def look(watch: Watch) -> Look:
    """Ask all workers that own slots."""
    name = next(iter(metrics.OVERLOADED_S.describe())).name
    watch.workers()
    found = [item for node in sorted(set(watch.owners().values())) for item in watch.samples(node)]
    overloaded, memory = ([item.value for item in found if item.name == wanted] for wanted in (name, MEMORY))
    return Look(time.time(), overloaded, memory)


def follow(watch: Watch, source: Load, seconds: float) -> list[Look]:
    """Let time pass, and look every `LOOK_S`."""
    looks, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        looks.append(look(watch))
        say(f"{source.rate:g} tuples/s; workers are overloaded for {looks[-1].overloaded} s")
    return looks


def figures(
    late: list[tuple[int, float]], times: dict[str, float], rates: dict[str, float]
) -> dict[str, float | int | None]:
    """Return what the latencies say of the overload. `times` are microseconds since the epoch."""
    at, waits = np.array(late).T
    begun, ended = times["begun_us"], times["ended_us"]
    before = waits[at < begun]
    normal = max(float(before.max()), LEAST_NORMAL_S)
    after = at >= ended
    high = at[after & (waits > normal)]
    back_s = (float(high.max()) - ended) / 1e6 if len(high) else 0.0
    inside = (at >= begun) & (at < ended)
    tuples_each = rates["tuples"] / len(late)
    settle_us = begun + 10e6
    capacity = float(((at >= settle_us) & (at < ended)).sum()) * tuples_each / ((ended - settle_us) / 1e6)
    inputs = at - waits * 1e6
    backlog = float(((inputs < ended) & (at >= ended)).sum()) * tuples_each
    due_s = backlog / (capacity - rates["calm"])
    return {
        "latency_before_p50_s": round(float(np.median(before)), 3),
        "latency_before_most_s": round(float(before.max()), 3),
        "latency_most_s": round(float(waits[inside | after].max()), 2),
        "capacity": round(capacity, 1),
        "backlog": round(backlog),
        "back_s": round(back_s, 2),
        "due_s": round(due_s, 2),
        "back_over_due": round(back_s / due_s, 3) if due_s > 0 else None,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the bench; return its figures."""
    scaler = SCALER.format(workers=options.workers, limit=options.limit)
    calm = options.workers * options.limit * CALM_SHARE
    with running(options.work, options.port, options.slots, scaler, options.batch) as settings:
        watch = Watch(settings)
        watch.wait({"local": options.workers})
        source = Load(settings, calm)
        source.start()
        times = {"calm_us": time.time() * 1e6}
        try:
            looks = follow(watch, source, CALM_S)
            times["begun_us"] = time.time() * 1e6
            source.rate = options.workers * options.limit * options.factor
            looks += follow(watch, source, options.seconds)
            times["ended_us"] = time.time() * 1e6
            source.rate = calm
            looks += follow(watch, source, options.seconds * (options.factor - 1) / (1 - CALM_SHARE) * 1.2 + CALM_S)
        finally:
            source.end()
            watch.close()
        wait_outputs(settings, source.sent)
        wrong, late = judge(settings, source.sent)
        changes = sum(at > times["calm_us"] for at in claims(settings))
        said = [item.at for item in looks if any(item.overloaded)]
        memory = [max(item.memory, default=0.0) / 2**20 for item in looks]
        return {
            "bench": "overload",
            "workers": options.workers,
            "slots": options.slots,
            "limit": options.limit,
            "factor": options.factor,
            "seconds": options.seconds,
            "unsent": source.failed,
            **wrong,
            "changes_of_owner": changes,
            **figures(late, times, {"calm": calm, "tuples": float(wrong["tuples"])}),
            "said_after_s": round(said[0] - times["begun_us"] / 1e6, 1) if said else None,
            "said_until_s": round(said[-1] - times["ended_us"] / 1e6, 1) if said else None,
            "memory_before_mb": round(max(memory[: int(CALM_S / LOOK_S)]), 1),
            "memory_most_mb": round(max(memory), 1),
            "bounds": {"lost": 0, "duplicates": 0, "reordered": 0, "changes_of_owner": 0, "back_over_due": 1.2},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the overload lasts [120]")
    parser.add_argument("--factor", type=float, default=2.0, help="load over what the workers can process [2]")
    parser.add_argument("--workers", type=int, default=3, help="workers [3]")
    parser.add_argument("--limit", type=float, default=1000.0, help="tuples/s of a worker at most [1000]")
    parser.add_argument("--slots", type=int, default=9, help="slots, a multiple of the workers [9]")
    parser.add_argument("--batch", type=int, default=100, help="B of the standbys, tuples [100]")
    parser.add_argument("--port", type=int, default=19394, help="of the broker [19394]")
    parser.add_argument("--work", type=Path, default=Path("out/bench-overload"), help="scratch directory")
    parser.add_argument("--out", type=Path, default=Path("out/overload.json"), help="where the figures go")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    found = run(options)
    outcome.write(found, options.out)
    say(json.dumps(found, indent=1))
    held = not (found["lost"] or found["duplicates"] or found["reordered"] or found["changes_of_owner"])
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
