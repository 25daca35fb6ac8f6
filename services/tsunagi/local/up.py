"""`tsunagi up` and `tsunagi down`: the whole system as processes of this machine."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tsunagi.broker.broker import Broker
from tsunagi.local.fleet import Fleet
from tsunagi.local.topics import make_topics
from tsunagi.runtime.kafka_client import client_options, make_client
from tsunagi.runtime.kafka_errors import Cause
from tsunagi.runtime.log import RECOVERED, LogError
from tsunagi.runtime.marked import CHECKPOINT, STATE, empty, mark, marked
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings, Source
from tsunagi.system import processes
from tsunagi.system.identity import admit, claim
from tsunagi.system.processes import Process, ProcessError
from tsunagi.system.topics import quiet_log, tool_log

READY_S = 90.0
"""Services that have not said within this time, seconds, that they are ready are given up."""
READY_S_A_MB = 1.0
"""Each megabyte of the recovery model's file gives workers so much longer to be ready: their filters are made of it."""
CONSUMING_S = 30.0
"""Spark's first batch is waited for so long, seconds."""
SHIPPED_SPEED = 600
"""The shipped readings are ten minutes apart; so fast, they come every second, as [steps] interval_s has it."""

SPEED_VARIABLE = "TSUNAGI_SOURCE__SPEED"
LOCAL = ("127.0.0.1", "localhost")
# Who is stopped first; the scaler before the workers, or it would replace them.
_ORDER = ("edge", "spark", "scaler", "worker")
_POLL_S = 0.2
_NEARLY_RECORDS = 20
_NAMED = 10  # files that are told by name

Tell = Callable[[str], None]


class Stopped(NamedTuple):
    """What became of the processes: who ended, who of them had to be killed, and who was not seen to end, in words."""

    ended: list[str]
    killed: list[str]
    left: list[str]


