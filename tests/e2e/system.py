"""A whole running system for a test: started, disturbed, waited for, stopped; nothing is left behind.

Every wait is for a condition, with a limit that only a broken system reaches; the message then holds the ends of all
logs. Time is never judged.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.stream import Inputs
from tsunagi.audit.evidence import Kill
from tsunagi.demo import faults
from tsunagi.demo.live import LiveReader
from tsunagi.local.fleet import Fleet
from tsunagi.local.queries import list_queries
from tsunagi.local.up import System
from tsunagi.query.results import QueryBlock, QueryResults
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import Late, TupleBatch
from tsunagi.runtime.settings import Settings, load
from tsunagi.runtime.toml_text import to_toml
from tsunagi.system import processes
from tsunagi.system.processes import Process
from tsunagi.system.topics import quiet_log, read_partition

PATIENCE_S = 300.0
SLOTS = 2
_LEAD_S = 4.0
_LOOK_S = 0.05
_TAIL_LINES = 15
_DOZEN = 12


class Rig:
    """One system.

    Args:
        directory: everything that it writes is below.
        servers: a broker that runs already, and is shared; "" = one of its own.
        prefix: of its topics.
        changes: keys on top of the configuration, by section.

    Attributes:
        kills: SIGKILLs, for the checker.
        down: edge -> times at which it was killed, microseconds.
    """

    def __init__(
        self,
        directory: Path,
        inputs: Inputs,
        *,
        servers: str,
        prefix: str = "",
        changes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.inputs = inputs
        self.directory = directory
        self.config = directory / "tsunagi.toml"
        self.kills: list[Kill] = []
        self.down: dict[str, list[int]] = {}
        self.origin_us = 0
        steps = inputs.steps
        self._tables: dict[str, Any] = {
            "state": str(directory / "run"),
            "sensors": str(inputs.sensors),
            "kafka": {"servers": servers, "prefix": prefix, "group_prefix": prefix or "tsunagi"},
            "steps": {"interval_s": steps.interval_s, "window": steps.window, "slide": steps.slide},
            "slots": {"count": SLOTS},
            "recovery": {"model": str(inputs.model), "store": str(directory / "models")},
            "spark": {"checkpoint": str(directory / "checkpoint"), "wait_s": 600.0},
            "scaler": {"workers": 5, "launcher": "none"},
            "source": {"path": str(inputs.data)},
        }
        for section, keys in (changes or {}).items():
            self._tables.setdefault(section, {}).update(keys)
        self.settings = self._configure(0)
        self.said: list[str] = []
        self.system = System(self.settings, self.config, self.said.append)
        self._log: KafkaLog | None = None
        self._live: LiveReader | None = None
        self._fleet: Fleet | None = None
        self.watches: list[faults.SlotWatch] = []

    def _configure(self, origin_us: int) -> Settings:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._tables["source"]["origin_us"] = origin_us
        self.config.write_text(to_toml(self._tables), encoding="utf-8")
        return load(self.config)

    # ---- start and end -----------------------------------------------------------------------------------------

    def start(self, *, clocks: Mapping[str, float] | None = None, edges: Iterable[str] | None = None) -> None:
        """Start everything, and wait until results of measured values come.

        Args:
            clocks: edge -> seconds by which its clock is fast (negative: slow).
            edges: those to start; None = all.
        """
        self.system.start_broker()
        self.system.make_topics()
        began = time.monotonic()
        nodes = self.system.start_workers()
        self.system.wait_ready(nodes, PATIENCE_S)
        assert self.system.wait_consuming(PATIENCE_S), self.report("Spark consumes nothing")
        lead_s = max(_LEAD_S, (time.monotonic() - began) / 3)  # edges start as slowly on a busy machine
        slide_us = self.inputs.steps.slide_us
        self.origin_us = -(-round((time.time() + lead_s) * 1e6) // slide_us) * slide_us
        self.settings = self._configure(self.origin_us)
        self.listen()
        offsets = clocks or {}
        for edge in self.inputs.table.edges if edges is None else edges:
            self.start_edge(edge, clock_offset_s=offsets.get(edge, 0.0))
        self.wait_results(self.origin_us // slide_us + 2 * self.inputs.steps.window // self.inputs.steps.slide)

    def listen(self) -> None:
        """Begin to follow the topics, which must be there."""
        self._log = quiet_log(self.settings, "e2e")
        self._live = LiveReader(self._log)
        self._fleet = Fleet(self._log)
        self.watches = [faults.SlotWatch(self._log, slot) for slot in range(SLOTS)]

    def close(self) -> None:
        """Stop everything, whatever state it is in."""
        for process in processes.list_processes(self.settings.state):
            processes.send_signal(process, signal.SIGCONT, session=True)
        if self._live is not None:
            self._live.close()
        for client in (self._fleet, *self.watches, self._log):
            if client is not None:
                client.close()
        self.kill_all()
        self.system.stop()
        left = [item.node for item in processes.list_processes(self.settings.state) if processes.alive(item)]
        assert not left, f"still running after the end: {left}"

    # ---- processes ---------------------------------------------------------------------------------------------

    def process(self, node: str) -> Process:
        """Return the process of a node."""
        found = processes.find(self.settings.state, node)
        assert found is not None, f"no process of the name {node}"
        return found

    def pids(self) -> dict[str, int]:
        """Return node -> process id of all that live."""
        found = processes.list_processes(self.settings.state)
        return {item.node: item.pid for item in found if processes.alive(item)}

    def start_edge(self, edge: str, *, clock_offset_s: float = 0.0) -> None:
        """Start an edge."""
        arguments = ["edge", "run", "--edge", edge]
        if clock_offset_s:
            arguments += ["--clock-offset", str(clock_offset_s)]
        processes.start(self.settings, self.config, edge, "edge", arguments)

    def kill_edge(self, edge: str) -> None:
        """SIGKILL an edge."""
        kill = faults.kill_edge(self.settings.state, edge)
        processes.forget(self.settings.state, edge)
        self.kills.append(kill)
        self.down.setdefault(edge, []).append(kill.at_us)

    def edge_back(self, edge: str) -> None:
        """Start a killed edge again, and wait until its batches come."""
        began_us = time.time_ns() // 1000
        self.start_edge(edge)
        self.wait(lambda: self.published_us(edge) > began_us, f"batches of {edge} after its return")

    def kill_owner(self, slot: int) -> Kill:
        """SIGKILL a slot's owner while tuples are in flight."""
        kill = faults.kill_owner(self.settings.state, self.watches[slot], self.fleet, slot)
        self.kills.append(kill)
        return kill

    def worker_back(self, node: str) -> None:
        """Start a killed worker again."""
        processes.forget(self.settings.state, node)
        processes.start(self.settings, self.config, node, "worker", ["gateway", "run", "--node", node])

    def signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to a node's process."""
        assert processes.send_signal(self.process(node), number), self.report(f"{node} does not run")

    def kill_spark(self) -> None:
        """SIGKILL Spark's driver, and with it what it has started."""
        assert processes.kill(self.process("spark")), self.report("Spark does not run")
        processes.forget(self.settings.state, "spark")

    def start_spark(self) -> None:
        """Start Spark's driver."""
        processes.start(self.settings, self.config, "spark", "spark", ["spark", "run"])

    def empty_checkpoint(self) -> None:
        """Remove Spark's checkpoint, and our state beside it."""
        shutil.rmtree(self.settings.spark.checkpoint)

    # ---- waiting -----------------------------------------------------------------------------------------------

    @property
    def log(self) -> KafkaLog:
        """The log, for tests."""
        assert self._log is not None
        return self._log

    @property
    def live(self) -> LiveReader:
        """The reader of results that runs beside."""
        assert self._live is not None
        return self._live

    @property
    def fleet(self) -> Fleet:
        """Heartbeats and acknowledgements."""
        assert self._fleet is not None
        return self._fleet

    def wait(self, until: Callable[[], bool], what: str, at_most_s: float = PATIENCE_S) -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + at_most_s
        self._look()  # before the first question: what was seen last may have been a while ago
        while not until():
            assert time.monotonic() < deadline, self.report(f"waited {at_most_s:g} s for {what}, in vain")
            assert self.live.error is None, self.report(f"the reader of results failed: {self.live.error}")
            self._look()

    def _look(self) -> None:
        self.fleet.update(_LOOK_S)
        for watch in self.watches:
            watch.update()

    def kill_all(self) -> None:
        """Kill all processes but the broker: what they have said is known, and judging it needs the cores."""
        # The scaler first: it starts workers.
        found = processes.list_processes(self.settings.state)
        for process in sorted(found, key=lambda item: item.role != "scaler"):
            processes.kill(process)

    def restart(self, node: str, role: str, arguments: Sequence[str]) -> None:
        """Stop a node in good order, start it anew, and wait until its new process is heard."""
        processes.terminate([self.process(node)])
        processes.forget(self.settings.state, node)
        pid = processes.start(self.settings, self.config, node, role, arguments).pid
        self.wait(lambda: (beat := self.fleet.fresh().get(node)) is not None and beat.pid == pid, f"{node} to be heard")

    def wait_results(self, step: int) -> None:
        """Wait until every group has the results of a step."""
        self.wait(lambda: self.live.newest() >= step, f"results of step {step} (now: {self.live.newest()})")

    def advance(self, steps: int = 15) -> None:
        """Wait until results have passed the present time by some steps."""
        self.wait_results(time.time_ns() // 1000 // self.inputs.steps.slide_us + steps)

    def wait_filled(self, query: str) -> None:
        """Wait until a query that was added with the past is as far as the others, and all have gone on."""
        self.wait(lambda: self._state_of(query) == "runs", f"query {query} to be filled")
        self.advance()

    def _state_of(self, query: str) -> str:
        return next((str(item["state"]) for item in list_queries(self.settings) if item["query"] == query), "unknown")

    def wait_owner(self, slot: int, after: int) -> str:
        """Wait until a slot has an owner of a later epoch than `after`; return it."""
        watch = self.watches[slot]
        self.wait(lambda: watch.epoch > after, f"a new owner of slot {slot} after epoch {after}")
        return watch.owner

    def wait_protected(self) -> None:
        """Wait until every slot has its owner, by log and heartbeat, and a secondary that is ready on another node."""
        for slot, watch in enumerate(self.watches):
            self.wait(
                lambda slot=slot, watch=watch: bool(  # type: ignore[misc]
                    (found := self.fleet.of_slot(slot, "primary"))
                    and found[0] == watch.owner
                    and self.fleet.standby_ready(slot, watch.owner)
                ),
                f"an owner and a ready secondary of slot {slot}",
            )

    def published_us(self, edge: str) -> int:
        """Return the event time of the newest step that an edge says it has published; 0 = it is not heard of."""
        beat = self.fleet.fresh("edge").get(edge)
        return 0 if beat is None else beat.step * self.inputs.steps.slide_us

    # ---- looking -----------------------------------------------------------------------------------------------

    def lines(self, node: str) -> list[dict[str, Any]]:
        """Return what a node has logged, as far as it is JSON."""
        found = []
        for line in processes.tail(self.settings.state, node, 1_000_000):
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if isinstance(fields, dict):
                found.append(fields)
        return found

    def notes(self) -> list[dict[str, Any]]:
        """Return what the workers logged of their takeovers."""
        nodes = [file.stem for file in sorted((self.settings.state / "logs").glob("*.log"))]
        return [line | {"by": node} for node in nodes for line in self.lines(node) if line.get("event") == "takeover"]

    def metric(self, node: str, sample: str) -> float:
        """Return a sample of a node's metrics, as ``name{label="value"}``; 0 = it has none."""
        port = self.fleet.beats[node].message.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == sample]
        return float(values[0]) if values else 0.0

    def answers(self) -> list[QueryBlock]:
        """Return the rows of queries, in the order of each partition, without repeats."""
        with QueryResults(self.log, self.settings) as results:
            found = list(results.blocks())
            assert results.unreadable_count == 0
            return found

    def late(self) -> list[TupleBatch]:
        """Return the batches of living edges that came when their step had closed: an overloaded machine took the time.

        They stand in the topic `late`, and results have nothing of them. A test that compares results with what edges
        were given counts them apart.
        """
        records = read_partition(self.log, LATE, 0)
        found = [Late.FromString(record.value or b"") for record in records]
        return [message.batch for message in found if message.reason == "closed"]

    def report(self, what: str) -> str:
        """Return a message with the ends of all logs."""
        parts = [what, *self.said[-_DOZEN:]]
        for process in processes.list_processes(self.settings.state):
            state = "runs" if processes.alive(process) else "DEAD"
            parts.append(f"---- {process.node} ({process.role}, pid {process.pid}, {state})")
            parts += [line[:400] for line in processes.tail(self.settings.state, process.node, _TAIL_LINES)]
        return "\n".join(parts)
