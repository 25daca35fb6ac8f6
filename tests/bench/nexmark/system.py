"""NEXMark on the running system: how many events a second does the job take off a real broker, with each query?

    python -m tests.bench.nexmark.system --events 2000000 --out out/nexmark-system.json

Starts a broker and the job as processes of this machine, below `--work`, and writes `recovered` as the owners of slots
would: of each step the events of both slots' edges, and then the values (of which there are none). All waits in the log
before the job starts. One JSON object comes out, with these of each query:

    events_per_s   from the first tenth of the log to its end
    rows           that came out
    wrong          rows that a database on the same events does not give, and those that it gives besides
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.nexmark.events import BEGIN_US, KINDS, Events, database_of, generate
from tests.bench.nexmark.queries import CQL, STREAMS, sql_of
from tests.bench.stream import LOOK_S, SLOTS, Acknowledged, family_cpu_s
from tests.spark.driver import Driver
from tsunagi.broker.broker import Broker
from tsunagi.query.results import QueryResults
from tsunagi.query.values import WIRE, Kind
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import PLAN, RECOVERED
from tsunagi.runtime.messages import VERSION, Placement, Plan, Recovered, TypedColumn
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load

PER_S = 10
"""Steps a second."""
STEP_US = 1_000_000 // PER_S
DRAIN_S = 600.0

_HOT = """SELECT auction, COUNT(*) AS n, SUM(price) AS total, MAX(price) AS top
  FROM bid [RANGE 10 SECONDS SLIDE 2 SECONDS] GROUP BY auction HAVING COUNT(*) > 40"""
OF_OURS = {
    "hot": f"CREATE QUERY hot AS {_HOT}",
    "hot_apart": f"CREATE QUERY hot_apart AS {_HOT} ORDER WITHIN auction",
}
"""Two queries of ours, which differ in one thing: the second can be computed apart by the auction (its OPK)."""
_SQL_HOT = f"""
  SELECT i.t, b.auction, count(*), sum(b.price), max(b.price)
  FROM (SELECT unnest(range($first // {2 * PER_S} + 1, $last // {2 * PER_S} + 1)) * {2 * PER_S} AS t) i
  JOIN bid b ON b.step > i.t - {10 * PER_S} AND b.step <= i.t GROUP BY ALL HAVING count(*) > 40"""


CONFIG = """\
state = "{work}/run"
sensors = "{work}/sensors.csv"
[kafka]
servers = "127.0.0.1:{port}"
prefix = "{query}."
[slots]
count = 2
[steps]
interval_s = 0.1
window = 1
slide = 1
[spark]
checkpoint = "{work}/checkpoint-{query}"
max_offsets = {batch}
[recovery]
store = "{work}/models"
[query]
files = ["{work}/{query}.sql"]
"""


def prepare(work: Path, query: str, options: argparse.Namespace) -> Settings:
    """Write what the job reads; return the settings."""
    (work / "sensors.csv").write_text("sensor,edge,group\nbeat-1,edge-1,g1\nbeat-2,edge-2,g2\n", encoding="utf-8")
    (work / f"{query}.sql").write_text(f"{STREAMS.replace(' KEY', '')};{(CQL | OF_OURS)[query]}", encoding="utf-8")
    config = work / f"{query}.toml"
    config.write_text(CONFIG.format(work=work, port=options.port, query=query, batch=options.batch), encoding="utf-8")
    os.environ[CONFIG_VARIABLE] = str(config)
    return load(config)


def encoded(events: Mapping[str, Events], low: int, high: int, slot: int) -> list[tuple[str, int, bytes]]:
    """Return (stream, rows, columns as bytes) of the events of a slot in the steps low < step <= high."""
    found = []
    for stream, some in events.items():
        step = -(-some.time_us // STEP_US)
        part = np.arange(*np.searchsorted(step, (low, high), side="right"))[slot::SLOTS]
        if not len(part):
            continue
        columns = [TypedColumn(name="time", kind="TIMESTAMP", value=some.time_us[part].astype("<i8").tobytes())]
        for name, kind in KINDS[stream].items():
            values, texts = some.columns[name][part], []
            if kind is Kind.TEXT:
                used, values = np.unique(values, return_inverse=True)
                texts = [some.pools[name][code] for code in used.tolist()]
            columns.append(
                TypedColumn(name=name, kind=kind.value, value=values.astype(WIRE[kind]).tobytes(), text=texts)
            )
        found.append((stream, len(part), Recovered(column=columns).SerializeToString()))
    return found


def write(log: KafkaLog, settings: Settings, events: Mapping[str, Events], steps: int) -> int:
    """Write all events; return the number of records."""
    table, first, records = read_sensors(settings.sensors), BEGIN_US // STEP_US, 0
    producer = log.producer()
    placement = Placement(
        serial=1, slots=SLOTS, slot=np.arange(2, dtype="<u4").tobytes(), table_sha256=table.digest(len(table))
    )
    producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
    for step in range(first + 1, first + steps + 1):
        for slot in range(SLOTS):
            parts = [*encoded(events, step - 1, step, slot), ("", 0, b"")]
            for index, (stream, rows, columns) in enumerate(parts):
                head = Recovered(
                    version=VERSION,
                    slot=slot,
                    generation=1,
                    offset=step,
                    index=index,
                    epoch=1,
                    step=step,
                    event_time_us=step * STEP_US,
                    appended_us=time.time_ns() // 1000,
                    query=stream,
                    rows=rows,
                )
                key = pack_key(1, slot, Name(step, index))
                producer.send(RECOVERED, slot, key, head.SerializeToString() + columns)
                records += 1
        producer.poll(0)
    if producer.flush(60.0):
        raise RuntimeError("the broker did not take what was written")
    return records


def drained(log: KafkaLog, driver: Driver, records: int) -> tuple[float, float, float]:
    """Let the job work off the log; return (share of it that was measured, wall seconds, CPU seconds)."""
    acks, marks = Acknowledged(log), list[tuple[int, float, float]]()
    deadline = time.monotonic() + DRAIN_S
    try:
        while len(marks) < 2:
            out = acks.read()
            if out >= records or (not marks and out >= records / 10):
                marks.append((out, time.monotonic(), family_cpu_s(driver)))
            if driver.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the job has acknowledged {out} of {records} records; see {driver.log}")
            time.sleep(LOOK_S)
        driver.stop()
    finally:
        acks.close()
    (begin, begun, before), (end, ended, after) = marks
    return (end - begin) / records, ended - begun, after - before


def plain(value: object) -> object:
    """Return a value as the database has it: times are microseconds."""
    return round(value.timestamp() * 1e6) if isinstance(value, datetime) else value


def measure(log: KafkaLog, settings: Settings, query: str, events: Mapping[str, Events], steps: int) -> dict[str, Any]:
    """Return what a query does."""
    records = write(log, settings, events, steps)
    driver = Driver(Path(os.environ[CONFIG_VARIABLE]), Path(settings.state).parent / f"{query}.log")
    try:
        share, wall_s, cpu_s = drained(log, driver, records)
    finally:
        driver.close()
    count = share * sum(len(some.time_us) for some in events.values())
    with QueryResults(log, settings, [query]) as results:
        blocks = list(results.blocks())
    since = next(block.step for block in blocks if block.definition)
    first = BEGIN_US // STEP_US
    found = Counter((row.step, *map(plain, row.values())) for block in blocks for row in block.rows)
    sql = (sql_of(PER_S) | dict.fromkeys(OF_OURS, _SQL_HOT))[query]
    given = {key: value for key, value in {"first": since, "last": first + steps}.items() if f"${key}" in sql}
    wanted = Counter(row for row in database_of(events, STEP_US).execute(sql, given).fetchall() if row[0] > since)
    return {
        "events_per_s": round(count / wall_s),
        "cpu_us": round(cpu_s / count * 1e6, 2),
        "rows": found.total(),
        "wrong": (found - wanted).total() + (wanted - found).total(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rate", type=float, default=20_000.0, help="events a second of event time")
    parser.add_argument("--batch", type=int, default=400, help="[spark] max_offsets")
    parser.add_argument("--queries", nargs="*", default=[*CQL, *OF_OURS])
    parser.add_argument("--port", type=int, default=29694)
    parser.add_argument("--work", type=Path, default=Path("out/nexmark"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    work = options.work.resolve()
    if (work / "kafka").exists():
        Broker(work / "kafka", options.port).stop()
    outcome.fresh(work)
    seconds = options.events / options.rate
    events = generate(options.events, seconds, seed=1)
    found: dict[str, Any] = {"bench": "nexmark-system", "events": options.events, "rate": options.rate}
    broker = Broker(work / "kafka", options.port)
    try:
        broker.start()
        broker.wait_ready()
        for query in options.queries:
            settings = prepare(work, query, options)
            log = KafkaLog(settings.kafka, client_id="bench")
            log.ensure_topics(settings)
            found[query] = measure(log, settings, query, events, round(seconds * PER_S))
            sys.stderr.write(f"{query}: {json.dumps(found[query])}\n")
    finally:
        broker.stop()
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
