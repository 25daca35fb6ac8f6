"""Fill over tuples: how fast is a query filled with the past of its slot's log, and what do the others notice?

    python -m tests.bench.fill_tuples --past 500000 --rate 2000 --out out/fill.json

One slot has an owner and a secondary, each a process. A query of VWAP's kind follows its log. The log gets `--past`
records of `--rows` tuples each, at once, and then `--rate` records a second. After a while a second query is added and
filled from the beginning. What the first query's rows take, from the log's append of a tuple to that of its row, is
compared: before, and while the other one is being filled. One JSON object comes out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.bench import outcome
from tests.bench.one_slot import Batches, begun, configure
from tsunagi.local.queries import add_queries, list_queries
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RECOVERED, Position
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.runtime.threads import fix_arithmetic

LIVE = "CREATE QUERY live AS SELECT sensor, AVG(value) AS mean FROM readings [ROWS 10] GROUP BY sensor"
FILLED = "CREATE QUERY filled AS SELECT sensor, COUNT(*) AS n FROM readings [RANGE UNBOUNDED] GROUP BY sensor"
CALM_S = 20.0
"""Number of seconds in which rows are looked at before the query is filled."""
RUN_S = 900.0
AFTER_S = 3.0
"""The measurement begins so many seconds after the first query has rows of the whole past."""
TICK_S = 0.01


class Edge:
    """Sends records of one edge: so many at once, and then so many a second, until it is stopped."""

    def __init__(self, log: KafkaLog, rows: int, rate: float) -> None:
        self._batches = Batches(log, rows)
        self._rate = rate
        self._step = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def sent(self) -> int:
        """How many records it has sent."""
        return self._batches.sent

    def send(self, records: int) -> None:
        """Send records and wait until the broker has them."""
        for _ in range(records):
            self._one()
        self._batches.flush()

    def start(self) -> None:
        """Begin to send at the rate."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._ends.set()
        self._thread.join()
        self._batches.close()

    def _run(self) -> None:
        began, first = time.monotonic(), self.sent
        while not self._ends.wait(TICK_S):
            while self.sent - first < (time.monotonic() - began) * self._rate:
                self._one()
            self._batches.poll()

    def _one(self) -> None:
        self._step = max(self._step + 1, time.time_ns() // 1000)
        self._batches.send(self._step)


class Rows:
    """Follows `recovered`, and says how long the rows of queries took."""

    def __init__(self, log: KafkaLog) -> None:
        self._reader = log.reader()
        self._reader.assign([Position(RECOVERED, 0, 0)])
        self.counts = {"live": 0, "filled": 0}
        self.took_ms: list[float] = []

    def follow(self, seconds: float) -> None:
        """Take in what comes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for record in self._reader.read(500, min(left, 0.1)):
                message = Recovered.FromString(record.value or b"")
                if message.query in self.counts:
                    self.counts[message.query] += 1
                if message.query == "live":
                    self.took_ms.append((record.appended_us - message.appended_us) / 1e3)

    def figures(self) -> dict[str, float]:
        """Return what the rows of the first query took since the last call, in milliseconds."""
        took, self.took_ms = np.array(self.took_ms), []
        found = zip(("median", "p99", "most"), np.quantile(took, (0.5, 0.99, 1.0)), strict=True)
        return {name: round(float(value), 2) for name, value in found} | {"rows": len(took)}


@contextlib.contextmanager
def workers(settings: Settings) -> Iterator[None]:
    """Run the owner and the secondary."""
    commands = (("gateway", "gw-1"), ("secondary", "sec-1"))
    (settings.state / "logs").mkdir(parents=True, exist_ok=True)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tsunagi.cli", role, "run", "--node", node],
            stdout=subprocess.DEVNULL,
            stderr=(settings.state / "logs" / node).open("wb"),
        )
        for role, node in commands
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=30)


def measure(settings: Settings, log: KafkaLog, options: argparse.Namespace) -> dict[str, object]:
    """Let a query be filled; return what it took."""
    add_queries(settings, [LIVE], lambda _line: None)
    rows, edge = Rows(log), Edge(log, options.rows, options.rate)
    edge.send(1)  # the first rows say that the slot has its owner and the query
    deadline = time.monotonic() + RUN_S
    while not rows.counts["live"] and time.monotonic() < deadline:
        edge.send(1)
        rows.follow(0.5)
    missed = edge.sent - rows.counts["live"]  # at most: some may be on their way
    edge.send(options.past)
    while rows.counts["live"] + missed < edge.sent and time.monotonic() < deadline:
        rows.follow(0.5)
    edge.start()
    rows.follow(AFTER_S)
    rows.took_ms.clear()
    rows.follow(CALM_S)
    before = rows.figures()
    first, sent_before = time.monotonic(), edge.sent
    add_queries(settings, [FILLED], lambda _line: None, begin="1h")
    while state(settings) != "runs" and time.monotonic() < deadline:
        rows.follow(0.5)
    took_s = time.monotonic() - first
    during = rows.figures()
    sent = edge.sent
    edge.stop()
    rows.follow(2.0)
    return {
        "filled_s": round(took_s, 2),
        "tuples_per_s": round(sent * options.rows / took_s),
        "live_records_per_s": round((sent - sent_before) / took_s),
        "before_ms": before,
        "during_ms": during,
        "lost": edge.sent - rows.counts["filled"],
    }


def state(settings: Settings) -> str:
    """Return what is known of the filled query."""
    return next(str(item["state"]) for item in list_queries(settings) if item["query"] == "filled")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--past", type=int, default=500_000, help="records that the log has before")
    parser.add_argument("--rows", type=int, default=1, help="tuples in a record")
    parser.add_argument("--rate", type=float, default=2000.0, help="records a second while the query is filled")
    parser.add_argument("--port", type=int, default=29596)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fix_arithmetic(os.environ)
    logging.getLogger().setLevel(logging.WARNING)
    work = options.work.resolve()
    outcome.fresh(work)
    config = configure(work, f"127.0.0.1:{options.port}", "", "batch_size = 100", sensors=options.rows)
    os.environ[CONFIG_VARIABLE] = str(config)
    settings = load(config)
    with begun(settings, options.port, "bench", "sec-1") as log, workers(settings):
        measured = measure(settings, log, options)
    found = {"bench": "fill_tuples", **{name: getattr(options, name) for name in ("past", "rows", "rate")}, **measured}
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