class System:
    """The services of one configuration on this machine.

    Args:
        config: the file that the services read; None = as this process.
        tell: is called with a line for each thing that is done.
    """

    def __init__(self, settings: Settings, config: Path | None, tell: Tell) -> None:
        self.settings = settings
        self.config = config
        self.started: list[Process] = []
        self.tell = tell

    # ---- starting

    def start_broker(self) -> bool:
        """Start the local broker if one is meant and nobody answers there; return whether it was started.

        Raises:
            BrokerError: it cannot be started.
            ProcessError: the configured broker is not local, and does not answer; or there can be no state directory.
        """
        try:
            mark(self.settings.state)
        except OSError as error:
            raise ProcessError(f"state = {self.settings.state}: cannot be made: {error.strerror}") from None
        servers = self.settings.kafka.servers
        silence = unanswered(self.settings)
        if not silence:
            self.tell(f"broker: {servers} answers")
            return False
        broker = local_broker(self.settings)
        if broker is None:
            raise ProcessError(
                f"no broker answers at {servers} ([kafka] servers), and that is not an address of this machine: "
                f"{silence}"
            )
        self.tell(f"broker: starting one at {servers}")
        broker.start()
        broker.wait_ready()
        return True

    def make_topics(self, *, join: bool = False) -> None:
        """Make or check the topics of this system, which is not to be started on another's.

        Args:
            join: see `tsunagi.system.identity.admit`.

        Raises:
            ConfigError: the log is of another system.
            LogError: see `KafkaLog.ensure_topics`.
        """
        admit(self.settings, join=join)
        make_topics(self.settings)
        claim(self.settings)
        self.settings = quiet_log(self.settings, "up").with_slots(self.settings)
        self.tell("topics: there")

    def start_workers(self) -> list[str]:
        """Start scaler, workers and Spark; those that run already stay. Return their names."""
        self._start("scaler", "scaler", ["scaler", "run"])
        names = worker_names(self.settings)
        for name in names:
            service = "gateway" if name.startswith("gw-") else "secondary"
            self._start(name, "worker", [service, "run", "--node", name])
        self._start("spark", "spark", ["spark", "run"])
        return ["scaler", *names, "spark"]

    def start_edges(self, edges: Iterable[str] | None = None) -> list[str]:
        """Start the edges of the sensors table, or those given; return their names."""
        names = list(read_sensors(self.settings.sensors).edges if edges is None else edges)
        variables = {}
        if self.config is None and self.settings.source == Source():
            variables[SPEED_VARIABLE] = str(SHIPPED_SPEED)
            self.tell(
                f"edges: without a configuration the readings that come with Tsunagi run {SHIPPED_SPEED} times as fast"
            )
        for name in names:
            self._start(name, "edge", ["edge", "run", "--edge", name], variables)
        return names

    def _start(self, node: str, role: str, arguments: list[str], variables: Mapping[str, str] | None = None) -> None:
        running = processes.find(self.settings.state, node)
        if running is not None and processes.alive(running):
            if running.role != role:
                raise ProcessError(
                    f"{node}: a process of this name runs already (pid {running.pid}) as {running.role}, expected "
                    f"to start it as {role}; give one of them another name"
                )
            self.tell(f"{node}: runs already (pid {running.pid})")
            return
        if processes.pid_file(self.settings.state, node) in processes.unreadable(self.settings.state):
            file = processes.pid_file(self.settings.state, node)
            raise ProcessError(
                f"{file}: damaged, or of another version, so whether {node} runs is not known; "
                "end it by hand and delete the file"
            )
        if running is not None:
            processes.kill(running)  # what is left of its session: a dead Spark driver's JVM
        process = processes.start(self.settings, self.config, node, role, arguments, variables)
        self.started.append(process)
        self.tell(f"{node}: started (pid {process.pid})")

    # ---- waiting

    def wait_ready(self, nodes: Iterable[str], timeout_s: float = READY_S) -> None:
        """Wait until every slot has an owner and a ready secondary, and every node says that it is ready.

        A large recovery model gives them more time than `timeout_s`.

        Raises:
            ProcessError: a process died (with the end of its log), or it took too long (with what is missing).
        """
        fleet = Fleet(tool_log(self.settings, "up"))
        model = self.settings.recovery.model
        if model and Path(model).is_file():
            timeout_s += READY_S_A_MB * Path(model).stat().st_size / 2**20
        deadline = time.monotonic() + timeout_s
        told = ""
        try:
            while missing := self.missing(fleet, nodes):
                self.check_alive(nodes)
                if missing != told:
                    told = missing
                    self.tell(f"waiting: {missing}")
                if time.monotonic() > deadline:
                    raise ProcessError(f"not ready after {timeout_s:g} s: {missing}")
                fleet.update(_POLL_S)
        finally:
            fleet.close()

    def wait_consuming(self, timeout_s: float = CONSUMING_S) -> bool:
        """Wait until Spark has acknowledged nearly all that slots have written; return whether it has.

        Its first batch takes several times as long as the later ones (a cold JVM).
        """
        if self.settings.query.mode == "tuples":
            return True  # no part of Spark's
        source = tool_log(self.settings, "up")
        fleet, reader = Fleet(source), source.reader()
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                fleet.update(_POLL_S)
                try:
                    ends = {slot: reader.range(RECOVERED, slot)[1] for slot in range(self.settings.slots.count)}
                except LogError:  # a broker that is starting on a busy machine may take longer than a client waits
                    continue
                if all(end == 0 or end - fleet.acked(slot, "spark") <= _NEARLY_RECORDS for slot, end in ends.items()):
                    return True
        finally:
            fleet.close()
            reader.close()
        return False

    def missing(self, fleet: Fleet, nodes: Iterable[str]) -> str:
        """Return what the system still lacks; "" = nothing."""
        alive = fleet.fresh()
        for node in nodes:
            beat = alive.get(node)
            if beat is None:
                return f"{node} has not reported yet"
            if beat.role != "worker" and beat.metrics_port:
                reason = unready(self.settings.metrics.host, beat.metrics_port)
                if reason:
                    return f"{node}: {reason}"
        for slot in range(self.settings.slots.count):
            owner = fleet.of_slot(slot, "primary")
            if owner is None:
                return f"slot {slot} has no owner"
            if not owner[1].ready:
                return f"slot {slot}: {owner[0]}: {owner[1].reason}"
            if not fleet.standby_ready(slot):
                return f"slot {slot} has no ready secondary"
        return ""

    def check_alive(self, nodes: Iterable[str]) -> None:
        """Raise a ProcessError with the end of its log if one of the nodes' processes has died."""
        for node in nodes:
            process = processes.find(self.settings.state, node)
            if process is None or not processes.alive(process):
                raise ProcessError(died(self.settings.state, node))

    # ---- stopping

    def stop(self, *, broker: bool = True) -> Stopped:
        """Stop everything that pid files name, in order, the broker last; whoever was not seen to end keeps his file.

        Raises:
            BrokerError: the broker was not seen to end.
        """
        state = self.settings.state
        ended, killed, left = [], [], []
        for role in (*_ORDER, None):
            found = processes.list_processes(state)
            group = [
                process for process in found if process.role == role or (role is None and process.role not in _ORDER)
            ]
            running = [process for process in group if processes.alive(process)]
            if running:
                self.tell(f"stopping {', '.join(process.node for process in running)}")
            killed += [process.node for process in processes.terminate(group)]
            for process in group:
                members = processes.members(process)
                if members:
                    left.append(f"{process.node} (pid {', '.join(str(member.pid) for member in members)})")
                    continue
                processes.forget(state, process.node)
                ended += [process.node] if process in running else []
        left += [
            f"whose pid {file} was to keep: damaged, or of another version" for file in processes.unreadable(state)
        ]
        local = local_broker(self.settings)
        if broker and local is not None:
            runs = local.pid is not None
            if runs:
                self.tell("stopping the broker")
            local.stop()
            ended += ["the broker"] if runs else []
        return Stopped(ended, killed, left)


