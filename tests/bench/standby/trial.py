"""One trial: a stream of one-tuple records, a primary, a standby of some scheme; the primary is killed, or not.

The stream (N_u) and the reader downstream (N_d) run in this process, primary (N) and secondary (N') each in one of its
own, all on one broker, as in figure 3 of the A-SAS paper. The primary itself sends the Level-0-Acks each 250 ms, for
what `recovered` has; it takes a context as often, so that the Level-1-Ack follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.one_slot import OPERATORS, assign, configure
from tests.bench.system import scrape
from tsunagi.local.fleet import Fleet
from tsunagi.local.topics import make_topics
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import TUPLES, Log, Position, Traffic
from tsunagi.runtime.messages import VERSION, LogRecord, TupleBatch
from tsunagi.runtime.settings import CONFIG_VARIABLE, Settings, load
from tsunagi.system.topics import tool_log

READY_S = 60.0
TAKEOVER_S = 60.0
TICK_S = 0.005
BLINK_S = 0.005
FULL_S = 0.25
"""A batch is called full when this much of the stream is missing: what a secondary says of itself is that old."""

STANDBY = """\
batch_size = {batch}
context_s = {ack_s}
ack_s = {ack_s}
cost_period_s = {period_s}
{limits}"""


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        scheme: sas | as | ub.
        batch: B of sas in tuples, where it begins if there are `limits`.
        limits: further lines of [standby].
        stepwise: B is kept within them by algorithm 3.
        cost_ms: of a tuple, on top of the operator's own; `later_cost_ms` from `change_s` on.
        rate: tuples a second; `later_rate` from `change_s` on.
        load_mb_s: other traffic through the same broker, MB/s.
        ack_s: between two acknowledgements of either level; period_s: over which costs are measured.
        half_speed: the secondary runs only every other 5 ms, its takeover too.
        full: the primary is killed a little later, when the secondary is about to read its next batch.
        kill_s: when the primary is killed, seconds after the stream's begin; None = never.
        warm_s: from then on bytes count.
        seconds: of the stream when nobody is killed.
    """

    scheme: str = "sas"
    batch: int | str = 100
    operator: str = "select"
    limits: str = ""
    stepwise: bool = False
    rate: float = 1000.0
    later_rate: float | None = None
    cost_ms: float = 0.0
    later_cost_ms: float | None = None
    change_s: float = 10.0
    load_mb_s: float = 0.0
    ack_s: float = 0.25
    period_s: float = 1.0
    half_speed: bool = False
    full: bool = False
    kill_s: float | None = 8.0
    warm_s: float = 3.0
    seconds: float = 30.0


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        backup_bytes_s, main_bytes_s: what the secondary, and a follower of the log, received at the socket, bytes/s.
        recovery_s: definition 2 of the paper: from the detection until the primary's state is reached.
        records: read for it.
        models: by name, what the cost models said: bandwidth as a mean, the others at the end.
        series: (seconds, bytes/s to the secondary, B) each second.
    """

    backup_bytes_s: float = 0.0
    main_bytes_s: float = 0.0
    requests_s: float = 0.0
    recovery_s: float | None = None
    records: int = 0
    series: list[tuple[float, float, float]] = field(default_factory=list)
    models: dict[str, float] = field(default_factory=dict)

    @property
    def overhead(self) -> float:
        """Definition 1: BW = BW_backup / BW_main."""
        return self.backup_bytes_s / self.main_bytes_s if self.main_bytes_s else 0.0


class Stream:
    """N_u: one tuple a record, at a rate."""

    def __init__(self, log: Log, trial: Trial) -> None:
        self._trial = trial
        self._producer = log.producer()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.began = 0.0

    def start(self) -> None:
        self.began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.flush(10.0)

    def close(self) -> None:
        self.stop()
        self._producer.close()

    def _run(self) -> None:
        trial, sent, due = self._trial, 0, 0.0
        sensor, count = pack_sensors([0]), pack_sensors([1])
        last = self.began
        while not self._stop.wait(TICK_S):
            now = time.monotonic()
            changed = trial.later_rate is not None and now - self.began > trial.change_s
            due += (now - last) * (trial.later_rate if changed and trial.later_rate else trial.rate)
            last = now
            while sent < due:
                sent += 1
                step = time.time_ns() // 1000 + sent
                batch = TupleBatch(
                    edge="edge", incarnation=1, step=step, event_time_us=step, sensor=sensor, count=count
                )
                batch.value = pack_floats([float(sent)])
                record = LogRecord(version=VERSION, batch=batch)
                self._producer.send(TUPLES, 0, b"edge", record.SerializeToString())
            self._producer.poll()


class Follower:
    """What a primary receives: a reader that follows the log, measured at the socket."""

    def __init__(self, log: Log) -> None:
        self._reader = log.reader(measured=True)
        self._reader.assign([Position(TUPLES, 0, self._reader.range(TUPLES, 0)[1])])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def traffic(self) -> Traffic:
        return self._reader.traffic()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._reader.read(500, 0.1)


@contextlib.contextmanager
def loaded(settings: Settings, megabytes_s: float) -> Iterator[None]:
    """Other traffic through the same broker, written and read again."""
    if megabytes_s <= 0:
        yield
        return
    command = [sys.executable, "-m", "tests.bench.standby.load", "--mb", str(megabytes_s)]
    process = subprocess.Popen([*command, "--servers", settings.kafka.servers])
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.contextmanager
def slowed(process: subprocess.Popen[bytes], half_speed: bool) -> Iterator[None]:
    """Let a process run only every other while."""
    if not half_speed:
        yield
        return
    over = threading.Event()

    def blink() -> None:
        while not over.wait(BLINK_S):
            process.send_signal(signal.SIGSTOP)
            time.sleep(BLINK_S)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=blink, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def prepare(trial: Trial, work: Path, servers: str) -> tuple[Settings, Path]:
    """Write the configuration of a trial; topics of its own, so that trials do not see each other."""
    work.mkdir(parents=True, exist_ok=True)
    operator = OPERATORS[trial.operator]
    if trial.cost_ms or trial.later_cost_ms:
        (work / "cost_ms").write_text(str(trial.cost_ms), encoding="utf-8")
        operator = f'{{ use = "tests.bench.operators:Busy", file = "{work}/cost_ms" }}, {operator}'
    batch = f'"{trial.batch}"' if isinstance(trial.batch, str) else trial.batch
    standby = STANDBY.format(batch=batch, limits=trial.limits, ack_s=trial.ack_s, period_s=trial.period_s)
    config = configure(work, servers, operator, standby, prefix=f"{uuid.uuid4().hex[:10]}.")
    if trial.stepwise:
        with config.open("a", encoding="utf-8") as file:
            file.write("[paper]\nbatch_steps = true\n")
    return load(config), config


class Nodes:
    """Primary and secondary as processes."""

    def __init__(self, trial: Trial, config: Path, work: Path) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._work = work
        self._environment = os.environ | {CONFIG_VARIABLE: str(config)}
        standby = ["-m", "tsunagi.cli", "secondary", "run", "--node", "secondary"]
        if trial.scheme != "sas":
            standby = ["-m", "tests.bench.standby.plain", trial.scheme, "--node", "secondary", "--primary", "primary"]
        gateway = ["-m", "tsunagi.cli", "gateway", "run", "--node", "primary"]
        self._commands = {"primary": gateway, "secondary": standby}

    def start(self, name: str) -> None:
        """Start a node."""
        command = [sys.executable, *self._commands[name]]
        with (self._work / f"{name}.log").open("wb") as output:
            self.processes[name] = subprocess.Popen(
                command, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )

    def takeover(self) -> dict[str, Any] | None:
        """Return what the secondary said of its takeover."""
        for line in (self._work / "secondary.log").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                said: dict[str, Any] = json.loads(line)
                if said.get("event") == "takeover" and said.get("reason") != "plan":
                    return said
        return None

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


MODELS = ("bandwidth_bytes_per_second", "recovery_seconds", "send_seconds", "process_seconds", "takeover_seconds")


@dataclass
class Sample:
    """What the secondary says of itself in its metrics."""

    received_bytes: float
    requests: float
    batch: float
    models: dict[str, float]


def sample(fleet: Fleet) -> Sample:
    """Ask the secondary."""
    found = scrape("127.0.0.1", fleet.beats["secondary"].message.metrics_port)
    return Sample(
        found.get("tsunagi_standby_received_bytes_total", 0.0),
        found.get("tsunagi_standby_requests_total", 0.0),
        found.get("tsunagi_standby_batch_tuples", 0.0),
        {name: found.get(f"tsunagi_standby_{name}", 0.0) for name in MODELS},
    )


def await_full(fleet: Fleet, trial: Trial) -> None:
    """Wait until the secondary lacks nearly a batch; at most as long as the stream takes for three."""
    batch = float(trial.batch)
    deadline = time.monotonic() + 1.0 + 3 * batch / trial.rate
    while time.monotonic() < deadline:
        fleet.update(0.005)
        parts = [part for part in fleet.beats["secondary"].message.slots if part.slot == 0]
        if parts and parts[0].lag >= batch - FULL_S * trial.rate:
            return


def wait_ready(fleet: Fleet, trial: Trial, nodes: Nodes) -> None:
    """Start the primary, and once it owns the slot the secondary; wait until that stands by."""

    def owned() -> bool:
        return fleet.of_slot(0, "primary") is not None

    def protected() -> bool:
        return fleet.standby_ready(0) == "secondary" if trial.scheme == "sas" else "secondary" in fleet.beats

    for name, ready in (("primary", owned), ("secondary", protected)):
        nodes.start(name)
        deadline = time.monotonic() + READY_S
        while not ready():
            fleet.update(0.1)
            if nodes.processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} was not ready after {READY_S:g} s, or has ended; see its log")


def run(trial: Trial, work: Path, servers: str) -> Outcome:
    """Carry a trial out.

    Raises:
        RuntimeError: the system did not start, or did not recover.
    """
    settings, config = prepare(trial, work, servers)
    make_topics(settings)
    log = tool_log(settings, "bench")
    assign(settings, log, "primary", "secondary")
    outcome = Outcome()
    nodes = Nodes(trial, config, work)
    fleet, stream, follower = Fleet(log), Stream(log, trial), Follower(log)
    try:
        wait_ready(fleet, trial, nodes)
        with loaded(settings, trial.load_mb_s), slowed(nodes.processes["secondary"], trial.half_speed):
            stream.start()
            _observe(trial, outcome, nodes, fleet, follower, stream.began, work)
            if trial.kill_s is not None:
                if trial.full:
                    await_full(fleet, trial)
                # What comes while the death is being detected is no part of the state that the primary had.
                stream.stop()
                nodes.processes["primary"].kill()
                _await_takeover(outcome, nodes)
    finally:
        stream.close()
        nodes.close()
        follower.close()
        fleet.close()
    return outcome


def _observe(
    trial: Trial, outcome: Outcome, nodes: Nodes, fleet: Fleet, follower: Follower, began: float, work: Path
) -> None:
    """Watch the network until the primary is to be killed, or the stream ends."""
    end = trial.seconds if trial.kill_s is None else trial.kill_s
    last = (0.0, sample(fleet).received_bytes)
    warm: list[tuple[float, ...]] = []
    bandwidths: list[float] = []
    changed = False
    while (now := time.monotonic() - began) < end:
        time.sleep(min(1.0, end - now))
        fleet.update()
        now = time.monotonic() - began
        if trial.later_cost_ms is not None and now >= trial.change_s - 0.5 and not changed:
            changed = True
            time.sleep(max(0.0, trial.change_s - now))
            (work / "cost_ms").write_text(str(trial.later_cost_ms), encoding="utf-8")
        found = sample(fleet)
        outcome.series.append((round(now, 2), (found.received_bytes - last[1]) / max(1e-9, now - last[0]), found.batch))
        outcome.models = found.models
        last = now, found.received_bytes
        followed = follower.traffic().received_bytes
        if now >= trial.warm_s:
            warm.append((now, found.received_bytes, found.requests, followed))
            bandwidths.append(found.models["bandwidth_bytes_per_second"])
    if len(warm) > 1:
        # Counters move once a second and are read as often: a line through all of them, not the ends, says the rate.
        at, *counted = np.array(warm).T
        rates = [float(np.polyfit(at, counter, 1)[0]) for counter in counted]
        outcome.backup_bytes_s, outcome.requests_s, outcome.main_bytes_s = rates
        outcome.models["bandwidth_bytes_per_second"] = sum(bandwidths) / len(bandwidths)


def _await_takeover(outcome: Outcome, nodes: Nodes) -> None:
    deadline = time.monotonic() + TAKEOVER_S
    while time.monotonic() < deadline:
        said = nodes.takeover()
        if said is not None:
            outcome.recovery_s = float(said["promote_s"]) + float(said["catch_up_s"])
            outcome.records = int(said["records"])
            return
        time.sleep(0.1)
    raise RuntimeError(f"no takeover after {TAKEOVER_S:g} s")
