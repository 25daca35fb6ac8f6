"""Events on their way (CREATE STREAM with lock-step): what does one cost a live edge, and the owner of its slot?

    python -m tests.bench.events --rate 5000 --out out/events.json

One edge and one worker run in this process on a log in memory, in virtual time, and the edge is given JSON messages at
`--rate` events a second. What the Spark job takes is measured by `tests.bench.nexmark.system`. One JSON object comes
out:

    edge_us, slot_us   microseconds of CPU for an event, median of `--rounds`; `spread` has the least and the greatest
    tuples_bytes, recovered_bytes   bytes for an event in these topics
    sent, unusable     events that went out; and that did not, by reason (`step-full`: the step's record was full)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import structlog

from tests.bench import outcome
from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.service import EdgeService
from tsunagi.edge.source import LiveProgress
from tsunagi.edge.sources import LiveOpener
from tsunagi.edge.tuple_form import streams_of
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import CONTEXTS, PLAN, RECOVERED, TOPICS, TUPLES
from tsunagi.runtime.messages import VERSION, Assignment, Placement, Plan, Recovered
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.worker.host import ReplicaHost

STATEMENT = "CREATE STREAM orders (machine BIGINT, badge TEXT, price DOUBLE, urgent BOOLEAN)"
START_US = 1_700_000_000_000_000
NODE, EDGE = "gw-1", "edge-1"
_TURNS = 10
"""Turns in a step."""
_WARM_TURNS, _WARM_S = 100, 0.05
"""Short turns before the first event, in which the worker takes over its slot."""


class Given:
    """A `tsunagi.edge.live.LiveFeed` that is given its messages."""

    scheme, has_positions, may_repeat, ended, trouble = "lines", False, False, False, ""

    def __init__(self) -> None:
        self.inbox = Inbox(1)

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        del resume
        self.inbox = inbox

    def close(self) -> None:
        """Do nothing: there is no thread."""


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Return the figures of one run."""
    (directory / "sensors.csv").write_text(f"sensor,edge\nbeat,{EDGE}\n", encoding="utf-8")
    (directory / "events.sql").write_text(STATEMENT, encoding="utf-8")
    settings = Settings(
        state=directory / "run",
        sensors=directory / "sensors.csv",
        steps={"interval_s": options.step_s, "window": 1, "slide": 1},
        slots={"count": 1},
        source={"kind": "lines", "queue": 1_000_000, "disorder_s": 0.0, "time_unit": "us"},
        query={"files": [directory / "events.sql"]},
        recovery={"store": directory / "models"},
    )
    table, clock = read_sensors(settings.sensors), ManualClock(START_US)
    log = MemoryLog(clock, dict.fromkeys(TOPICS, 1) | dict.fromkeys((TUPLES, RECOVERED, CONTEXTS), 1))
    placement = Placement(serial=1, slots=1, slot=pack_sensors([0]), table_sha256=table.digest())
    for key, plan in (
        (b"placement", Plan(version=VERSION, placement=placement)),
        (b"assignment/0", Plan(version=VERSION, assignment=Assignment(slot=0, owner=NODE, serial=1))),
    ):
        log.append(PLAN, 0, key, plan.SerializeToString())
    logger, feed = structlog.wrap_logger(None, processors=[_drop]), Given()
    opener = LiveOpener(
        feed, settings, table, table.of_edge(EDGE), key_first=False, clock=clock, streams=streams_of(settings)
    )
    host = ReplicaHost(settings, NODE, table, log.client(NODE), clock, logger, threads=False)
    edge = EdgeService(settings, EDGE, log.client(EDGE), clock, logger, opener=opener)
    spent = {"edge": 0.0, "slot": 0.0}

    def timed(who: str, act: Callable[[], object]) -> None:
        began = time.process_time()
        act()
        spent[who] += time.process_time() - began

    def turn_edge() -> None:
        while edge.step() == 0.0:
            pass

    def turn_slot() -> None:
        before = -1
        while (now := sum(log.stored(topic, 0).end for topic in (TUPLES, RECOVERED))) != before:
            before = now
            for _ in range(3):
                host.step()

    turns, each = options.steps * _TURNS, round(options.rate * options.step_s / _TURNS)
    number = 0
    with closing(host), closing(edge):
        for turn in range(-_WARM_TURNS, turns + 2 * _TURNS):
            clock.advance(_WARM_S if turn < 0 else options.step_s / _TURNS)
            host.heartbeats.send()
            if turn == 0:  # everybody has begun
                spent.update(edge=0.0, slot=0.0)
            now_us = clock.now_us()
            for place in range(each if 0 <= turn < turns else 0):
                number += 1
                time_us = now_us - (each - 1 - place)
                body = {"stream": "orders", "time": time_us, "machine": number % 97, "badge": f"b{number % 5000}"}
                body |= {"price": number / 4, "urgent": number % 9 == 0}
                feed.inbox.put(Message(json.dumps(body).encode(), "here", now_us, offset=number))
            timed("edge", turn_edge)
            timed("slot", turn_slot)
        unusable = dict(edge.dead_letters.counts)
    records = [Recovered.FromString(record.value or b"") for record in log.records(RECOVERED)]
    sent = sum(message.rows for message in records if message.query)
    sizes = {topic: sum(len(record.value or b"") for record in log.records(topic)) for topic in (TUPLES, RECOVERED)}
    return {
        "edge_us": spent["edge"] / number * 1e6,
        "slot_us": spent["slot"] / number * 1e6,
        "tuples_bytes": round(sizes[TUPLES] / max(1, sent), 1),
        "recovered_bytes": round(sizes[RECOVERED] / max(1, sent), 1),
        "sent": sent,
        "unusable": unusable,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000.0, help="events a second")
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    runs = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as work:
            runs.append(measure(options, Path(work)))
    found: dict[str, Any] = {"bench": "events", "rate": options.rate, "step_s": options.step_s, "steps": options.steps}
    found |= runs[-1] | {"spread": {}}
    for name in ("edge_us", "slot_us"):
        values = sorted(round(run[name], 2) for run in runs)
        found[name], found["spread"][name] = statistics.median(values), [values[0], values[-1]]
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