def local_broker(settings: Settings) -> Broker | None:
    """Return the broker that this configuration would run here; None = its servers are elsewhere."""
    host, _, port = settings.kafka.servers.partition(":")
    if host not in LOCAL or not port.isdigit():
        return None
    return Broker(settings.state / "broker", int(port))


def unanswered(settings: Settings, timeout_s: float = 2.0) -> str:
    """Return why no broker answers at the configured servers; "" = one does."""
    cause = Cause()
    options = client_options(settings.kafka) | dict(settings.kafka.options) | {"log_level": 0, "error_cb": cause}
    admin = make_client(AdminClient, options)
    try:
        return "" if admin.list_topics(timeout=timeout_s).brokers else "it names no brokers"
    except KafkaException as error:
        admin.poll(0)
        return cause.said(error)


def worker_names(settings: Settings) -> list[str]:
    """Return gw-1.. (one a slot) and sec-1.. (the rest of `[scaler] workers`, at least slots + 2 in all)."""
    slots = settings.slots.count
    workers = max(settings.scaler.workers, slots + 2)
    return [f"gw-{i + 1}" for i in range(slots)] + [f"sec-{i + 1}" for i in range(workers - slots)]


def unready(host: str, port: int) -> str:
    """Ask a service's /readyz; return why it is not ready, "" = it is."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=2.0) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        return error.read().decode("utf-8", "replace").strip() or f"/readyz says {error.code}"
    except OSError as error:
        return f"/readyz does not answer: {error}"
    return ""


def died(state: Path, node: str) -> str:
    """Say that a node has died, with the last lines of its log in readable form."""
    lines = [f"{node} has died; the end of {processes.log_file(state, node)}:"]
    lines += [f"  {_readable(line)}" for line in processes.tail(state, node, 8)]
    return "\n".join(lines)


def _readable(line: str) -> str:
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, Mapping):
        return line
    event, error = fields.get("event", ""), fields.get("exception", fields.get("error", ""))
    return f"{event} {error}".strip() or line


def wipe(settings: Settings, tell: Tell) -> None:
    """Remove what a stopped system left behind where Tsunagi made the directory; tell what goes and what stays.

    Raises:
        ProcessError: something cannot be removed.
    """
    names: dict[Path, tuple[str, ...]] = {}
    for path, written in ((settings.spark.checkpoint, CHECKPOINT), (settings.state, STATE)):
        names[path.absolute()] = (*names.get(path.absolute(), ()), *written)
    for path, written in names.items():
        if not path.exists():
            continue
        if not marked(path):
            tell(f"kept {path}: it was not empty when Tsunagi first used it; remove by hand what you need no more")
            continue
        try:
            left = empty(path, written)
        except OSError as error:
            raise ProcessError(f"{error.filename}: cannot be removed: {error.strerror}") from None
        kept = ", ".join(str(item.relative_to(path)) for item in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        tell(f"removed {path}" if not left else f"kept in {path} what Tsunagi did not write: {kept}{more}")


__all__ = ["System", "local_broker", "wipe", "worker_names"]
