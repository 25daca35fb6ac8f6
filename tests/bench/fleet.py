"""A fleet of many edges: one process plays them all on the real protocol, before a real broker, workers and Spark.

    python -m tests.bench.fleet --sensors 5000 --edges 100 --seconds 180 --out out/fleet.json

It goes the way of a new user: `tsunagi init` on the messages of the devices at a real MQTT broker, then `tsunagi up`
with all but the edges, which this process plays: batches and heartbeats as edges send them, without windows and
spools. The learner makes a model meanwhile. One edge falls silent for a while. With `--kills` owners of
slots are killed, one after the other, and started again. With `--raise-slots` the system gets more slots in the middle
of the run. With `--viewers` so many look at the console, one of them with a real browser. One JSON object comes out:
how long each part took, what came out late, takeovers that nobody caused, how long the slots of the killed were silent,
CPU and memory of each kind of process, and the results compared with what was sent, by a reader of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paho.mqtt.client as paho
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench import outcome
from tests.bench.fleet_judge import false_takeovers, judge_results, silences
from tests.bench.system import say, spread
from tests.bench.viewers import Viewers
from tests.integration.test_edge_mqtt import Mosquitto
from tsunagi.audit.evidence import Kill
from tsunagi.broker.checks import free_port
from tsunagi.demo import faults
from tsunagi.local.fleet import Fleet
from tsunagi.local.recovery import model_in_force
from tsunagi.local.slots import raise_slots
from tsunagi.local.up import System
from tsunagi.runtime.beat_routes import CellRoutes
from tsunagi.runtime.cells import read_cells
from tsunagi.runtime.columns import Floats, Sensors, pack_floats, pack_sensors
from tsunagi.runtime.log import ACKS, CONTEXTS, HEARTBEATS, PLAN, RECOVERED, RESULTS, TUPLES, Log
from tsunagi.runtime.messages import VERSION, Heartbeat, LogRecord, TupleBatch
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.placement import PlacementReader
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

VALUES = 10
"""Values of a device's message."""
LISTEN_S = 20.0
OUT = 0.1, 0.2
"""The part of the run in which one edge is silent. The first owner is killed later, at a quarter of it."""
RAISED = 0.5
"""The part of the run after which the system gets more slots."""
DOWN_S = 5.0
"""So long after its kill a worker is started again."""
DRAIN_S = 5.0
"""Wait before the results are judged: the last steps are on their way."""
OWN = 0.3
"""Standard deviation of what a sensor does for itself, beside 1 for the load that all share."""

DATA, CONTROL = (TUPLES, RECOVERED, RESULTS), (HEARTBEATS, ACKS, CONTEXTS, PLAN)
COUNTED = DATA + CONTROL
"""Topics whose records and bytes are counted: by tuple, and by second."""


class Series:
    """What the sensors measure: all follow one load, which changes within some steps."""

    def __init__(self, sensors: int) -> None:
        self._rng = np.random.default_rng(1)
        self._sensors = sensors
        self._load = 0.0

    def next(self) -> Floats:
        """Return the next value of each sensor, float64[sensors]."""
        self._load = 0.6 * self._load + 0.8 * self._rng.normal()
        found: Floats = np.round(50 + 5 * (self._load + OWN * self._rng.normal(size=self._sensors)), 3)
        return found


