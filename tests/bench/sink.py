"""A sink into a real PostgreSQL: rows a second of a core, how long a result takes to its row, and what kills leave.

    python -m tests.bench.sink --out out/sink.json
    python -m tests.bench.sink --kills 50 --out out/sink-kills.json

First `--rows` readings stand in `results`, and one instance of `tsunagi sink run` writes them into an empty table: rows
a second, and rows a CPU second of the sink's process. Then readings come at `--rate` for `--seconds`: the time from the
append of a step until its rows are in the table, seen by a reader that asks each 5 ms. With `--kills`, the sink and the
database are killed so many times each (SIGKILL, in turn) while readings come at that rate; the broker is away for ten
seconds; the password is changed; with `--disk`, a directory on a small file system of its own that the database gets,
the disk is full for ten seconds. In the end the table is compared with what was written, row for row. One JSON object
comes out:

    rows_per_s, rows_per_cpu_s, cpu_s    of the first part
    p50_s, p99_s                         from the append of a step to its rows
    kills, missing, extra, wrong         of the third part; `rows` were compared
    held_to                              the bounds, and `met`

The broker is a real one, started for this; the database runs on the same cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg

from tests.bench import outcome
from tests.integration.postgres import USER, Postgres
from tests.integration.sinks import SENSORS, Ledger, SinkWorld, moment
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.settings import KafkaSettings

ROWS_PER_CPU_S = 50_000
P99_S = 1.0
AWAY_S = 10.0
PATIENCE_S = 600.0
FILLER = "filler"
"""The file that fills the disk."""


def tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def counted(server: Postgres, table: str = "readings") -> int:
    """Return how many rows a table has; 0 if it is not there yet, or the database does not answer."""
    try:
        with server.session() as session:
            if session.execute("SELECT to_regclass(%s)", (table,)).fetchone() == (None,):
                return 0
            found = session.execute(f"SELECT count(*) FROM {table}").fetchone()
            return int(found[0]) if found else 0
    except psycopg.Error:
        return 0


def wait_for(server: Postgres, rows: int, table: str = "readings") -> None:
    """Wait until a table has so many rows."""
    began = time.monotonic()
    while counted(server, table) < rows:
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"{table} has {counted(server, table)} rows after {PATIENCE_S:g} s, expected {rows}")
        time.sleep(0.05)


def speed(world: SinkWorld, server: Postgres, rows: int) -> dict[str, Any]:
    """Return how fast a topic that is there is written."""
    while len(world.rows) < rows:
        world.write(200, truths=False, repeats=False)
    sink = world.start("history")
    process = psutil.Process(sink.pid)
    while counted(server) == 0:
        time.sleep(0.02)
    began, before, used = time.monotonic(), counted(server), cpu_s(process)
    wait_for(server, len(world.rows))
    wall_s, worked_s = time.monotonic() - began, cpu_s(process) - used
    done = len(world.rows) - before
    tell(f"{done} rows in {wall_s:.1f} s, {worked_s:.1f} s of a core")
    sink.send_signal(signal.SIGTERM)
    sink.wait(30)
    return {
        "rows": done,
        "rows_per_s": round(done / wall_s),
        "rows_per_cpu_s": round(done / worked_s),
        "cpu_s": round(worked_s, 2),
    }


def cpu_s(process: psutil.Process) -> float:
    found = process.cpu_times()
    return float(found.user + found.system)


def delay(world: SinkWorld, server: Postgres, rate: float, seconds: float) -> dict[str, Any]:
    """Return how long rows take from the append of their step into the table."""
    sink = world.start("history")
    world.write(1, truths=False, repeats=False)  # it is in the table once the process has begun
    wait_for(server, len(world.rows))
    sent: dict[int, float] = {}
    seen: dict[int, float] = {}
    stop = threading.Event()
    first = world.step

    def watch() -> None:
        newest = first - 1
        with server.session() as session:
            while not stop.wait(0.005):
                found = session.execute(
                    "SELECT step FROM readings WHERE time = %s LIMIT 1", (moment(newest + 1),)
                ).fetchone()
                while found is not None:
                    newest += 1
                    seen[newest] = time.monotonic()
                    found = session.execute(
                        "SELECT step FROM readings WHERE time = %s LIMIT 1", (moment(newest + 1),)
                    ).fetchone()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    _paced(world, rate, seconds, sent)
    wait_for(server, len(world.rows))
    time.sleep(0.2)
    stop.set()
    watcher.join()
    sink.send_signal(signal.SIGTERM)
    sink.wait(30)
    took = np.array([seen[step] - at for step, at in sent.items() if step in seen])
    p50_s, p99_s = np.quantile(took, [0.5, 0.99])
    tell(f"{len(took)} steps: p50 {p50_s:.3f} s, p99 {p99_s:.3f} s")
    return {"steps": len(took), "p50_s": round(float(p50_s), 3), "p99_s": round(float(p99_s), 3)}


def _paced(world: SinkWorld, rate: float, seconds: float, sent: dict[int, float], *, truths: bool = False) -> None:
    """Append steps at so many readings a second."""
    a_step = SENSORS / rate
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < seconds:
        time.sleep(max(0.0, began + number * a_step - time.monotonic()))
        sent[world.step] = time.monotonic()
        world.write(1, truths=truths, repeats=truths)
        number += 1


def kills(
    world: SinkWorld, server: Postgres, broker: Broker, count: int, rate: float, disk: Path | None
) -> dict[str, Any]:
    """Return what is wrong in the table after kills and outages of all kinds."""
    sink = world.start("history")
    stop = threading.Event()

    def keep_writing() -> None:
        while not stop.is_set():
            _paced(world, rate, 1.0, {}, truths=True)

    writer = threading.Thread(target=keep_writing, daemon=True)
    writer.start()
    done = {"sink": 0, "database": 0}
    for number in range(2 * count):
        before = counted(server)
        began = time.monotonic()
        while counted(server) <= before and time.monotonic() - began < PATIENCE_S:
            time.sleep(0.02)  # it writes again
        if number % 2:
            server.kill()
            server.start()
            done["database"] += 1
        else:
            sink.send_signal(signal.SIGKILL)
            sink.wait(10)
            sink = world.start("history")
            done["sink"] += 1
        if number % 10 == 9:
            tell(f"{number + 1} of {2 * count} kills, {len(world.rows)} rows written")
    if disk is not None:
        full(disk)
        time.sleep(AWAY_S)
        (disk / FILLER).unlink()
    changed(server, world)
    stop.set()
    writer.join()
    broker.kill()
    time.sleep(AWAY_S)
    broker.start()
    broker.wait_ready()
    world.write(50)
    wait_for(server, len(world.rows))
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = judged(world, server)
        if not (found["missing"] or found["extra"] or found["wrong"]) or time.monotonic() > deadline:
            return {"kills": done, "rows": len(world.rows)} | found
        time.sleep(1.0)


def full(disk: Path) -> None:
    """Fill the file system until nothing fits any more."""
    with (disk / FILLER).open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            tell("the disk is full")


def changed(server: Postgres, world: SinkWorld) -> None:
    """Change the password, and give the sink the new one ten seconds later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with server.session() as session:
                session.execute(f"ALTER USER {USER} PASSWORD 'second'")
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tsunagi%'"
                )
            break
        except psycopg.Error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    time.sleep(AWAY_S)
    with server.session(password="second") as session:
        session.execute(f"ALTER USER {USER} PASSWORD 'first'")
    tell(f"while the password was another: {world.fault('sink-history')}")


