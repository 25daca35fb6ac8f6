"""What kills leave in InfluxDB, and what a subscriber of Mosquitto has got, at thousands of rows a second.

    python -m tests.bench.sink_kills --kind influxdb --out out/sink-influxdb.json
    python -m tests.bench.sink_kills --kind mqtt --out out/sink-mqtt.json

Rows come at `--rate`. The sink and its target are killed `--kills` times each (SIGKILL, in turn), each time once rows
come again. Then the password of the target is another one for ten seconds; with `--disk`, a directory on a small file
system of its own that the target gets, the disk is full for ten seconds; the broker of Kafka is away for ten seconds.
In the end all rows are compared with what was written. One JSON object comes out:

    kills, rows, seconds       of each kind; rows written; time from the first row until the target had all
    faults                     what the sink said while the password was another, and while the disk was full
    ended                      whether the sink ended after the broker's return, and was started again
    missing, extra, wrong      of the rows that the target has
    again                      mqtt: messages that came more than once, all with the same bytes
    met                        whether nothing is missing, extra or wrong

Mosquitto acknowledges messages before they are on its disk. So one that is killed may lose what the subscriber has not
got yet, whatever the sink does; `missing` is what it has lost. PostgreSQL's part is in `tests.bench.sink`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import outcome
from tests.bench.sink import AWAY_S, FILLER, PATIENCE_S, compared, full, tell
from tests.integration.influxdb import DATABASE, USER, Influx
from tests.integration.receivers import Subscriber
from tests.integration.sinks import SENSORS, SinkWorld, moment, query_block
from tests.integration.test_edge_mqtt import Mosquitto
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.settings import KafkaSettings

FIRST, SECOND = "seven words", "eight words"
"""The password, and the one after it."""
QUIET_S = 20.0
"""When nothing has come for so long, nothing more will."""


class Target(ABC):
    """A target that is killed, what it has, and what it should have."""

    sink: dict[str, Any]
    world: SinkWorld

    def __init__(self, work: Path) -> None:
        self.secret = work / "secret"
        self.secret.write_text(FIRST, encoding="utf-8")

    @abstractmethod
    def write(self) -> None:
        """Append a step of `SENSORS` rows."""

    @abstractmethod
    def restart(self) -> None:
        """Kill the target and start it again."""

    @abstractmethod
    def change(self) -> None:
        """Have the target want the password `SECOND` from now on."""

    @abstractmethod
    def freed(self) -> None:
        """Do what the target needs once its disk has room again."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows it has."""

    @abstractmethod
    def expected(self) -> int:
        """Return how many it should have."""

    @abstractmethod
    def judged(self) -> dict[str, int]:
        """Compare its rows with what was written."""

    @abstractmethod
    def close(self) -> None:
        """Stop it."""


class InfluxTarget(Target):
    """Readings with their truths."""

    def __init__(self, work: Path, data: Path) -> None:
        super().__init__(work)
        self._server = Influx(data / "influxdb", FIRST)
        self._server.start()
        wanted = {"url": self._server.url, "database": DATABASE, "user": USER, "secret_file": str(self.secret)}
        self.sink = {"name": "out", "kind": "influxdb", "influxdb": wanted}

    def write(self) -> None:
        self.world.write(1)

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def change(self) -> None:
        self._server.change(SECOND)

    def freed(self) -> None:
        self.restart()  # InfluxDB 1 goes on refusing until it is started again

    def count(self) -> int:
        found = self._server.ask("SELECT count(value) FROM readings")
        return int(found[0]["count"]) if found else 0

    def expected(self) -> int:
        return len(self.world.rows)

    def judged(self) -> dict[str, int]:
        return compared(self._server.readings(), self.world)

    def close(self) -> None:
        self._server.close()


