"""Kafka Connect's JDBC sink and ours, of the same rows into the same PostgreSQL, in one run.

    python -m tests.bench.sink_connect --rows 300000 --kills 20 --out out/sink-connect.json

Readings stand in `results`. Our sink of the kind `kafka` first writes them as JSON with schema into a topic, which
Connect reads; so this also shows that the real connector takes that form. Then each of the two fills a table of its
own: our sink of the kind `postgres` from `results`, and Debezium's JDBC sink (of Maven Central; upserts by the record's
key) from the topic, in a Connect worker of its own process. Once it runs undisturbed, for rows a second and rows a CPU
second. Once it is killed (SIGKILL) so many times on the way. In the end both tables are compared with what was written.
One JSON object comes out:

    tsunagi, connect        {rows_per_s, rows_per_cpu_s, start_s}: from the first row on, and the time to it
    kills                   by name: {rows, missing, extra, wrong} of the second table

It needs Maven Central. Both have the same two cores, with the broker and the database.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench import maven, outcome
from tests.bench.core.streams import version
from tests.bench.sink import counted, cpu_s, tell, wait_for
from tests.integration.postgres import DATABASE, USER, Postgres
from tests.integration.sinks import SinkWorld
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.installation import CACHE
from tsunagi.jars.java import find_java
from tsunagi.runtime.settings import KafkaSettings

JARS = CACHE / "jars" / "connect"
DEBEZIUM = "3.2.0.Final"
TOPIC = "readings-json"

Start = Callable[[], subprocess.Popen[bytes]]
"""Starts the process that fills a table."""


class Connect:
    """A standalone Connect worker with Debezium's JDBC sink."""

    def __init__(self, work: Path, servers: str, server: Postgres) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._work = work
        self._jars = maven.fetch(
            JARS,
            ("org.apache.kafka", "connect-runtime", version()),
            ("org.apache.kafka", "connect-json", version()),
            ("io.debezium", "debezium-connector-jdbc", DEBEZIUM),
            ("org.postgresql", "postgresql", "42.7.4"),
        )
        worker = {
            "bootstrap.servers": servers,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.storage.file.filename": str(work / "offsets"),
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "consumer.auto.offset.reset": "earliest",
            # Its group waits so long for one that was killed. At the default, 45 s, its kills take 15 minutes.
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "2000",
        }
        sink = {
            "name": "jdbc",
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": "2",
            "topics": TOPIC,
            "connection.url": f"jdbc:postgresql://127.0.0.1:{server.port}/{DATABASE}",
            "connection.username": USER,
            "connection.password": "first",
            "insert.mode": "upsert",
            "primary.key.mode": "record_key",
            "schema.evolution": "none",  # its two tasks would make the table at one time, and one of them fails
            "table.name.format": "connect",
            "collection.name.format": "connect",
        }
        for name, table in (("worker", worker), ("sink", sink)):
            text = "".join(f"{key}={value}\n" for key, value in table.items())
            (work / f"{name}.properties").write_text(text, encoding="utf-8")

    def start(self) -> subprocess.Popen[bytes]:
        words = [find_java(), "-Xmx1g", "-cp", f"{self._jars}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        files = [str(self._work / "worker.properties"), str(self._work / "sink.properties")]
        with (self._work / "connect.log").open("ab") as output:
            return subprocess.Popen([*words, *files], stdout=output, stderr=output)


def drain(start: Start, server: Postgres, table: str, rows: int) -> dict[str, float]:
    """Let a process fill a table; return how fast it was."""
    began = time.monotonic()
    child = start()
    process = psutil.Process(child.pid)
    wait_for(server, 1, table)
    first_s, before, used = time.monotonic(), counted(server, table), cpu_s(process)
    wait_for(server, rows, table)
    took_s, cpu = time.monotonic() - first_s, cpu_s(process) - used
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    done = rows - before
    found = {
        "rows_per_s": round(done / took_s),
        "rows_per_cpu_s": round(done / cpu),
        "start_s": round(first_s - began, 1),
    }
    tell(f"{table}: {found}")
    return found


def killed(start: Start, server: Postgres, table: str, rows: int, kills: int) -> None:
    """Let a process fill a table, and kill it so many times, each time when some more rows are there."""
    child = start()
    for number in range(1, kills + 1):
        wait_for(server, number * rows // (kills + 2), table)
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child = start()
        if number % 5 == 0:
            tell(f"{table}: {number} kills")
    wait_for(server, rows, table)
    time.sleep(2.0)
    child.send_signal(signal.SIGKILL)
    child.wait(30)


def compared(world: SinkWorld, server: Postgres, table: str) -> dict[str, int]:
    """Compare a table with what was written."""
    with server.session() as session:
        found = {
            (time, sensor): (value, quality)
            for time, sensor, value, quality in session.execute(f"SELECT time, sensor, value, quality FROM {table}")
        }
        count = counted(server, table)
    wanted = {key: (row.value, row.quality) for key, row in world.rows.items()}
    return {
        "rows": count,
        "missing": len(wanted.keys() - found.keys()),
        "extra": count - len(wanted.keys() & found.keys()),
        "wrong": sum(found[key] != row for key, row in wanted.items() if key in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--work", type=Path, default=Path("out/bench-sink-connect"))
    parser.add_argument("--out", type=Path, default=Path("out/sink-connect.json"))
    given = parser.parse_args()
    outcome.fresh(given.work)
    broker = Broker(given.work / "broker", free_port())
    broker.start()
    broker.wait_ready()
    server = Postgres(given.work.resolve() / "postgres")
    server.start()
    os.environ["PGPASSWORD"] = "first"
    sinks: list[dict[str, Any]] = [
        {"name": "history", "kind": "postgres", "postgres": server.settings()},
        {"name": "json", "kind": "kafka", "kafka": {"topic": TOPIC}},
    ]
    world = SinkWorld(given.work / "world", KafkaSettings(servers=broker.servers), *sinks)
    connect = Connect(given.work / "connect", broker.servers, server)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for made in admin.create_topics([NewTopic(TOPIC, 2, 1), NewTopic(f"{TOPIC}-corrections", 1, 1)]).values():
        made.result(timeout=60)
    try:
        while len(world.rows) < given.rows:
            world.write(200, truths=False, repeats=False)
        rows = len(world.rows)
        writer = world.start("json")
        while _written(broker.servers) < rows:
            time.sleep(0.5)
        writer.send_signal(signal.SIGTERM)
        writer.wait(60)
        found: dict[str, Any] = {"bench": "sink_connect", "rows": rows, "kills": {}}
        starts: dict[str, tuple[str, Start]] = {
            "tsunagi": ("readings", lambda: world.start("history")),
            "connect": ("connect", connect.start),
        }
        for name, (table, start) in starts.items():
            if name == "connect":
                _like(server)
            found[name] = drain(start, server, table, rows)
            _again(server, broker, table)
            if name == "connect":
                _like(server)
            killed(start, server, table, rows, given.kills)
            found["kills"][name] = compared(world, server, table)
            tell(f"{name}: {found['kills'][name]}")
        outcome.write(found, given.out)
        tell(str(found))
    finally:
        world.close()
        server.stop()
        broker.stop()


def _written(servers: str) -> int:
    """Return how many records the topic has."""
    client = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    try:
        return sum(client.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)[1] for number in range(2))
    finally:
        client.close()


def _like(server: Postgres) -> None:
    """Make Connect's table like ours."""
    with server.session() as session:
        session.execute("CREATE TABLE connect (LIKE readings INCLUDING ALL)")


def _again(server: Postgres, broker: Broker, table: str) -> None:
    """Have both begin from nothing."""
    with server.session() as session:
        session.execute(f"DROP TABLE IF EXISTS {table}")
        session.execute("DROP TABLE IF EXISTS tsunagi_positions")
    admin = AdminClient({"bootstrap.servers": broker.servers})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # a group that was killed counts as living for a while
        groups = [item.group_id for item in admin.list_consumer_groups().result(timeout=30).valid]
        wanted = [group for group in groups if group.startswith("connect")]
        if not wanted:
            return
        try:
            for done in admin.delete_consumer_groups(wanted).values():
                done.result(timeout=30)
        except Exception:  # noqa: BLE001 - it is not empty yet
            time.sleep(2.0)


if __name__ == "__main__":
    main()
