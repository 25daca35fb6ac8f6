"""False alarms: everybody lives, but the machine, the network or the broker is in trouble. Is anybody deposed?

    python -m tests.bench.false_alarms --disturbance cpu --seconds 1200 --out out/false-alarms-cpu.json

Starts a system of its own, as tests.bench.failover does, measures the broker's round trip (produce to consume) for a
while, and again under the disturbance, and counts takeovers and what speculation wrote in vain. Disturbances:

    cpu        two busy processes for each core, and one of real-time priority that takes it for 350 ms of each second
               (as root): busy processes alone disturb nobody, since Linux lets who sleeps most go first
    pause      every 3 s another worker is stopped for 400 ms
    delay      100 +- 50 ms each way between the broker and everybody (a TCP proxy; as root)
    loss       1 % of the packets between the broker and everybody are lost (as root)
    broker     the broker is killed each minute and started again

A run of cpu, delay or loss in which the round trip's p99 did not at least triple disturbed nobody: it is void, and says
so. One JSON object comes out; the exit code is 1 if anybody was deposed or the run is void.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from tests.bench import outcome
from tests.bench.system import Load, Usage, running, say, spread
from tsunagi.chaos import proxy
from tsunagi.chaos.local import LocalDriver
from tsunagi.chaos.plan import Round
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RECOVERED, LogError, Position
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

PROBE = "bench-probe"
PROBE_S = 0.05
BASELINE_S = 30.0
PAUSE_S, PAUSE_EVERY_S = 0.4, 3.0
BROKER_EVERY_S = 60.0
BURST_SHARE = 0.35
DELAY_MS, JITTER_MS, LOSS = 100.0, 50.0, 0.01
TRIPLED = frozenset({"cpu", "delay", "loss"})
LOOK_S = 10.0


class Probe:
    """Appends a record each 50 ms and notes how long it takes to come back, seconds."""

    def __init__(self, settings: Settings) -> None:
        log = KafkaLog(settings.kafka, client_id="probe")
        log.admin().create_topics([NewTopic(PROBE, 1, 1)])[PROBE].result(timeout=10)
        self.round_trips: list[float] = []
        self._producer, self._reader = log.producer(), log.reader(wait_s=0.01)
        self._reader.assign([Position(PROBE, 0, 0)])
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def take(self) -> list[float]:
        """Return the round trips since the last call."""
        found, self.round_trips = self.round_trips, []
        return found

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._producer.close()
        self._reader.close()

    def _send(self) -> None:
        while not self._stop.wait(PROBE_S):
            self._producer.send(PROBE, 0, None, str(time.monotonic()).encode())
            self._producer.poll()

    def _receive(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(LogError):
                for record in self._reader.read(1, 0.1):  # of more, it would wait for the others
                    self.round_trips.append(time.monotonic() - float(record.value or b"0"))


BUSY = "while True: pass"
BURSTS = """
import os, sys, time
core, share = int(sys.argv[1]), float(sys.argv[2])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
while True:
    while time.time() % 1.0 < share:
        pass
    time.sleep(1.0 - time.time() % 1.0)
