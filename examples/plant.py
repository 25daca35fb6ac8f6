"""A plant on MQTT, to try Tsunagi with: 37 sensors in three halls, which say what they measure each in its own way.

The series move together: each follows the load of its hall and that of the whole plant. So what a hall does not send
can be estimated from the others.

    python examples/plant.py --port 1883
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

HALLS = ("Halle Süd", "north-2", "Lager.3")
"""The halls, each with a gateway of its own: what fails together."""
MACHINES = 4
"""Machines of a hall. Each has three sensors, in one message; besides, the third hall has a door."""
LOAD_S = 2.0
"""Time in which the load of a hall changes, in seconds."""
OWN = 0.15
"""Standard deviation of what a sensor does for itself, beside 1 for the load that it shares."""


class Plant:
    """The series of the plant.

    Args:
        interval_s: seconds between two readings of a sensor.
        seed: of the random generator; the same seed gives the same series.
    """

    def __init__(self, interval_s: float, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._keep = math.exp(-interval_s / LOAD_S)
        self._load = self._rng.normal(size=1 + len(HALLS))

    def messages(self, now_s: float) -> Iterator[tuple[str, str, dict[str, float]]]:
        """Yield (topic, payload, value by the name of the series) of each message of one moment."""
        fresh = self._rng.normal(size=len(self._load))
        self._load = self._keep * self._load + math.sqrt(1 - self._keep**2) * fresh
        for hall, name in enumerate(HALLS):
            shared = 0.99 * self._load[0] + 0.1 * self._load[1 + hall]
            for machine in range(MACHINES):
                found = np.round(shared + OWN * self._rng.normal(size=3), 4)
                warm, turns, flow = (60 + 5 * found[0], 900 + 40 * found[1], 2 + 0.2 * found[2])
                values = {"temperature": round(warm, 4), "rpm": round(turns, 3), "flow": round(flow, 5)}
                topic = f"plant/{name}/press{machine + 1}"
                yield self._said(hall, topic, values, now_s)
        light = float(shared + OWN * self._rng.normal() > 0)
        yield f"plant/{HALLS[2]}/gate/light", "ON" if light else "OFF", {"light": light}

    @staticmethod
    def _said(hall: int, topic: str, values: dict[str, float], now_s: float) -> tuple[str, str, dict[str, float]]:
        """Return a machine's message as the gateway of its hall says it."""
        if hall == 0:  # flat, milliseconds
            return topic, json.dumps(values | {"ts": round(now_s * 1000)}), values
        if hall == 1:  # as Telegraf does
            inner = {"fields": values, "name": "press", "tags": {"unit": topic[-1]}, "timestamp": now_s}
            return topic, json.dumps({"metrics": [inner]}), values
        moment = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
        texts = {name: f"{value}" for name, value in values.items()}
        return topic, json.dumps({"state": texts, "last_seen": moment}), values


def main() -> int:
    """Publish until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="localhost", help="the MQTT broker")
    parser.add_argument("--port", type=int, default=1883, help="its port")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two readings of a sensor")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    parser.add_argument("--truth", type=Path, help="CSV file to which every reading is written as well")
    given = parser.parse_args()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect(given.host, given.port)
    client.loop_start()
    plant = Plant(given.interval)
    end_s = time.monotonic() + given.seconds
    with given.truth.open("w", newline="") if given.truth else nullcontext() as file:
        rows = None if file is None else csv.writer(file)
        while time.monotonic() < end_s:
            now_s = math.ceil(time.time() / given.interval) * given.interval
            time.sleep(max(0.0, now_s - time.time()))
            for topic, payload, values in plant.messages(now_s):
                client.publish(topic, payload, qos=1)
                if rows is not None:
                    rows.writerows((f"{now_s:.3f}", topic, name, value) for name, value in values.items())
    client.disconnect()
    client.loop_stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