def judged(world: SinkWorld, server: Postgres) -> dict[str, int]:
    """Compare the table with what was written."""
    with server.session() as session:
        rows = session.execute("SELECT time, sensor, value, bound, quality, q1, step FROM readings").fetchall()
    return compared({(time, sensor): Ledger(*others) for time, sensor, *others in rows}, world)


def compared(found: Mapping[tuple[datetime, str], Ledger], world: SinkWorld) -> dict[str, int]:
    """Compare readings that a target has with what was written."""
    return {
        "missing": len(world.rows.keys() - found.keys()),
        "extra": len(found.keys() - world.rows.keys()),
        "wrong": sum(found[key] != row for key, row in world.rows.items() if key in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--work", type=Path, default=Path("out/bench-sink"))
    parser.add_argument("--out", type=Path, default=Path("out/sink.json"))
    given = parser.parse_args()
    outcome.fresh(given.work)
    broker = Broker(given.work / "broker", free_port())
    broker.start()
    broker.wait_ready()
    server = Postgres((given.disk or given.work.resolve()) / "postgres")
    server.start()
    sink = {"name": "history", "kind": "postgres", "postgres": server.settings()}
    os.environ["PGPASSWORD"] = "first"
    world = SinkWorld(given.work / "world", KafkaSettings(servers=broker.servers), sink)
    try:
        found: dict[str, Any] = {"bench": "sink"}
        if given.kills:
            found |= kills(world, server, broker, given.kills, given.rate, given.disk)
            found["met"] = not (found["missing"] or found["extra"] or found["wrong"])
        else:
            found |= speed(world, server, given.rows)
            found |= delay(world, server, given.rate, given.seconds)
            found["held_to"] = {"rows_per_cpu_s": ROWS_PER_CPU_S, "p99_s": P99_S}
            found["met"] = found["rows_per_cpu_s"] >= ROWS_PER_CPU_S and found["p99_s"] <= P99_S
        outcome.write(found, given.out)
        tell(str(found))
    finally:
        world.close()
        server.stop()
        broker.stop()


if __name__ == "__main__":
    main()