"""


@contextlib.contextmanager
def saturated() -> Iterator[None]:
    """Two busy processes for each core, and on all cores at once bursts that nobody else gets a share of."""
    cores = sorted(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in cores for _ in range(2)]
    busy += [subprocess.Popen([sys.executable, "-c", BURSTS, str(core), str(BURST_SHARE)]) for core in cores]
    try:
        yield
        if any(process.poll() is not None for process in busy):
            raise RuntimeError("the bursts did not last; real-time priority takes root")
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def network(settings: Settings, *arguments: str) -> Iterator[None]:
    """Delay or loss on the connections to the broker."""
    port = settings.kafka.servers.rpartition(":")[2]
    helper = subprocess.Popen(
        [sys.executable, proxy.__file__, "client", *arguments, "86400"],
        env=os.environ | {"TSUNAGI_CHAOS_PORTS": port},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if helper.stdout is None or not helper.stdout.readline().startswith("set "):
            raise RuntimeError("the network could not be disturbed; it takes root and iptables")
        yield
    finally:
        helper.send_signal(signal.SIGTERM)
        helper.wait(timeout=30)


@contextlib.contextmanager
def repeated(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do something again and again, in a thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(every_s):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def pause_one(settings: Settings, chance: random.Random) -> None:
    """Stop a worker for a moment."""
    workers = [item for item in processes.list_processes(settings.state) if item.role == "worker"]
    worker = chance.choice(workers)
    processes.send_signal(worker, signal.SIGSTOP, session=True)
    time.sleep(PAUSE_S)
    processes.send_signal(worker, signal.SIGCONT, session=True)


def restart_broker(driver: LocalDriver) -> None:
    """Kill the broker; it is started again at once."""
    driver.apply(Round(1, "kafka", "kill", 0.0, 0.0, 0.0), "kafka")
    driver.undo()


def disturbed(
    disturbance: str, settings: Settings, driver: LocalDriver, chance: random.Random
) -> contextlib.AbstractContextManager[None]:
    """Return the disturbance."""
    match disturbance:
        case "cpu":
            return saturated()
        case "pause":
            return repeated(lambda: pause_one(settings, chance), PAUSE_EVERY_S - PAUSE_S)
        case "delay":
            return network(settings, "delay", str(DELAY_MS), str(JITTER_MS))
        case "loss":
            return network(settings, "loss", str(LOSS))
        case _:
            return repeated(lambda: restart_broker(driver), BROKER_EVERY_S)


def outputs(settings: Settings) -> int:
    """Return how many records `recovered` has; wait for a broker that was killed last."""
    reader = tool_log(settings, "bench").reader()
    until = time.monotonic() + BROKER_EVERY_S
    try:
        while True:
            try:
                return sum(reader.range(RECOVERED, slot)[1] for slot in range(settings.slots.count))
            except LogError:
                if time.monotonic() > until:
                    raise
    finally:
        reader.close()


def measure(options: argparse.Namespace, settings: Settings, config: Path) -> dict[str, Any]:
    """Run it; return the JSON object."""
    usage, probe = Usage(settings), Probe(settings)
    driver = LocalDriver(settings, config)
    time.sleep(5.0)
    probe.take()
    say(f"baseline: {BASELINE_S:g} s")
    time.sleep(BASELINE_S)
    calm = probe.take()
    before, outputs_before = len(list(processes.logged(settings.state, "takeover"))), outputs(settings)
    say(f"{options.disturbance}: {options.seconds:g} s")
    with disturbed(options.disturbance, settings, driver, random.Random(options.seed)):
        until = time.monotonic() + options.seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
            usage.look()
            found = len(list(processes.logged(settings.state, "takeover"))) - before
            say(f"  {options.seconds - left:5.0f} s: {found} takeovers, {usage.total('speculations'):.0f} speculations")
    troubled = probe.take()
    time.sleep(5.0)
    usage.look()
    takeovers = list(processes.logged(settings.state, "takeover"))[before:]
    written = outputs(settings) - outputs_before
    probe.close()
    usage.close()
    ratio = (spread(troubled)["p99"] or 0.0) / (spread(calm)["p99"] or 1.0)
    repeats = usage.total("repeats")
    return {
        "bench": "false_alarms",
        "disturbance": options.disturbance,
        "seconds": options.seconds,
        "rate": options.rate,
        "speculation": options.speculation,
        "round_trip_calm_s": spread(calm),
        "round_trip_s": spread(troubled),
        "round_trip_p99_ratio": round(ratio, 2),
        "void": options.disturbance in TRIPLED and ratio < 3.0,
        "false_takeovers": len(takeovers),
        "takeovers": takeovers,
        "speculations": round(usage.total("speculations")),
        "outputs": written,
        "repeats": round(repeats),
        "repeats_share": round(repeats / written, 5) if written else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disturbance", choices=("cpu", "pause", "delay", "loss", "broker"), required=True)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="tuples a second of all sensors together")
    parser.add_argument("--speculation", choices=("on", "off"), default="on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29292)
    parser.add_argument("--work", type=Path, default=Path("out/bench"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    wanted = Load(rate=options.rate, speculation=options.speculation == "on")
    with running(options.work, options.port, wanted) as (settings, config):
        found = measure(options, settings, config)
    outcome.write(found, options.out)
    say(json.dumps({name: value for name, value in found.items() if name != "takeovers"}))
    return 1 if found["false_takeovers"] or found["void"] else 0


if __name__ == "__main__":
    sys.exit(main())
