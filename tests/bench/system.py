"""A Tsunagi system of a benchmark's own: broker, workers, edges and Spark as processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.bench import outcome
from tsunagi.local.fleet import Fleet
from tsunagi.local.up import System
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

SENSORS = 214
ROW_S = 600.0

COUNTED = {
    "tsunagi_standby_received_bytes_total": "bytes",
    "tsunagi_standby_requests_total": "requests",
    "tsunagi_speculations_total": "speculations",
    "tsunagi_speculative_outputs_total": "ahead",
    "tsunagi_speculative_repeats_total": "repeats",
}

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
speculate = {speculate}
[query]
operators = [{operators}]
[spark]
checkpoint = "{work}/checkpoint"
[recovery]
store = "{work}/models"
[scaler]
workers = 5
"""


def say(line: str) -> None:
    """Tell the user."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Wanted(Protocol):
    """What a benchmark wants of its system."""

    def write(self, work: Path, port: int) -> Path:
        """Write the configuration, and what it names; return its file."""


@dataclass(frozen=True)
class Load:
    """What the system is to do.

    Attributes:
        batch: B in tuples, or "inf".
        rate: tuples a second of all sensors together.
        state_bytes: of state that the operators hold on each slot.
    """

    batch: str = "100"
    rate: float = 1000.0
    speculation: bool = False
    state_bytes: int = 0

    def write(self, work: Path, port: int) -> Path:
        """Write the configuration; return its file."""
        interval_s = SENSORS / self.rate / 2
        operators = '{ use = "recover" }'
        if self.state_bytes:
            operators = f'{{ use = "tests.bench.operators:Ballast", size = {self.state_bytes} }}, {operators}'
        text = CONFIG.format(
            work=work,
            port=port,
            interval=interval_s,
            speed=ROW_S / interval_s,
            batch=self.batch if self.batch.isdigit() else '"inf"',
            speculate="true" if self.speculation else "false",
            operators=operators,
        )
        config = work / "tsunagi.toml"
        config.write_text(text, encoding="utf-8")
        return config


@contextlib.contextmanager
def begun(work: Path, write: Callable[[Path], Path]) -> Iterator[tuple[System, Path]]:
    """Start a broker with topics anew below a directory, stop all that runs there in the end; yield what to go on with.

    Args:
        write: writes the configuration below the (absolute) directory, and what it names; returns its file.
    """
    work = work.resolve()
    config = work / "tsunagi.toml"
    if config.exists():
        System(load(config), config, lambda _line: None).stop()
    outcome.fresh(work)
    config = write(work)
    os.environ[CONFIG_VARIABLE] = str(config)
    system = System(load(config), config, say)
    try:
        system.start_broker()
        system.make_topics()
        yield system, config
    finally:
        system.stop()


@contextlib.contextmanager
def running(work: Path, port: int, wanted: Wanted) -> Iterator[tuple[Settings, Path]]:
    """Start a system anew below a directory, and stop it in the end; yield its settings and their file."""
    logging.getLogger().setLevel(logging.WARNING)
    with begun(work, lambda directory: wanted.write(directory, port)) as (system, config):
        nodes = system.start_workers()
        system.wait_ready(nodes)
        system.start_edges()
        system.wait_consuming()
        yield system.settings, config


def samples(host: str, port: int) -> list[Sample]:
    """Return what a process exports.

    Raises:
        OSError: the process does not answer.
    """
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=2.0) as answer:
        page = answer.read().decode()
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def scrape(host: str, port: int) -> dict[str, float]:
    """Return a process's metrics by name, each summed over its labels.

    Raises:
        OSError: the process does not answer.
    """
    found: dict[str, float] = {}
    for sample in samples(host, port):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


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
                page = scrape(self._settings.metrics.host, beat.message.metrics_port)
                sums = {name: page.get(sample, 0.0) for sample, name in COUNTED.items()}
                # A slot that was let go takes its series with it; what was counted stays counted.
                found.update({name: max(found.get(name, 0.0), value) for name, value in sums.items()})

    def total(self, name: str) -> float:
        """Return the sum over all processes there have been."""
        return sum(found.get(name, 0.0) for found in self._last.values())

    def close(self) -> None:
        """Let go of the connection."""
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