class MqttTarget(Target):
    """Rows of a query, and a subscriber that is there from the first one on."""

    def __init__(self, work: Path, data: Path) -> None:
        super().__init__(work)
        self._users = work / "users"
        self._users.touch(0o600)
        self._set("plant", FIRST)
        self._set("reader", FIRST)
        # Without the last limit the broker holds back what a subscriber has not acknowledged.
        self._broker = Mosquitto(
            data, "allow_anonymous false", f"password_file {self._users}", "max_inflight_messages 0"
        )
        self._broker.start()
        self._subscriber = Subscriber(self._broker.port, "tsunagi/#", ("reader", FIRST))
        self._written: dict[str, float] = {}
        wanted = {"port": self._broker.port, "username": "plant", "password_file": str(self.secret)}
        self.sink = {"name": "out", "kind": "mqtt", "query": "alarms", "mqtt": wanted}

    def _set(self, user: str, password: str) -> None:
        subprocess.run(["mosquitto_passwd", "-b", str(self._users), user, password], check=True)

    def write(self) -> None:
        step = self.world.step
        levels = [step * 0.5 + row for row in range(SENSORS)]
        columns: list[tuple[str, str, Sequence[Any]]] = [("level", "DOUBLE", levels)]
        self.world.append(query_block("alarms", step, columns, run=1))
        self.world.flush()
        self.world.step += 1
        self._written |= {f"alarms/{moment(step).isoformat()}/1//{row}": level for row, level in enumerate(levels)}

    def restart(self) -> None:
        self._broker.kill()
        self._broker.start()

    def change(self) -> None:
        self._set("plant", SECOND)
        self.restart()

    def freed(self) -> None:
        pass  # it needs nothing

    def count(self) -> int:
        return len(self._subscriber.names())

    def expected(self) -> int:
        return len(self._written)

    def judged(self) -> dict[str, int]:
        messages = [message for _, message in list(self._subscriber.messages)]
        times = Counter(message["name"] for message in messages)
        return {
            "missing": len(self._written.keys() - times.keys()),
            "extra": len(times.keys() - self._written.keys()),
            "wrong": sum(message["row"]["level"] != self._written.get(message["name"]) for message in messages),
            "again": sum(count - 1 for count in times.values()),
        }

    def close(self) -> None:
        self._subscriber.close()
        self._broker.kill()


TARGETS = {"influxdb": InfluxTarget, "mqtt": MqttTarget}


def kills(target: Target, broker: Broker, count: int, rate: float, disk: Path | None) -> dict[str, Any]:
    """Return what is wrong after so many kills of both, and after outages of all kinds."""
    sink, stop = target.world.start("out"), threading.Event()
    began = time.monotonic()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            time.sleep(max(0.0, began + number * SENSORS / rate - time.monotonic()))
            target.write()
            number += 1

    writer = threading.Thread(target=keep_writing, daemon=True)
    writer.start()
    done = {"sink": 0, "target": 0}
    for number in range(2 * count):
        _goes_on(target)
        if number % 2:
            target.restart()
            done["target"] += 1
        else:
            sink.send_signal(signal.SIGKILL)
            sink.wait(10)
            sink = target.world.start("out")
            done["sink"] += 1
        if number % 10 == 9:
            tell(f"{number + 1} of {2 * count} kills, {target.expected()} rows written, {target.count()} there")
    faults = {}
    target.change()
    time.sleep(AWAY_S)
    faults["password"] = target.world.fault("sink-out")
    target.secret.write_text(SECOND, encoding="utf-8")
    _goes_on(target)
    if disk is not None:
        full(disk)
        time.sleep(AWAY_S)
        faults["disk"] = target.world.fault("sink-out")
        (disk / FILLER).unlink()
        target.freed()
        _goes_on(target)
    stop.set()
    writer.join()
    broker.kill()
    time.sleep(AWAY_S)
    broker.start()
    broker.wait_ready()
    target.write()
    most, grown, ended = target.count(), time.monotonic(), False
    while most < target.expected() and time.monotonic() - grown < QUIET_S:
        time.sleep(0.5)
        if sink.poll() is not None:  # Kafka may take it for its own double; whoever looks after processes starts it
            sink, ended = target.world.start("out"), True
        if (there := target.count()) > most:
            most, grown = there, time.monotonic()
    seconds = grown - began
    deadline = time.monotonic() + QUIET_S
    while any((found := target.judged())[name] for name in ("missing", "extra", "wrong")):  # truths may be to come
        if time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return {
        "kills": done,
        "rows": target.expected(),
        "seconds": round(seconds, 1),
        "faults": faults,
        "ended": ended,
    } | found


def _goes_on(target: Target) -> None:
    """Wait until rows come."""
    before, asked = target.count(), time.monotonic()
    while target.count() <= before:
        if time.monotonic() - asked > PATIENCE_S:
            raise SystemExit(f"nothing comes: {target.world.said('sink-out')[-2000:]}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(TARGETS), default="influxdb")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--work", type=Path, default=Path("out/bench-sink-kills"))
    parser.add_argument("--out", type=Path, default=Path("out/sink-kills.json"))
    given = parser.parse_args()
    outcome.fresh(given.work)
    broker = Broker(given.work / "broker", free_port())
    broker.start()
    broker.wait_ready()
    target: Target = TARGETS[given.kind](given.work.resolve(), given.disk or given.work.resolve())
    target.world = SinkWorld(given.work / "world", KafkaSettings(servers=broker.servers), target.sink)
    try:
        found = {"bench": "sink_kills", "kind": given.kind} | kills(target, broker, given.kills, given.rate, given.disk)
        found["met"] = not (found["missing"] or found["extra"] or found["wrong"])
        outcome.write(found, given.out)
        tell(str(found))
    finally:
        target.world.close()
        target.close()
        broker.stop()


if __name__ == "__main__":
    main()
