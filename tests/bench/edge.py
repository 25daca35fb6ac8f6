"""What a live edge costs its machine: memory, and CPU for a reading.

    python -m tests.bench.edge --sensors 5000 --out out/edge.json

A Kafka broker, Mosquitto and one `tsunagi edge run` run as processes of this machine. A publisher sends a JSON object
with time for each sensor every `--interval` seconds, spread evenly; a step is as long as the interval. One JSON object
comes out:

    rss_mb, pss_mb, uss_mb   memory of the edge's process at the end, in 10^6 bytes (USS: its own pages alone)
    idle_percent             CPU of one core while nothing is published, over `--idle` seconds
    cpu_percent              the same while readings come, over `--seconds`
    reading_us               microseconds of CPU for a reading, without what the idle edge takes
    readings, taken          readings published, and readings that the edge counts in that time
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench import outcome
from tests.integration.edges import EdgeProcesses, line, until
from tests.integration.test_edge_mqtt import Mosquitto
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.settings import KafkaSettings

_BATCHES = 20
"""Messages are published in this many bursts an interval."""
_INFLIGHT = 2000
"""Messages of the publisher that the broker need not have acknowledged: with paho's 20 it would be the slowest part."""
_WARM_S = 5.0
"""Seconds that the edge is given before each measurement."""


class Publisher:
    """Publishes with quality of service 1, and waits for few acknowledgements."""

    def __init__(self, port: int) -> None:
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.max_inflight_messages_set(_INFLIGHT)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def send(self, sensor: str, time_us: int, value: float) -> None:
        """Publish a reading."""
        self._client.publish(f"plant/a/{sensor}", line(sensor, time_us, value), qos=1)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def taken(port: int) -> int:
    """Return how many readings the edge says that it has taken."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith("tsunagi_edge_rows_read_total{")))


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Return the figures of one run."""
    broker, mosquitto, port = Broker(directory / "kafka", free_port()), Mosquitto(directory), free_port()
    broker.start()
    mosquitto.start()
    world: EdgeProcesses | None = None
    try:
        broker.wait_ready()
        world = EdgeProcesses(
            directory,
            KafkaSettings(servers=broker.servers, max_message_bytes=8_000_000),
            [f"s{number},a" for number in range(options.sensors)],
            2,
            TSUNAGI_STEPS__INTERVAL_S=str(options.interval),
            TSUNAGI_STEPS__WINDOW="1",
            TSUNAGI_STEPS__SLIDE="1",
            TSUNAGI_SOURCE__KIND="mqtt",
            TSUNAGI_SOURCE__MQTT__PORT=str(mosquitto.port),
            TSUNAGI_SOURCE__TIME_UNIT="us",
            TSUNAGI_METRICS__PORT=str(port),
        )
        world.prepare()
        edge = psutil.Process(world.start().pid)
        until(lambda: (directory / "a.log").read_text().count("source connected") == 1)
        with closing(Publisher(mosquitto.port)) as publisher:
            _publish(publisher, options, _WARM_S)  # the first step begins with a reading
            time.sleep(_WARM_S)
            idle_s = _cpu_s(edge, lambda: time.sleep(options.idle))
            _publish(publisher, options, _WARM_S)
            before = taken(port)
            readings = 0

            def load() -> None:
                nonlocal readings
                readings = _publish(publisher, options, options.seconds)

            began_s = time.monotonic()
            loaded_s = _cpu_s(edge, load)
            lasted_s = time.monotonic() - began_s
            memory = edge.memory_full_info()
            found = taken(port) - before
    finally:
        if world is not None:
            world.close()
        mosquitto.kill()
        broker.stop()
    idle = idle_s / options.idle
    return {
        "bench": "edge",
        "sensors": options.sensors,
        "interval_s": options.interval,
        "seconds": round(lasted_s, 1),
        "load_average": os.getloadavg()[0],
        "readings": readings,
        "taken": found,
        "rss_mb": round(memory.rss / 1e6, 1),
        "pss_mb": round(memory.pss / 1e6, 1),
        "uss_mb": round(memory.uss / 1e6, 1),
        "idle_percent": round(100 * idle, 2),
        "cpu_percent": round(100 * loaded_s / lasted_s, 2),
        "reading_us": round(1e6 * (loaded_s - idle * lasted_s) / max(found, 1), 1),
    }


def _cpu_s(process: psutil.Process, act: Callable[[], object]) -> float:
    """Return the seconds of CPU that a process takes while something happens."""
    before = process.cpu_times()
    act()
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def _publish(publisher: Publisher, options: argparse.Namespace, seconds: float) -> int:
    """Publish a reading of each sensor an interval, for so long; return how many."""
    began_s, sent, burst = time.monotonic(), 0, 0
    each = max(1, options.sensors // _BATCHES)
    pause_s = options.interval * each / options.sensors
    while (due_s := began_s + burst * pause_s) < began_s + seconds:
        time.sleep(max(0.0, due_s - time.monotonic()))
        for number in range(each):
            publisher.send(f"s{(sent + number) % options.sensors}", time.time_ns() // 1000, float(burst))
        sent, burst = sent + each, burst + 1
    return sent


def main() -> int:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=37, help="sensors of the edge [37]")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two readings of a sensor [1]")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement [30]")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without readings [20]")
    parser.add_argument("--out", type=Path, default=Path("out/edge.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(options, Path(directory))
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
