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
from tsunagi.runtime.kafka_errors import ConnectionErrors
from tsunagi.runtime.log import RECOVERED, LogError
from tsunagi.runtime.marked import CHECKPOINT, STATE, empty, mark, marked
from tsunagi.runtime.settings import SPARE, Settings, SourceSettings
from tsunagi.sink.names import node_of
from tsunagi.system import processes
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.identity import admit, claim
from tsunagi.system.processes import Process, ProcessError
from tsunagi.system.topics import quiet_log, tool_log

READY_S = 180.0
"""Longest wait until all services say that they are ready, in seconds; after it `up` fails. On a machine that others
keep busy Spark alone has taken 90."""
READY_S_A_MB = 1.0
"""Workers get this many seconds more to be ready for each megabyte of the recovery model's file, from which they make
their filters."""
CONSOLE_S = 30.0
"""Longest wait for the console's address, in seconds."""
CONSUMING_S = 30.0
"""Longest wait for Spark's first batch, in seconds."""
SHIPPED_SPEED = 600
"""Speed of the replay of the shipped readings, which are ten minutes apart: at 600 they come every second, as the
default of [steps] interval_s expects."""

SPEED_VARIABLE = "TSUNAGI_SOURCE__SPEED"
"""Environment variable by which `up` sets the speed of the edges' replay."""
LOCAL = ("127.0.0.1", "localhost")
"""Hosts of [kafka] servers for which `up` starts a broker of its own."""
_ORDER = ("console", "sink", "edge", "spark", "learner", "scaler", "worker")
"""Order in which services are stopped. The scaler is stopped before the workers, or it would replace them."""
_POLL_S = 0.2
"""Time between two looks at heartbeats while `up` waits, in seconds."""
_NEARLY_RECORDS = 20
"""Spark has caught up once it has acknowledged all but this many outputs of each slot; more come while it works."""
_NAMED = 10
"""Most files that a message names; of more it gives the number."""

Tell = Callable[[str], None]


class Stopped(NamedTuple):
    """Says of the processes who ended, who of them had to be killed, and who did not end, each as a text."""

    ended: list[str]
    killed: list[str]
    left: list[str]


