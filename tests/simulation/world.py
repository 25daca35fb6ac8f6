"""A whole Tsunagi in virtual time: the real worker hosts and the real scaler on the log in memory, with simulated
edges.

Everything random hangs on one seed, so that a failing run replays from it. Faults are drawn by `schedule`, and may
strike between any two actions of a replica, inside a promotion too.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import random
import shutil
from collections import Counter
from functools import cache
from operator import attrgetter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import numpy as np
import structlog

from tests.simulation import poison
from tests.simulation.nodes import Node, NodeClock, SimEdge
from tests.simulation.poison import Killed
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store
from tsunagi.replay.generations import begins_term
from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock, SteadyClock
from tsunagi.runtime.columns import pack_floats, pack_sensors, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.heartbeat import Heard, ReplacedError
from tsunagi.runtime.log import LogError, Record
from tsunagi.runtime.messages import VERSION, Context, Heartbeat, HelperRequest, LogRecord, Plan, TupleBatch, Workers
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import Sensor, SensorTable, place
from tsunagi.runtime.settings import Operator, Paper, Query, Recovery, Settings, Slots, Standby, Steps
from tsunagi.runtime.settings import Scaler as ScalerSettings
from tsunagi.runtime.testing import MemoryLog, Network
from tsunagi.scaler.scaler import Scaler
from tsunagi.slot.parsing import parse
from tsunagi.standby import actions as act
from tsunagi.worker.host import ANNOUNCE_S, Host

TICK_S = 0.02
"""As long as an idle worker waits for records in each of its turns."""

SCALER_TURN_S = 0.045
"""As long as the scaler waits for records in each of its turns."""

HEARD_S = 0.5
"""An edge that has been up for so long knows the log's time from the answers to its batches."""

EDGES = 4
SENSORS = 3
SLOTS = 2
WORKERS = ("gw-1", "gw-2", "sec-1", "idle-1")
BATCHES: tuple[int | str, ...] = (1, 20, 100, "inf")
LIMITS: tuple[dict[str, Any], ...] = (
    {"policy": "model", "max_bandwidth": 900.0, "max_recovery_s": 0.01},
    {"max_bandwidth": 1200.0, "priority": "bandwidth"},
)
"""B of the secondaries, by seed; in one run of eight it is to be kept within limits, in one they speculate. Half of the
runs with limits keep them by algorithm 3."""

WITHOUT_STEPS: tuple[dict[str, Any], ...] = (
    {"use": "select", "share": 0.9},
    {"use": "aggregate", "function": "sum", "window": 7, "slide": 2},
)
"""What is computed in one run of eight, each tuple as it comes."""

EPS = 1.12
"""Tolerated error in a run with a model. With an edge down a slot cannot keep it by itself; with sensors of the other
slot it can."""

PART_BYTES = 300
"""Size of a record of `contexts` at most in one run of nine: every context is larger, and is written in parts."""

UNEVEN = (0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1)
"""The sensors' edges of such a run: the last has one, which is in one slot, and helps the other from outside."""

_silent = structlog.wrap_logger(
    structlog.PrintLogger(), processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)]
)


