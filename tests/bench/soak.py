"""Soak: the running compose project under a fault a minute; memory, threads, descriptors and disk over time.

    python -m tests.bench.soak --minutes 30 --seed 1 --out out/soak.json

The project is started before, by `make up`, with the load that is wanted. `tsunagi chaos --every 60` sets the faults
and judges the results; meanwhile every container of the project is looked at twice a minute. One JSON object comes out.
A figure's growth is that of its median in the last five minutes over its median in minutes 5 to 10: a service that was
killed since is compared as well, for whatever it is started as must be as small as it was. Needs root, to see the
descriptors of processes of other users.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import docker
import psutil

from tsunagi.chaos.containers import NODE_LABEL, PROJECT_LABEL

SAMPLE_S = 30.0
SETTLED_S = 300.0
SPAN_S = 300.0
FIGURES = ("memory", "threads", "descriptors")


class Watch:
    """Samples of a compose project: {"at": seconds since the start, "nodes": {node: figures}, "volumes": ..., ...}."""

    def __init__(self, project: str) -> None:
        self._client = docker.from_env()
        self._label = f"{PROJECT_LABEL}={project}"
        self.samples: list[dict[str, Any]] = []

    def sample(self, at: float) -> None:
        """Look at everything once."""
        containers = self._client.containers.list(all=True, filters={"label": self._label})
        nodes = {}
        for container in containers:
            pid = container.attrs["State"]["Pid"]
            if pid and not container.attrs["State"]["Paused"]:
                try:
                    nodes[container.labels.get(NODE_LABEL, container.name)] = _figures(pid)
                except psutil.NoSuchProcess:
                    continue  # killed while we looked
        volumes = self._client.volumes.list(filters={"label": self._label})
        self.samples.append(
            {
                "at": round(at, 1),
                "nodes": nodes,
                "volumes": {volume.name: _size(Path(volume.attrs["Mountpoint"])) for volume in volumes},
                "containers": len(self._client.containers.list(all=True)),
                "networks": len(self._client.networks.list()),
            }
        )

    def growth(self) -> dict[str, dict[str, list[float]]]:
        """Return node -> figure -> [median of minutes 5 to 10, median of the last five minutes]."""
        end = self.samples[-1]["at"]
        spans: dict[str, dict[str, tuple[list[int], list[int]]]] = defaultdict(
            lambda: {figure: ([], []) for figure in FIGURES}
        )
        for sample in self.samples:
            early = SETTLED_S <= sample["at"] <= SETTLED_S + SPAN_S
            late = sample["at"] >= end - SPAN_S
            for node, figures in sample["nodes"].items():
                for figure in FIGURES:
                    first, last = spans[node][figure]
                    first += [figures[figure]] * early
                    last += [figures[figure]] * late
        return {
            node: {name: [median(first), median(last)] for name, (first, last) in figures.items() if first and last}
            for node, figures in sorted(spans.items())
        }


def _figures(pid: int) -> dict[str, int]:
    """Return the sums over a container's processes: memory in bytes (shared pages by their share), threads, files."""
    main = psutil.Process(pid)
    found = dict.fromkeys(FIGURES, 0)
    for process in (main, *main.children(recursive=True)):
        try:
            found["memory"] += process.memory_full_info().pss
            found["threads"] += process.num_threads()
            found["descriptors"] += process.num_fds()
        except psutil.NoSuchProcess:
            if process is main:
                raise
    return found


def _size(directory: Path) -> int:
    """Return what the files in it take on disk, bytes."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue  # deleted while we looked
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--project", default="tsunagi")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    watch = Watch(options.project)
    rounds = max(1, int(options.minutes * 60 / options.every))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    journal = options.out.with_suffix(".chaos.jsonl")
    faults = ("--target", "all", "--fault", "all", "--count", str(rounds), "--every", str(options.every))
    where = ("--seed", str(options.seed), "--project", options.project, "--out", str(journal))
    chaos = subprocess.Popen([sys.executable, "-m", "tsunagi.cli", "chaos", *faults, *where])
    began = time.monotonic()
    try:
        while chaos.poll() is None or time.monotonic() - began < options.minutes * 60:
            watch.sample(time.monotonic() - began)
            time.sleep(SAMPLE_S)
    finally:
        code = chaos.wait()
    summary = json.loads(journal.read_text(encoding="utf-8").splitlines()[-1])
    found = {
        "bench": "soak",
        "seconds": round(time.monotonic() - began, 1),
        "chaos_exit_code": code,
        "chaos": summary,
        "growth": watch.growth(),
        "samples": watch.samples,
    }
    options.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    for node, figures in found["growth"].items():
        parts = [f"{name} {a:.0f} -> {b:.0f} ({b / a - 1:+.1%})" for name, (a, b) in figures.items()]
        sys.stdout.write(f"{node:<14} {', '.join(parts)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