class System:
    """The services of one configuration on this machine.

    Args:
        config: the configuration file that the services read; None means the one that this process reads.
        tell: called with one line for each thing that is done.
    """

    def __init__(self, settings: Settings, config: Path | None, tell: Tell) -> None:
        self.settings = settings
        self.config = config
        self.started: list[Process] = []
        self.tell = tell

    # ---- starting

    def start_broker(self) -> bool:
        """Start the local broker if the settings mean one and none answers; return whether it was started.

        Raises:
            BrokerError: the broker cannot be started.
            ProcessError: the configured broker is on another machine and does not answer, or the state directory cannot
                be made.
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
        """Make or check the topics; a log that belongs to another system is refused.

        Args:
            join: as in `tsunagi.system.identity.admit`.

        Raises:
            ConfigError: the log is of another system.
            LogError: a topic is not as expected (see `KafkaLog.ensure_topics`).
        """
        admit(self.settings, join=join)
        make_topics(self.settings)
        claim(self.settings)
        self.settings = quiet_log(self.settings, "up").with_slots(self.settings)
        self.tell("topics: there")

    def start_workers(self) -> list[str]:
        """Start scaler, workers, Spark and perhaps the learner, except for those that run; return their names."""
        self._start("scaler", "scaler", ["scaler", "run"])
        if self.settings.recovery.learn:
            self._start("learner", "learner", ["learner", "run"])
        names = worker_names(self.settings)
        for name in names:
            service = "gateway" if name.startswith("gw-") else "secondary"
            self._start(name, "worker", [service, "run", "--node", name])
        self._start("spark", "spark", ["spark", "run"])
        return ["scaler", *(["learner"] if self.settings.recovery.learn else []), *names, "spark"]

    def start_edges(self, edges: Iterable[str] | None = None) -> list[str]:
        """Start the edges of the sensors table in force, or the given ones; return their names."""
        if edges is None:
            edges = sensors_in_force(tool_log(self.settings, "up"), self.settings).edges
        names = list(edges)
        variables = {}
        if self.config is None and self.settings.source == SourceSettings():
            variables[SPEED_VARIABLE] = str(SHIPPED_SPEED)
            self.tell(
                f"edges: without a configuration the readings that come with Tsunagi run {SHIPPED_SPEED} times as fast"
            )
        for name in names:
            self._start(name, "edge", ["edge", "run", "--edge", name], variables)
        return names

    def start_sinks(self) -> None:
        """Start the sinks of the settings, except for those that run.

        Nobody waits for them: a database that is away does not keep a system from running.
        """
        for sink in self.settings.sinks:
            node = node_of(sink.name)
            self._start(node, "sink", ["sink", "run", "--sink", sink.name, "--node", node])

    def start_console(self) -> str:
        """Start the console, except if it runs; return its address. "" = it could not be started, which was told.

        Nothing else needs it, so that a port that is in use does not keep a system from running.
        """
        self._start("console", "console", ["console", "run"])
        deadline = time.monotonic() + CONSOLE_S
        while time.monotonic() < deadline:
            process = processes.find(self.settings.state, "console")
            if process is None or not processes.alive(process):
                processes.forget(self.settings.state, "console")
                self.tell(died(self.settings.state, "console"))
                return ""
            for line in processes.logged(self.settings.state, "started"):
                if line.get("service") == "console" and line.get("pid") == process.pid:
                    return str(line["address"])
            time.sleep(_POLL_S)
        self.tell(f"console: has not started within {CONSOLE_S:g} s")
        return ""

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
                f"{file}: damaged, or of another version, so it is not known whether {node} runs; "
                "end it by hand and delete the file"
            )
        if running is not None:
            processes.kill(running)  # what is left of its session, such as a dead Spark driver's JVM
        process = processes.start(self.settings, self.config, node, role, arguments, variables)
        self.started.append(process)
        self.tell(f"{node}: started (pid {process.pid})")

    # ---- waiting

    def wait_ready(self, nodes: Iterable[str], timeout_s: float = READY_S) -> None:
        """Wait until every slot has an owner and a ready secondary, and every node says that it is ready.

        With a large recovery model the wait is longer than `timeout_s`.

        Raises:
            ProcessError: a process died (the message has the end of its log), or time ran out (it says what is
                missing).
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
        """Wait until Spark has acknowledged nearly all outputs of the slots; return whether it has.

        Its first batch takes several times as long as later ones, because the JVM is cold.
        """
        if self.settings.query.mode == "tuples":
            return True  # Spark takes no part in such a query
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
        """Return what the system still lacks, for people; "" if nothing."""
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
        """Raise a `ProcessError` with the end of its log if the process of one of the nodes has died."""
        for node in nodes:
            process = processes.find(self.settings.state, node)
            if process is None or not processes.alive(process):
                raise ProcessError(died(self.settings.state, node))

    # ---- stopping

    def stop(self, *, broker: bool = True) -> Stopped:
        """Stop all processes that pid files name, the broker last; a process that does not end keeps its file.

        Raises:
            BrokerError: the broker did not end.
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
    """Return the broker that this configuration runs on this machine; None if its servers are elsewhere."""
    host, _, port = settings.kafka.servers.partition(":")
    if host not in LOCAL or not port.isdigit():
        return None
    return Broker(settings.state / "broker", int(port))


def unanswered(settings: Settings, timeout_s: float = 2.0) -> str:
    """Return why no broker answers at the configured servers; "" if one does."""
    errors = ConnectionErrors()
    options = client_options(settings.kafka) | dict(settings.kafka.options) | {"log_level": 0, "error_cb": errors}
    admin = make_client(AdminClient, options)
    try:
        return "" if admin.list_topics(timeout=timeout_s).brokers else "it names no brokers"
    except KafkaException as error:
        admin.poll(0)
        return errors.said(error)


def worker_names(settings: Settings) -> list[str]:
    """Return the workers' names: gw-1.. for at most as many as there are slots, and sec-1.. for the rest.

    Where there are three workers or more, at least two of them are called sec.
    """
    workers = settings.scaler.kept(settings.slots.count)
    gateways = min(settings.slots.count, max(1, workers - SPARE))
    return [f"gw-{i + 1}" for i in range(gateways)] + [f"sec-{i + 1}" for i in range(workers - gateways)]


def unready(host: str, port: int) -> str:
    """Ask a service's /readyz; return why the service is not ready, or "" if it is."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=2.0) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        return error.read().decode("utf-8", "replace").strip() or f"/readyz says {error.code}"
    except OSError as error:
        return f"/readyz does not answer: {error}"
    return ""


def died(state: Path, node: str) -> str:
    """Return a text that says that a node has died, with the last lines of its log in readable form."""
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
    """Remove the files of a stopped system from directories that Tsunagi made; tell what is removed and what stays.

    Raises:
        ProcessError: a file cannot be removed.
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