class Devices(threading.Thread):
    """Publishes at an MQTT broker, once a second, what devices say: ten values in a message."""

    def __init__(self, port: int, sensors: int, edges: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._series = Series(sensors)
        self._topics = [f"plant/e{n * VALUES * edges // sensors}/d{n}" for n in range(sensors // VALUES)]
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._client.connect("127.0.0.1", port)

    def run(self) -> None:
        self._client.loop_start()
        while not self.ended.wait(1.0 - time.time() % 1.0):
            values = self._series.next().reshape(-1, VALUES)
            now_ms = round(time.time() * 1000)
            for topic, row in zip(self._topics, values.tolist(), strict=True):
                body = {f"v{n}": value for n, value in enumerate(row)}
                self._client.publish(topic, json.dumps(body | {"ts": now_ms}))
        self._client.disconnect()
        self._client.loop_stop()


class Part(NamedTuple):
    """What an edge sends to a slot: the ids of sensors, int[n], and the same as they stand in a batch."""

    edge: str
    slot: int
    ids: Any
    packed: bytes


class Edges(threading.Thread):
    """Plays all edges: a batch a step, edge and slot, and a heartbeat of each as often as edges send them."""

    def __init__(self, settings: Settings, log: Log, table: SensorTable) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.silent = ""
        self.first_s = 0.0
        self.tuples = 0
        self.late_s = 0.0  # how late the latest step was sent: whether this process keeps up
        self.sent: dict[int, Floats] = {}  # by step, NaN where an edge was silent
        self._settings = settings
        self._log = log
        self._series = Series(len(table))
        self._table = table
        self._placements = PlacementReader(log)
        self._serial = 0
        self._step = 0
        self._follow_placement()
        self.records_a_step = len(self._after)
        cells, interval_s = read_cells(log), settings.standby.edge_heartbeat_s
        self._routes = {edge: CellRoutes(cells, interval_s) for edge in table.edges}
        self._incarnation = time.time_ns()

    def _follow_placement(self) -> None:
        """Send sensors where the placement says, as edges do: behind the boundary of a move to other slots."""
        placement = self._placements.latest()
        assert placement is not None
        if placement.serial != self._serial:
            self._serial, slots = placement.serial, SensorSlots.of(placement)
            before, after = slots.sending
            self._before, self._after, self._from_us = self._parts(before), self._parts(after), slots.from_us
            self._slots: defaultdict[str, set[int]] = defaultdict(set)
            for part in (*self._before, *self._after):
                self._slots[part.edge].add(part.slot)

    def _parts(self, slot_of: Sensors) -> list[Part]:
        parts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for sensor in self._table.sensors:
            parts[sensor.edge, int(slot_of[sensor.id])].append(sensor.id)
        return [Part(edge, slot, np.array(ids), pack_sensors(ids)) for (edge, slot), ids in parts.items()]

    def run(self) -> None:
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        producer = self._log.producer()
        slide_us = self._settings.steps.slide_us
        step = time.time_ns() // 1000 // slide_us + 1
        while not self.ended.is_set():
            time.sleep(max(0.0, step * slide_us / 1e6 - time.time()))
            values = self._series.next()
            sent = self.sent[step] = np.full(len(values), np.nan)
            for edge, slot, ids, packed in self._after if step * slide_us > self._from_us else self._before:
                if edge == self.silent:
                    continue
                sent[ids] = values[ids]
                batch = TupleBatch(
                    edge=edge,
                    incarnation=self._incarnation,
                    step=step,
                    event_time_us=step * slide_us,
                    sensor=packed,
                    value=pack_floats(values[ids]),
                    count=pack_sensors([1] * len(ids)),
                )
                producer.send(TUPLES, slot, edge.encode(), LogRecord(version=VERSION, batch=batch).SerializeToString())
                self.tuples += len(ids)
            producer.poll(0)
            self.first_s = self.first_s or time.monotonic()
            self._step = step
            self.late_s = max(self.late_s, time.time() - step * slide_us / 1e6)
            step += 1
        producer.flush(10)
        producer.close()
        beats.join()

    def _beat(self) -> None:
        producer = self._log.producer(durable=False)
        names, sequence = self._table.edges, 0
        while not self.ended.wait(self._settings.standby.edge_heartbeat_s):
            sequence += 1
            self._follow_placement()
            for edge in names:
                if edge != self.silent:
                    beat = Heartbeat(
                        version=VERSION, node=edge, role="edge", incarnation=self._incarnation, sequence=sequence,
                        sent_us=time.time_ns() // 1000, step=self._step,
                    )  # fmt: skip
                    for partition, value in self._routes[edge].split(beat, self._slots[edge]):
                        producer.send(HEARTBEATS, partition, edge.encode(), value)
            producer.poll(0)
        producer.close()


class Meter:
    """Measures CPU and memory of each kind of process, with all that it has started; the dead count as well."""

    def __init__(self, settings: Settings) -> None:
        self._state = settings.state
        self._cpu: defaultdict[str, dict[int, float]] = defaultdict(dict)  # by role and process, seconds
        self._rss: defaultdict[str, dict[int, float]] = defaultdict(dict)  # megabytes
        self.look()
        self._began = {role: sum(cpu.values()) for role, cpu in self._cpu.items()}

    def look(self) -> None:
        """Look at all processes that there are."""
        for rss in self._rss.values():
            rss.clear()
        for process in processes.list_processes(self._state):
            try:
                root = psutil.Process(process.pid)
                for member in (root, *root.children(recursive=True)):
                    times = member.cpu_times()
                    self._cpu[process.role][member.pid] = times.user + times.system
                    self._rss[process.role][member.pid] = member.memory_info().rss / 1e6
            except psutil.NoSuchProcess:
                continue

    def usage(self) -> dict[str, dict[str, float]]:
        """Return, by role: seconds of CPU since the meter was made; processes and megabytes at the last look."""
        return {
            role: {
                "cpu_s": round(sum(cpu.values()) - self._began.get(role, 0.0), 1),
                "processes": len(self._rss[role]),
                "rss_mb": round(sum(self._rss[role].values()), 1),
            }
            for role, cpu in self._cpu.items()
        }


def ends(log: Log) -> dict[str, int]:
    """Return how many records each topic has had."""
    reader = log.reader()
    try:
        return {topic: sum(reader.range(topic, p)[1] for p in range(log.partitions(topic))) for topic in COUNTED}
    finally:
        reader.close()


def stored(settings: Settings) -> dict[str, int]:
    """Return how many bytes the broker has on its disk of each topic: compressed, as they come and go on the wire.

    What retention or compaction takes meanwhile is missing; a run is shorter than either.
    """
    data = settings.state / "broker" / "data"
    found: dict[str, int] = {}
    for topic in COUNTED:
        files = data.glob(f"{settings.kafka.prefix}{topic}-*/*.log")
        found[topic] = sum(file.stat().st_size for file in files)
    return found


def init(work: Path, sensors: int, edges: int) -> float:
    """Let `tsunagi init` make a project of the devices' messages in `work`; return how many seconds it took."""
    broker = Mosquitto(work)
    broker.start()
    devices = Devices(broker.port, sensors, edges)
    devices.start()
    began = time.monotonic()
    command = [sys.executable, "-m", "tsunagi.cli", "init", str(work / "plant"), "--mqtt", f"127.0.0.1:{broker.port}"]
    done = subprocess.run(
        [*command, "--topic", "plant/#", "--listen", str(LISTEN_S)], check=False, stdout=subprocess.DEVNULL
    )
    took_s = time.monotonic() - began
    devices.ended.set()
    devices.join()
    broker.kill()
    if done.returncode:
        raise SystemExit("tsunagi init failed")
    return took_s


def measure(work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run it all; return the figures."""
    outcome.fresh(work)
    work = work.resolve()
    found: dict[str, Any] = {"sensors": given.sensors, "edges": given.edges}
    began = time.monotonic()
    found["init_s"] = round(init(work, given.sensors, given.edges), 1)
    os.chdir(work / "plant")
    os.environ["TSUNAGI_KAFKA__SERVERS"] = f"127.0.0.1:{free_port()}"
    os.environ["TSUNAGI_RECOVERY__LEARN_STEPS"] = str(given.learn_steps)
    if given.slots:
        os.environ["TSUNAGI_SLOTS__COUNT"] = str(given.slots)
    if given.workers:
        os.environ["TSUNAGI_SCALER__WORKERS"] = str(given.workers)
    if given.step_s:
        steps = {"INTERVAL_S": given.step_s, "WINDOW": 1, "SLIDE": 1}
        os.environ |= {f"TSUNAGI_STEPS__{name}": str(value) for name, value in steps.items()}
    config = Path("tsunagi.toml").resolve()
    os.environ[CONFIG_VARIABLE] = str(config)
    system = System(load(config), config, say)
    try:
        system.start_broker()
        system.make_topics()
        settings = system.settings
        nodes = system.start_workers()
        system.wait_ready(nodes, 300.0)
        found |= {
            "slots": settings.slots.count,
            "workers": len(nodes) - 3,
            "step_s": settings.steps.slide_s,
            "ready_s": round(time.monotonic() - began, 1),
        }
        log = tool_log(settings, "bench")
        edges = Edges(settings, log, read_sensors(settings.sensors))
        found["records_a_step"] = edges.records_a_step
        edges.start()
        viewers = Viewers(work, system, given.viewers) if given.viewers else None
        try:
            return found | follow(settings, config, log, edges, began, given, viewers)
        finally:
            if viewers is not None:
                viewers.close()
    finally:
        system.stop()


class Killer:
    """Kills owners of slots, one after the other, and starts them again.

    Args:
        count: how many kills there are, spread evenly over the run after its first quarter.
    """

    def __init__(self, settings: Settings, config: Path, log: Log, fleet: Fleet, count: int, seconds: float) -> None:
        self.kills: list[Kill] = []
        self._settings, self._config, self._log, self._fleet = settings, config, log, fleet
        self._at = [seconds * (0.25 + 0.7 * number / max(1, count)) for number in range(count)]
        self._back: list[tuple[float, str]] = []

    def step(self, passed: float) -> None:
        """Do what is due."""
        while self._back and passed >= self._back[0][0]:
            node = self._back.pop(0)[1]
            processes.forget(self._settings.state, node)
            processes.start(self._settings, self._config, node, "worker", ["gateway", "run", "--node", node])
        if self._at and passed >= self._at[0]:
            self._at.pop(0)
            slot = len(self.kills) % self._settings.slots.count
            watch = faults.SlotWatch(self._log, slot)
            self.kills.append(faults.kill_owner(self._settings.state, watch, self._fleet, slot))
            watch.close()
            self._back.append((passed + DOWN_S, self.kills[-1].node))


class Raiser(threading.Thread):
    """Gives the system more slots in the middle of the run, and notes how long that took."""

    def __init__(self, settings: Settings, count: int) -> None:
        super().__init__(daemon=True)
        self.took_s: float | None = None
        self._settings, self._count = settings, count

    def run(self) -> None:
        began = time.monotonic()
        raise_slots(self._settings, self._count, say, agreed=lambda: True, timeout_s=300.0)
        self.took_s = round(time.monotonic() - began, 1)


def follow(
    settings: Settings,
    config: Path,
    log: Log,
    edges: Edges,
    began: float,
    given: argparse.Namespace,
    viewers: Viewers | None,
) -> dict[str, Any]:
    """Watch the system while edges send; return the figures."""
    seconds = given.seconds
    fleet = Fleet(log)
    killer = Killer(settings, config, log, fleet, given.kills, seconds)
    found: dict[str, Any] = {"flowing_s": None, "learned_s": None}
    latencies: list[float] = []
    meter, counted, kept = Meter(settings), ends(log), stored(settings)
    started, first, last = time.monotonic(), dict[int, int](), dict[int, int]()
    raiser = Raiser(settings, given.raise_slots)
    while (passed := time.monotonic() - started) < seconds:
        fleet.update(1.0)
        killer.step(passed)
        meter.look()
        if given.raise_slots and raiser.ident is None and passed > RAISED * seconds:
            raiser.start()
        edges.silent = "e0" if OUT[0] <= passed / seconds < OUT[1] else ""
        beats = [beat.message.spark for beat in fleet.beats.values() if beat.message.role == "spark"]
        if beats and beats[0].frontier > 0:
            found["flowing_s"] = found["flowing_s"] or round(time.monotonic() - began, 1)
            latencies.append(beats[0].latency_us / 1e6)
        if found["learned_s"] is None and (target := model_in_force(log)) is not None:
            found["learned_s"] = round(time.monotonic() - edges.first_s, 1)
            found["learned"] = {"steps": target.steps, "error": round(target.error, 3), "naive": round(target.naive, 3)}
        for slot in range(max(settings.slots.count, given.raise_slots)):
            owner = fleet.of_slot(slot, "primary")
            if owner is not None:
                first.setdefault(slot, owner[1].epoch)
                last[slot] = owner[1].epoch
    used, told, bytes_kept = meter.usage(), ends(log), stored(settings)
    if viewers is not None:
        found["viewers"] = viewers.measured(killer.kills, read_sensors(settings.sensors).sensors[0].name)
    edges.ended.set()
    edges.join()
    fleet.close()
    time.sleep(DRAIN_S)
    if given.raise_slots:
        found |= {"raised_to": given.raise_slots, "raised_s": raiser.took_s}
    found["changes_of_owner"] = sum(last[slot] - first[slot] for slot in last)
    found["false_takeovers"] = false_takeovers(settings.state, killer.kills)
    found |= silences(log, killer.kills, settings.slide_us) | {"results": judge_results(log, edges.sent)}
    # Of steps that this process itself has left out, for want of time, nothing can be said.
    found["steps_left_out"] = max(edges.sent) - min(edges.sent) + 1 - len(edges.sent)
    found["sent_late_s"] = round(edges.late_s, 3)
    found["latency_s"] = spread(latencies[len(latencies) // 4 :])
    found["cpu_s_a_million_tuples"] = {
        role: round(mine["cpu_s"] / edges.tuples * 1e6, 1) for role, mine in used.items()
    }
    found["processes"] = used
    written = {topic: bytes_kept[topic] - kept[topic] for topic in kept}
    found["bytes_a_tuple"] = {topic: round(written[topic] / edges.tuples, 2) for topic in DATA}
    found["bytes_a_second"] = {topic: round(written[topic] / seconds) for topic in CONTROL}
    found["records_a_second"] = {topic: round((told[topic] - counted[topic]) / seconds, 1) for topic in told}
    return found


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sensors", type=int, default=5000)
    parser.add_argument("--edges", type=int, default=100)
    parser.add_argument("--slots", type=int, help="instead of what init proposes")
    parser.add_argument("--workers", type=int, help="gateway workers, instead of what init proposes")
    parser.add_argument("--step-s", type=float, help="length of a step, instead of what init proposes")
    parser.add_argument("--kills", type=int, default=0, help="owners of slots that are killed")
    parser.add_argument("--raise-slots", type=int, default=0, help="slots that there are from the middle of the run on")
    parser.add_argument(
        "--viewers", type=int, default=0, help="who looks at the console, one in a browser; none: it does not run"
    )
    parser.add_argument("--learn-steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--work", type=Path, default=Path("out/bench-fleet"))
    parser.add_argument("--out", type=Path, default=Path("out/fleet.json"))
    given = parser.parse_args()
    out = given.out.resolve()
    found = measure(given.work, given)
    outcome.write(found, out)
    say(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
