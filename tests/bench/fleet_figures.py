"""What a fleet costs, and how it behaves, as it grows: `make figures-fleet`.

    python -m tests.bench.fleet_figures --sizes 200x4,2000x20,5000x100,20000x200 --seconds 120 --out out/figures-fleet

Each size goes the way of `tests.bench.fleet`, one after the other, each in processes of its own: init, up, edges that
send, an edge that falls silent, owners that are killed. fleet.csv has a row a size, the picture the curves over the
number of sensors, claims.json what Tsunagi is held to, each with whether it held here. Nothing else should run
meanwhile. With the defaults it takes about a quarter of an hour, with --quick two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.findings import Claim, Curves, Findings, Panel

FULL = {"sizes": "200x4,2000x20,5000x100,20000x200", "seconds": 120.0, "kills": 5}
SMALL = {"sizes": "200x4,400x10", "seconds": 40.0, "kills": 1}
ROLES = ("worker", "spark", "scaler", "learner")
DATA = ("tuples", "recovered", "results")
MOST_COST = 1.3
"""CPU and bytes a tuple of the largest fleet, over those of the smallest."""
SILENCE_S = {"p50": 0.3, "p99": 0.8}
FLOWING_S = 120.0
WRONG = ("lost", "doubled", "reordered", "wrong")


class Size(NamedTuple):
    """A fleet."""

    sensors: int
    edges: int


def sizes(text: str) -> list[Size]:
    """Read 200x4,2000x20: sensors x edges."""
    return [Size(*map(int, item.split("x"))) for item in text.split(",")]


def columns(found: dict[str, Any]) -> dict[str, Any]:
    """Return what fleet.csv has of a size."""
    cpu, used = found["cpu_s_a_million_tuples"], found["processes"]
    plain = ("sensors", "edges", "slots", "workers", "step_s", "ready_s", "flowing_s", "learned_s", "false_takeovers")
    return (
        {name: found[name] for name in plain}
        | {f"cpu_{role}": cpu.get(role) for role in ROLES}
        | {f"rss_{role}_mb": used.get(role, {}).get("rss_mb") for role in ROLES}
        | {f"bytes_{topic}": found["bytes_a_tuple"][topic] for topic in DATA}
        | {f"latency_{part}_s": found["latency_s"][part] for part in ("p50", "p99")}
        | {f"silence_{part}_s": found["silence_s"][part] for part in ("p50", "p99")}
        | {"heartbeats_a_second": found["records_a_second"]["heartbeats"]}
        | {"heartbeat_bytes_a_second": found["bytes_a_second"]["heartbeats"]}
        | {name: found["results"][name] for name in (*WRONG, "aside", "late", "rows")}
    )


def judge(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Yield what Tsunagi is held to, and whether the rows hold it."""
    for row in rows:
        size = f"{row['sensors']} sensors, {row['edges']} edges"
        wrong = {name: row[name] for name in WRONG}
        yield Claim(size, "no takeover that nobody caused", not row["false_takeovers"], str(row["false_takeovers"]))
        yield Claim(size, "nothing lost, doubled, reordered, wrong", not any(wrong.values()), str(wrong))
        for part, most in SILENCE_S.items():
            if (silent := row[f"silence_{part}_s"]) is not None:
                yield Claim(size, f"silence {part} at most {most:g} s", silent <= most, f"{silent:g} s")
        flowing = row["flowing_s"]
        held = flowing is not None and flowing <= FLOWING_S
        yield Claim(size, f"results flow within {FLOWING_S:g} s of the start of init", held, f"{flowing} s")
    first, last = rows[0], rows[-1]
    for name in (*(f"cpu_{role}" for role in ROLES if role != "spark"), *(f"bytes_{topic}" for topic in DATA)):
        if not first[name] or last[name] is None:
            continue
        ratio = last[name] / first[name]
        says = f"{name} a tuple at most {MOST_COST:g} times that of {first['sensors']} sensors"
        yield Claim(f"{last['sensors']} sensors", says, ratio <= MOST_COST, f"{ratio:.2f}")


def panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Return the curves over the number of sensors."""
    x = [row["sensors"] for row in rows]

    def curves(names: dict[str, str]) -> Curves:
        found = {}
        for label, name in names.items():
            known = [(at, row[name]) for at, row in zip(x, rows, strict=True) if row[name] is not None]
            if known:
                found[label] = tuple(zip(*known, strict=True))
        return found  # type: ignore[return-value]  # two sequences of equal length

    cpu = curves({role: f"cpu_{role}" for role in ROLES})
    memory = curves({role: f"rss_{role}_mb" for role in ROLES})
    times = curves({"results, p50": "latency_p50_s", "results, p99": "latency_p99_s", "silence, p50": "silence_p50_s"})
    start = curves({"all ready": "ready_s", "first result in order": "flowing_s"})
    return [
        Panel(cpu, "sensors", "CPU seconds a million tuples", log_x=True, log_y=True),
        Panel(curves({topic: f"bytes_{topic}" for topic in DATA}), "sensors", "bytes a tuple", log_x=True),
        Panel(memory, "sensors", "memory, MB", log_x=True, log_y=True),
        Panel(times, "sensors", "seconds behind the input", log_x=True),
        Panel(start, "sensors", "seconds from the start of init", limit=FLOWING_S, log_x=True),
        Panel(curves({"heartbeats": "heartbeats_a_second"}), "sensors", "records a second", log_x=True),
    ]


def measure(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Run one size; return its figures.

    Raises:
        SystemExit: the run failed.
    """
    name = f"{size.sensors}x{size.edges}"
    out, work = options.out / f"{name}.json", options.out / f"work-{name}"
    given = {**size._asdict(), "seconds": options.seconds, "kills": options.kills, "work": work, "out": out}
    command = [sys.executable, "-m", "tests.bench.fleet", *(f"--{key}={value}" for key, value in given.items())]
    with (options.out / f"{name}.log").open("wb") as log:
        done = subprocess.run(command, check=False, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{name}: the run failed; its output is in {log.name}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help=f"sensors x edges, ascending (default {FULL['sizes']})")
    parser.add_argument("--seconds", type=float, help="of each size, once its edges send (default 120)")
    parser.add_argument("--kills", type=int, help="owners that are killed in each (default 5)")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs, not what holds")
    parser.add_argument("--out", type=Path, default=Path("out/figures-fleet"))
    options = parser.parse_args(arguments)
    for key, value in (SMALL if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.out = options.out.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    bench = Findings(options.out)
    rows: list[dict[str, Any]] = []
    for size in sizes(options.sizes):
        bench.progress(f"{size.sensors} sensors on {size.edges} edges")
        rows.append(columns(measure(size, options)))
        bench.write("fleet", [list(row.values()) for row in rows], list(rows[0]))
        bench.picture("fleet", panels(rows), columns=2)
    bench.judge(judge(rows))
    bench.save(
        {
            "bench": "figures-fleet",
            **{key: getattr(options, key) for key in FULL},
            "load_average": os.getloadavg()[0],
            "seconds_in_all": bench.took_s,
        }
    )
    bench.progress(f"{sum(claim.held for claim in bench.claims)} of {len(bench.claims)} statements held; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
