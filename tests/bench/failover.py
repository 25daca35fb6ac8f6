"""Failover: gateway workers of a real system die under load, one after the other; how long was each slot silent?

    python -m tests.bench.failover --kills 50 --fault kill --batch 100 --rate 1000 --out out/failover.json

Starts its own broker, workers, edges and Spark as processes of this machine (below `--work`, on a port of its own),
sets the faults by `tsunagi chaos` on whoever owns a slot, judges all results, and writes one JSON object. Times are in
seconds: `silence_s` is measured by an outside reader, the parts of a takeover are the new owner's own. `stop` freezes a
worker for longer than detection takes. For partitions use `tsunagi chaos --fault partition` on containers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from services.chaos.local import LocalDriver
from services.chaos.plan import Round, rounds
from services.chaos.report import Outcome
from services.chaos.run import Runner
from services.chaos.watch import Watch
from services.local import processes
from services.local.fleet import Fleet
from services.local.topics import tool_log
from services.local.up import System
from services.runtime.settings import CONFIG_VARIABLE, Settings, load
from services.standby.promotion import DEATHS

SENSORS = 214
ROW_S = 600.0
STOP_S = 3.0
FAULTS = {"kill": "kill", "stop": "pause"}
COUNTED = {"tsunagi_standby_received_bytes_total": "bytes", "tsunagi_standby_requests_total": "requests"}

CONFIG = """\
state = "{work}/run"
[kafka]
servers = "127.0.0.1:{port}"
[steps]
interval_s = {interval}
window = 10
slide = 2
[source]
speed = {speed}
repeat = true
[standby]
batch_size = {batch}
[spark]
checkpoint = "{work}/checkpoint"
[recovery]
store = "{work}/models"
[scaler]
workers = 5
"""


class Usage:
    """What the workers have used, over the lives of their processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fleet = Fleet(tool_log(settings, "bench"))
        self._last: dict[tuple[str, int], dict[str, float]] = {}

    def look(self) -> None:
        """Take in what each living worker says now."""
        self._fleet.update(0.5)
        for process in processes.list_processes(self._settings.state):
            if process.role != "worker" or not processes.alive(process):
                continue
            found = self._last.setdefault((process.node, process.pid), {})
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(process.pid).cpu_times()
                found["cpu_s"] = times.user + times.system
            beat = self._fleet.beats.get(process.node)
            if beat is None or beat.message.pid != process.pid:
                continue
            with contextlib.suppress(OSError):
                address = f"http://{self._settings.metrics.host}:{beat.message.metrics_port}/metrics"
                with urllib.request.urlopen(address, timeout=2.0) as answer:
                    page = answer.read().decode()
                for family in text_string_to_metric_families(page):
                    for sample in family.samples:
                        if sample.name in COUNTED:
                            found[COUNTED[sample.name]] = sample.value

    def total(self, name: str) -> float:
        """Return the sum over all processes there have been."""
        return sum(found.get(name, 0.0) for found in self._last.values())

    def close(self) -> None:
        self._fleet.close()


def spread(values: list[float]) -> dict[str, float | None]:
    """Return p50, p99 and max."""
    if not values:
        return {"p50": None, "p99": None, "max": None}
    return {
        "p50": round(float(np.percentile(values, 50)), 4),
        "p99": round(float(np.percentile(values, 99)), 4),
        "max": round(max(values), 4),
    }


def plans(options: argparse.Namespace) -> Iterator[Round]:
    """Yield the faults; a worker that is stopped stays so for longer than its death takes to be noticed."""
    for plan in rounds(["gateway"], [FAULTS[options.fault]], options.kills, options.seed):
        yield replace(plan, seconds=STOP_S) if options.fault == "stop" else plan


def result(options: argparse.Namespace, settings: Settings, outcomes: list[Outcome], usage: Usage) -> dict[str, Any]:
    """Return the JSON object."""
    silences = [item.silence_s for item in outcomes if item.silence_s is not None]
    parts = [item for item in processes.logged(settings.state, "takeover") if item["reason"] in DEATHS]
    changes = [(item, taken) for item in outcomes for taken in item.takeovers]
    last = outcomes[-1].found if outcomes else None
    quarter = max(1, len(silences) // 4)
    return {
        "bench": "failover",
        "fault": options.fault,
        "batch": options.batch,
        "rate": options.rate,
        "seed": options.seed,
        "faults": len(outcomes),
        "silence_s": spread(silences),
        "detect_s": spread([item["detect_s"] for item in parts]),
        "promote_s": spread([item["promote_s"] for item in parts]),
        "catch_up_s": spread([item["catch_up_s"] for item in parts]),
        "median_first_quarter_s": median(silences[:quarter]) if silences else None,
        "median_last_quarter_s": median(silences[-quarter:]) if silences else None,
        "lost": sum(item.found.lost for item in outcomes),
        "duplicates": sum(item.found.duplicated for item in outcomes),
        "reordered": sum(item.found.inverted for item in outcomes),
        "wrong": sum(sum(item.found.wrong.values()) for item in outcomes),
        "not_recovered": [] if last is None else outcomes[-1].missing,
        "ownership_changes": len(changes),
        "expected_changes": sum(len(item.slots) for item in outcomes),
        "false_takeovers": sum(taken.slot not in item.slots for item, taken in changes),
        "secondary_bytes": round(usage.total("bytes")),
        "secondary_requests": round(usage.total("requests")),
        "cpu_s": round(usage.total("cpu_s"), 1),
        "list": [item.as_json() for item in outcomes],
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="number of faults")
    parser.add_argument("--fault", choices=tuple(FAULTS), default="kill")
    parser.add_argument("--batch", default="100", help="B in tuples, or inf")
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples a second of all sensors together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    logging.getLogger().setLevel(logging.WARNING)
    work = options.work.resolve()
    config = work / "tsunagi.toml"
    if config.exists():
        System(load(config), config, lambda _line: None).stop()
        shutil.rmtree(work)
    work.mkdir(parents=True)
    interval_s = SENSORS / options.rate / 2
    batch = options.batch if options.batch.isdigit() else '"inf"'
    text = CONFIG.format(work=work, port=options.port, interval=interval_s, speed=ROW_S / interval_s, batch=batch)
    config.write_text(text, encoding="utf-8")
    os.environ[CONFIG_VARIABLE] = str(config)
    settings = load(config)

    system = System(settings, config, say)
    began = time.monotonic()
    try:
        system.start_broker()
        system.make_topics()
        nodes = system.start_workers()
        system.wait_ready(nodes)
        system.start_edges()
        system.wait_consuming()
        usage = Usage(settings)
        watch = Watch(tool_log(settings, "bench"))

        def tell(line: str) -> None:
            usage.look()
            say(line)

        runner = Runner(LocalDriver(settings, config), watch, tell)
        code = runner.run(plans(options), seed=options.seed, asked=options.kills)
        usage.look()
        found = result(options, settings, runner.outcomes, usage) | {"seconds": round(time.monotonic() - began, 1)}
        usage.close()
        watch.close()
    finally:
        system.stop()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    say(json.dumps({name: value for name, value in found.items() if name != "list"}))
    return code


if __name__ == "__main__":
    sys.exit(main())