@cache
def _recovery() -> Recovery:
    """Write the model of a process's runs; return the settings that go by it. Refits come often."""
    directory = Path(mkdtemp(prefix="tsunagi-simulation-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    n = EDGES * SENSORS
    prior = 0.4 * np.eye(n) + 0.6
    zeros = np.zeros(n, dtype=np.float64)
    structure = {"transition": "diagonal", "shrinkage": 0.1, "persistence": 0.9, "lag": 0}
    about = {"steps": 100, "structure": structure}
    names = tuple(f"s{sensor}" for sensor in range(n))
    scale = zeros + 1.0
    model = Model(
        names, 10.0 * np.arange(n, dtype=np.float64), scale, zeros + 0.9, 0.19 * prior, prior, zeros, about=about
    )
    model.save(directory / "model.bin")
    return Recovery(
        model=str(directory / "model.bin"),
        store=directory / "models",
        eps=EPS,
        calibrate=False,
        refit=True,
        refit_s=2.0,
    )


def value(sensor: int, step: int) -> float:
    """What a sensor reads."""
    return 10.0 * sensor + math.sin(step / 7 + sensor)


class World:
    """One run. `log`, `nodes` and `edges` are there for the checker.

    Attributes:
        struck: nodes and edges that were killed, stopped or cut off; "broker" if it was stopped, "log" if it
            lost something.
        were_cut: nodes and edges that were cut off, be it a while ago.
        repeats: (topic, partition, offset) of records that somebody appended again.
        lost: records that the log of a slot has lost.
        removed: (topic, partition) -> records that retention or compaction took in good order.
        damaged: (topic, partition, offset) of records that nobody can use.
        elders: processes that another of their name was started beside; each is to end by itself.
        jumped: (edge, incarnation) of processes that knew the true time when their machine's clock jumped.
        mutes: edge -> how often its heartbeats alone stayed away.
        poisonings: deadly reading -> how many workers have died of it, and how many strikes there were before it.
        strikes: how many there were.
        operators_changed: a rolling restart has changed what the slots compute.
        ends: processes that gave themselves up, and why.
    """

    def __init__(
        self,
        seed: int,
        *,
        standby: dict[str, Any] | None = None,
        operators: tuple[dict[str, Any], ...] = (),
        mode: Literal["steps", "tuples"] = "steps",
        modelled: bool = False,
        poisonous: bool = False,
    ) -> None:
        self.seed = seed
        self.poisonous = poisonous
        self.rng = random.Random(seed)
        self.tick_s = TICK_S
        self.clock = ManualClock()
        self.began_us = self.clock.now_us()
        self.events: list[tuple[float, str]] = []
        edges = [f"edge-{i + 1}" for i in range(EDGES)]
        edge_of = UNEVEN if modelled else [i % EDGES for i in range(EDGES * SENSORS)]
        self.table = SensorTable(tuple(Sensor(i, f"s{i}", edges[edge]) for i, edge in enumerate(edge_of)))
        chain = operators or ({"use": "recover"}, {"use": "aggregate", "function": "sum", "window": 3})
        if poisonous:
            chain = (*chain[:1], *poison.OPERATORS, *chain[1:])
        self.settings = Settings(
            steps=Steps(interval_s=0.1, window=10, slide=2, grace_s=0.5),
            slots=Slots(count=SLOTS),
            standby=Standby(**(standby or {"batch_size": 20}), context_s=0.5),
            scaler=ScalerSettings(workers=len(WORKERS), launcher="none"),
            paper=Paper(batch_steps=seed % 16 == 15),
            query=Query(mode=mode, operators=tuple(Operator(**options) for options in chain)),
            recovery=_recovery() if modelled else Recovery(),
        )
        self._asked: dict[int, HelperRequest] = {}
        self._words = Words()
        self._plan_read = 0
        layout = dict.fromkeys(topics.TOPICS, 1) | dict.fromkeys(
            (topics.TUPLES, topics.RECOVERED, topics.CONTEXTS), SLOTS
        )
        self.network = Network(
            # A third of the runs on a slow network, the others with outputs that are slow alone: much is on its way
            # whenever something breaks.
            produce_s=(0.0005, 0.12 if seed % 3 == 0 else 0.004),
            produce_to_s=dict.fromkeys((topics.RECOVERED, topics.LATE), (0.01, 0.6)) if seed % 3 else {},
            ack_s=(0.0005, 0.08 if seed % 3 == 0 else 0.003),
            fetch_s=(0.0, 0.01),
            reconnect_s=(0.02, 0.4),
            ghost=0.8,
        )
        self.log = MemoryLog(self.clock, layout, network=self.network, rng=random.Random(seed + 1))
        slot_of = place(self.table, SLOTS)
        self.edges = [
            SimEdge(
                name,
                self.log.client(name),
                {
                    slot: [s.id for s in self.table.of_edge(name) if slot_of[s.id] == slot]
                    for slot in range(SLOTS)
                    if any(slot_of[s.id] == slot for s in self.table.of_edge(name))
                },
                clock := NodeClock(self.clock),
                SteadyClock(clock),
            )
            for name in edges
        ]
        self.nodes = {name: Node(name, self.log.client(name), NodeClock(self.clock)) for name in WORKERS}
        if seed % 5 == 0:  # a worker's time of day may be off from the start
            for node in self.nodes.values():
                node.clock.skew_us = self.rng.randrange(-600_000_000, 600_000_000)
        self.scaler = Node("scaler", self.log.client("scaler"), NodeClock(self.clock))
        self.rivals: list[tuple[Node, float]] = []  # scalers that run by mistake, and until when
        self.elders: list[Node] = []
        self._user = self.log.client("user").producer()
        self.broker_up = True
        self.struck: set[str] = set()
        self.ends: list[str] = []
        self.repeats: set[tuple[str, int, int]] = set()
        self.damaged: set[tuple[str, int, int]] = set()
        self.removed: dict[tuple[str, int], list[Record]] = {}
        self.jumped: set[tuple[str, int]] = set()
        self.off_s = 0.0  # how far off an edge's clock was set at most
        self.mutes: Counter[str] = Counter()
        self.poisonings: dict[float, tuple[int, int]] = {}
        self.strikes = 0
        self.operators_changed = False
        self.cut: dict[str, str] = {}  # name -> the client that is cut off
        self.were_cut: set[str] = set()
        self.lost: dict[int, list[Record]] = {slot: [] for slot in range(SLOTS)}
        self._lost_contexts: dict[int, set[int]] = {slot: set() for slot in range(SLOTS)}

    @classmethod
    def of_seed(cls, seed: int) -> World:
        """Return the world of a seed: how the secondaries stand by goes with it too."""
        limits = LIMITS[seed % 2] if seed % 16 >= 14 else {}
        speculates = seed % 8 == 7
        batch = BATCHES[(seed // 8 if speculates else seed) % len(BATCHES)]  # by eights, so that each B speculates
        parts = {"context_bytes": PART_BYTES} if seed % 9 == 4 else {}
        standby = {"batch_size": batch, "speculate": speculates, **limits, **parts}
        poisonous = seed % 5 in (2, 4)
        if seed % 8 == 6:
            return cls(seed, standby=standby, operators=WITHOUT_STEPS, mode="tuples", poisonous=poisonous)
        return cls(seed, standby=standby, modelled=seed % 8 in (3, 5), poisonous=poisonous)

    def load_model(self, sha256: str) -> Model:
        """Return a model that a log names."""
        return load_from_store(self.settings.recovery.store, sha256)

    # ---- time --------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def step_now(self) -> int:
        return self.clock.now_us() // self.settings.steps.slide_us

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.clock.advance(self.tick_s)
            self.tick()

    def tick(self) -> None:
        """One turn of everybody, in random order."""
        for edge in self.edges:
            self._turn_edge(edge)
        for other, until in list(self.rivals):
            if self.now >= until:
                self.rivals.remove((other, until))
                other.client.crash()
        nodes = [*self.nodes.values(), self.scaler, *self.elders, *(other for other, _ in self.rivals)]
        self.rng.shuffle(nodes)
        with poison.armed():
            for node in nodes:
                self._turn(node)

    def _turn(self, node: Node) -> None:
        if node.paused or self.now < node.turn_at or self._announcing(node):
            return
        node.turn_at = self.now + (SCALER_TURN_S if node.name == "scaler" else 0.0)
        if node.made is None:
            if node.restart_at is None or self.now < node.restart_at:
                return
            with contextlib.suppress(LogError):
                self._boot(node)
            if node.made is None:
                return
        try:
            if self.now - node.beat_at >= self.settings.standby.heartbeat_s:
                node.beat_at = self.now
                node.made.heartbeats.send()
            node.made.step()
        except Killed as death:
            self.note(f"{node.name} {death}")
            if isinstance(death, poison.Poisoned) and death.value in self.poisonings:
                deaths, since = self.poisonings[death.value]
                self.poisonings[death.value] = deaths + 1, since
            self._bury(node)
        except (LogError, ReplacedError) as error:
            self.note(f"{node.name} ended: {error}")
            self.ends.append(f"{node.name} ended: {error}")
            self._bury(node)

    def _announcing(self, node: Node) -> bool:
        """Return whether a worker waits until the log has what it announces, as a call does in real time."""
        if node.announced_by is None or node.made is None:
            return False
        producer = node.made.heartbeats._producer
        waits = getattr(producer, "_producer", producer).queued > 0  # one that signs sends through another
        if waits and self.now < node.announced_by:
            return True
        node.announced_by = None
        if waits:
            for replica in node.made.replicas.values():
                replica.on_unannounced()
        return False

    def _boot(self, node: Node) -> None:
        try:
            settings = node.settings or self.settings
            if node.name == "scaler":
                node.made = Scaler(settings, self.table, node.client, node.clock, _silent)
            else:
                host = Host(settings, node.name, self.table, node.client, node.clock, _silent, threads=False)
                self._arm(node, host)
                node.made = host
        except LogError:
            node.client.crash()
            raise
        node.beat_at = 0.0
        self.note(f"{node.name} started")

    def _arm(self, node: Node, host: Host) -> None:
        carried_out = host._do

        def do(replica: Any, action: act.Action) -> list[act.Action]:
            if node.crash_after is not None:
                node.crash_after -= 1
                if node.crash_after < 0:
                    node.crash_after = None
                    raise Killed("died between two actions")
            todo = carried_out(replica, action)
            if node.cut_writing and isinstance(action, act.Append):
                node.cut_writing = False
                self.cut_off(node.name)
            return todo

        def announce() -> bool:
            host.heartbeats.send()
            node.announced_by = self.now + ANNOUNCE_S
            return True

        host._do = do  # type: ignore[method-assign]
        host._announce = announce  # type: ignore[method-assign]

    def _bury(self, node: Node) -> None:
        node.client.crash()
        node.made = None
        if node in self.elders:
            self.elders.remove(node)  # nobody starts it again: the one who began later goes on
        node.paused = False
        node.crash_after = node.announced_by = None
        node.restart_at = self.now + self.rng.uniform(0.3, 3.0)

    # ---- edges -------------------------------------------------------------------------------------------------

    def _turn_edge(self, edge: SimEdge) -> None:
        if self.now < edge.alive_from or edge.paused:
            return
        if edge.producer is None or edge.beats is None:
            edge.producer = edge.client.producer()
            edge.beats = edge.client.producer(durable=False)
            edge.steady, edge.was_right = SteadyClock(edge.clock), edge.clock.right
            edge.incarnation = max(edge.steady.now_us() * 1000, edge.incarnation + 1)
            # It goes on with the present, or from its note of where it was, which is a little old.
            present = self._step_of(edge)
            noted = max(edge.next_step - self.rng.choice((1, 2)), present - 20)
            edge.next_step = noted if edge.repeats else max(present + 1, edge.next_step)
            if edge.next_step > present + self._ahead_steps:  # the note is of a time to come: the clock was set back
                edge.next_step = present + 1
        self._follow_clock(edge)
        until = self._step_of(edge)
        lent = self._lent(edge) if edge.next_step <= until else {}
        while edge.next_step <= until:
            step = edge.next_step
            for slot in sorted({*edge.sensors, *lent}):
                ids, helpers = edge.sensors.get(slot, []), lent.get(slot, [])
                batch = TupleBatch(
                    edge=edge.name,
                    incarnation=edge.incarnation,
                    step=step * self.settings.steps.slide_us // self.settings.slide_us,
                    event_time_us=step * self.settings.steps.slide_us,
                    sensor=pack_sensors(ids),
                    value=pack_floats([value(sensor, step) for sensor in ids]),
                    count=pack_sensors([10] * len(ids)),
                    helper=pack_sensors(helpers),
                    helper_value=pack_floats([value(sensor, step) for sensor in helpers]),
                )
                if ids and edge.poison is not None:
                    batch.value = pack_floats([edge.poison] * len(ids))
                    edge.poison = None
                if ids:
                    edge.sent[slot, edge.incarnation, batch.event_time_us] = self.now
                record = LogRecord(version=VERSION, batch=batch)
                edge.producer.send(topics.TUPLES, slot, edge.name.encode(), record.SerializeToString())
            edge.next_step += 1
        if self.now - edge.beat_at >= self.settings.standby.heartbeat_s:
            edge.beat_at = self.now
            self._beat(edge)

    @property
    def _ahead_steps(self) -> int:
        return round(self.settings.steps.max_ahead_s / self.settings.steps.slide_s)

    def _step_of(self, edge: SimEdge) -> int:
        """Return the last step that is over by an edge's own clock."""
        return edge.steady.now_us() // self.settings.steps.slide_us

    def _follow_clock(self, edge: SimEdge) -> None:
        """Go on past a jump of the machine's clock, or follow it, by the rules of `tsunagi.edge.service`."""
        if self.log.reaches(edge.name) and self.now - edge.alive_from > HEARD_S:
            edge.steady.hear(self.clock.now_us(), self.now)
        moved_us = edge.steady.look()
        if moved_us < -self.settings.steps.max_ahead_s * 1e6:
            edge.next_step = self._step_of(edge) + 1  # the slots took nothing of what it sent: it begins anew
        elif moved_us > self.settings.steps.max_ahead_s * 1e6:
            edge.next_step = self._step_of(edge)  # there is no reading of the time between

    def _beat(self, edge: SimEdge, *, leaving: bool = False) -> None:
        if edge.beats is None:
            return
        edge.beats_sent += 1
        beat = Heartbeat(
            version=VERSION,
            node=edge.name,
            role="edge",
            incarnation=edge.incarnation,
            sequence=edge.beats_sent,
            leaving=leaving,
            step=edge.next_step - 1,
        )
        edge.beats.send(topics.HEARTBEATS, 0, edge.name.encode(), beat.SerializeToString())
        edge.beats.poll()

    def _lent(self, edge: SimEdge) -> dict[int, list[int]]:
        """Return which sensors of an edge other slots have asked for."""
        records = self.log.stored(topics.PLAN, 0).records
        for record in records[self._plan_read :]:
            if not (record.key or b"").startswith(b"helpers/"):
                continue
            try:
                plan = decode(Plan, record.value)
            except UnusableError:
                continue
            if plan.helpers.slot < SLOTS and self._words.take(plan, record.offset):
                self._asked[plan.helpers.slot] = plan.helpers
        self._plan_read = len(records)
        if not self._asked:
            return {}
        own = {sensor for ids in edge.sensors.values() for sensor in ids}
        found = {slot: sorted(own & set(sensors(request.sensor).tolist())) for slot, request in self._asked.items()}
        return {slot: ids for slot, ids in found.items() if ids}

    # ---- faults ------------------------------------------------------------------------------------------------

    def note(self, event: str) -> None:
        """Keep a line for the report of a failing run."""
        self.events.append((round(self.now, 3), event))

    def owner(self, slot: int) -> str:
        """Return who owns a slot by its log."""
        epoch, owner = 0, ""
        for record in self.history(topics.TUPLES, slot):
            message, _, kind = parse(record)
            if message is not None and kind == "ownership" and begins_term(message.ownership, epoch):
                epoch, owner = message.ownership.epoch, message.ownership.node
        return owner

    def settled(self) -> bool:
        """Return whether each slot has one owner that has caught up and has said so, and nobody is being promoted."""
        said = [part for name, beat in self.last_beats().items() if name in self.nodes for part in beat.slots]
        owned = sorted(part.slot for part in said if part.role == "primary")
        promoted = any(part.role == "promoting" or part.taking_up for part in said)
        return owned == list(range(SLOTS)) and not promoted

    def history(self, topic: str, partition: int = 0) -> list[Record]:
        """Return all records of a partition, those that retention or compaction has taken included."""
        records: list[Record] = self.log.records(topic, partition)
        removed = self.removed.get((topic, partition))
        return sorted(removed + records, key=attrgetter("offset")) if removed else records

    def usable(self, topic: str, partition: int = 0) -> list[Record]:
        """Return the same without those that nobody can use."""
        records = self.history(topic, partition)
        if not self.damaged:
            return records
        return [record for record in records if (topic, partition, record.offset) not in self.damaged]

    def sending(self, name: str) -> bool:
        """Return whether a worker has outputs on their way."""
        made = self.nodes[name].made
        return made is not None and any(len(replica.pending) for replica in made.replicas.values())

    def kill(self, name: str) -> None:
        """SIGKILL."""
        node = self.nodes.get(name, self.scaler)
        if node.made is not None:
            self.note(f"kill {name}")
            self.struck.add(name)
            self._bury(node)

    def kill_inside(self, name: str, actions: int) -> None:
        """SIGKILL after so many more actions."""
        node = self.nodes[name]
        if node.made is not None:
            self.note(f"kill {name} after {actions} actions")
            self.struck.add(name)
            node.crash_after = actions

    def pause(self, name: str, *, paused: bool) -> None:
        """SIGSTOP, SIGCONT."""
        node = self.nodes[name]
        if node.made is not None or not paused:
            self.note(f"{'stop' if paused else 'continue'} {name}")
            self.struck.add(name)
            node.paused = paused and node.made is not None

    def cut_off(self, name: str) -> None:
        """Partition one node from the log."""
        if name not in self.cut:
            self.note(f"cut off {name}")
            self.struck.add(name)
            self.cut[name] = self.nodes[name].client.client_id if name in self.nodes else name
            self.were_cut.add(name)
            self.log.partition_client(self.cut[name])

    def cut_off_writing(self, name: str) -> None:
        """Partition one node from the log right after it has sent its next control record."""
        self.nodes[name].cut_writing = True

    def join(self, name: str) -> None:
        """Heal it."""
        if name in self.cut:
            self.note(f"join {name}")
            self.log.heal(self.cut.pop(name))

    def rescale(self, workers: int) -> None:
        """Ask for so many workers: nobody starts or stops any, but slots are moved away from the others."""
        self.note(f"rescale to {workers}")
        self.struck.update(self.nodes)  # any of them may be deposed
        asked = Workers(count={"local": workers}, by="operator")
        wanted = Plan(version=VERSION, workers=asked, serial=self._words.next("workers"))
        self._user.send(topics.PLAN, 0, b"workers", wanted.SerializeToString())

    def rival(self, seconds: float) -> None:
        """Start a second scaler by mistake; it goes away after a while."""
        self.note("a second scaler")
        other = Node("scaler", self.log.client("scaler-2"), NodeClock(self.clock))
        self.rivals.append((other, self.now + seconds))

    def broker(self, *, up: bool) -> None:
        """Stop or start the broker."""
        if up != self.broker_up:
            self.note(f"broker {'up' if up else 'down'}")
            self.struck.add("broker")
            self.broker_up = up
            (self.log.start if up else self.log.stop)()

    def lose_end(self, slot: int, count: int, *, topic: str = topics.TUPLES, all_die: bool = False) -> None:
        """Kill the broker, which loses the last records of a slot in a topic; `all_die`: the workers with it."""
        self.note(f"power cut: {topic}/{slot} loses {count} records{', all workers die' if all_die else ''}")
        self.struck.add("log")
        self.broker(up=False)
        if all_die:
            for name in self.nodes:
                self.kill(name)
        self.run(0.3)
        stored = self.log.stored(topic, slot)
        self._lose(topic, slot, stored.records[-count:])
        self.log.lose_end(topic, slot, stored.end - count)
        self.broker(up=True)

    def make_anew(self, topic: str) -> None:
        """Delete a topic and make it again while the broker is away; nobody is told."""
        self.note(f"{topic} is made anew")
        self.struck.add("log")
        self.broker(up=False)
        self.run(0.3)
        for slot in range(SLOTS):
            self._lose(topic, slot, self.log.records(topic, slot))
        self.log.make_anew(topic)
        self.broker(up=True)

    def outlast_retention(self, away_s: float) -> None:
        """All workers die and come back when what stood in `tuples` and `contexts` by then is gone."""
        self.note(f"all workers are away for {away_s:.1f} s, longer than the retention")
        self.struck.add("log")
        for name, node in self.nodes.items():
            self.kill(name)
            node.restart_at = None
        for slot in range(SLOTS):
            for topic in (topics.TUPLES, topics.CONTEXTS):
                self._lose(topic, slot, self.log.records(topic, slot))
                self.log.truncate(topic, slot, self.log.stored(topic, slot).end)
        self.run(away_s)
        for node in self.nodes.values():
            node.restart_at = self.now

    def _lose(self, topic: str, slot: int, records: list[Record]) -> None:
        unusable = [record for record in records if (topic, slot, record.offset) in self.damaged]
        records = [record for record in records if record not in unusable]
        self.damaged -= {(topic, slot, record.offset) for record in unusable}  # others will stand there
        if topic == topics.TUPLES:
            self.lost[slot] += records
        elif topic == topics.CONTEXTS:
            firsts = (record.offset - Context.FromString(record.value or b"").part for record in records)
            self._lost_contexts[slot].update(firsts)

    def lost_contexts(self, slot: int, place: int) -> bool:
        """Return whether a context at this place of `contexts`, or a part of it, was lost; another may stand there."""
        return place in self._lost_contexts[slot]

    def kill_edge(self, number: int, down_s: float, *, repeats: bool = False) -> None:
        """SIGKILL an edge; it comes back, and sends its last steps again if it `repeats` itself."""
        edge = self.edges[number]
        edge.repeats = repeats or self.rng.random() < 0.3
        self.note(f"kill {edge.name} for {down_s:.2f} s")
        self.struck.add(edge.name)
        if edge.producer is not None:
            edge.client.crash()
            edge.producer = edge.beats = None
            edge.died[edge.incarnation] = self.now
        edge.alive_from = self.now + down_s

    def heal_all(self) -> None:
        """End every fault; the dead start again."""
        self.broker(up=True)
        for name in sorted(self.cut):
            self.join(name)
        self.log.muted.clear()
        for edge in self.edges:
            edge.clock.set_off(0)
        for node in [*self.nodes.values(), self.scaler, *self.elders]:
            node.paused = False
            node.crash_after = None
            node.cut_writing = False
            node.clock.set_off(0)
            if node.made is None and node.restart_at is not None:
                node.restart_at = min(node.restart_at, self.now)

    def last_beats(self) -> dict[str, Heartbeat]:
        """Return every node's last heartbeat."""
        beats, heard = {}, Heard()
        for record in self.usable(topics.HEARTBEATS):
            beat = Heartbeat.FromString(record.value or b"")
            if heard.news(beat):
                beats[beat.node] = beat
        return beats
