"""A whole Tsunagi in virtual time: the real worker hosts and the real scaler on the log in memory, with simulated
edges.

Everything random hangs on one seed, so that a failing run replays from it. Faults are drawn by `schedule`, and may
strike between any two actions of a replica, inside a promotion too.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from operator import attrgetter
from typing import Any, Literal

import structlog

from tests.simulation import moves, poison
from tests.simulation.edges import Asked, SimEdge
from tests.simulation.fleet import (
    LAYOUT,
    SLOTS,
    WITH_STEPS,
    WORKERS,
    make_network,
    make_settings,
    make_table,
    options_of,
    sensors_by_slot,
)
from tests.simulation.nodes import Node, NodeClock, SimLifelines
from tests.simulation.poison import Killed
from tsunagi.owner import filler
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store
from tsunagi.replay.generations import begins_term
from tsunagi.runtime import log as topics
from tsunagi.runtime.cells import Cells, partitions_for
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import Sensors, sensors
from tsunagi.runtime.fleet_table import KEY, pack_table
from tsunagi.runtime.heartbeat import HeartbeatFilter, ReplacedError
from tsunagi.runtime.log import LogError, Record
from tsunagi.runtime.messages import VERSION, Heartbeat, Plan
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.testing import MemoryLog
from tsunagi.scaler.scaler import Scaler
from tsunagi.slot.parsing import parse
from tsunagi.standby import actions as act
from tsunagi.worker.host import ANNOUNCE_S, ReplicaHost

TICK_S = 0.02
"""As long as an idle worker waits for records in each of its turns."""

SCALER_TURN_S = 0.045
"""As long as the scaler waits for records in each of its turns."""

_silent = structlog.wrap_logger(
    structlog.PrintLogger(), processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)]
)


PER_RECORD = 4
"""The most outputs of a record without steps: rows of the operators, and of each query in `tuples.sql`."""
PER_PAST = 20
"""The most outputs of a record that fills a query with the past."""
filler.MOST_RECORDS = PER_PAST  # a world is short, and many records of the past should come in it


WRONG_HINTS_S = 0.1
"""How often a second the connection to a worker ends although its process lives."""


class World:
    """One run. `log`, `nodes` and `edges` are there for the checker.

    Attributes:
        struck: nodes and edges that were killed, stopped or cut off; "broker" if it was stopped, "log" if it
            lost something.
        were_cut: nodes and edges that were cut off, be it a while ago.
        repeats: (topic, partition, offset) of records that somebody appended again.
        lost: records that the log of a slot has lost.
        lost_contexts: slot -> places of contexts of which at least a part was lost; others may stand there now.
        removed: (topic, partition) -> records that retention or compaction took in good order.
        damaged: (topic, partition, offset) of records that nobody can use.
        elders: processes that another of their name was started beside; each is to end by itself.
        jumped: (edge, incarnation) of processes that knew the true time when their machine's clock jumped.
        mutes: edge -> how often its heartbeats alone stayed away.
        poisonings: deadly reading -> how many workers have died of it, and how many strikes there were before it.
        strikes: how many there were.
        operators_changed: a rolling restart has changed what the slots compute.
        ends: processes that gave themselves up, and why.
        ended: (node, incarnation) of processes to which connections have ended; some of them live.
        in_force: the sensors table that was put in force last.
        tables: how often it was changed; `hasty`: whether it was before all edges went by the one before.
        filled: queries were filled with the past.
        moves: how often sensors were moved between slots.
    """

    def __init__(
        self,
        seed: int,
        *,
        standby: dict[str, Any] | None = None,
        operators: tuple[dict[str, Any], ...] = WITH_STEPS,
        mode: Literal["steps", "tuples"] = "steps",
        modelled: bool = False,
        poisonous: bool = False,
        cells: int = 1,
    ) -> None:
        self.seed = seed
        self.poisonous = poisonous
        self.rng = random.Random(seed)
        self.tick_s = TICK_S
        self.clock = ManualClock()
        self.began_us = self.clock.now_us()
        self.events: list[tuple[float, str]] = []
        self.table = self.in_force = make_table(modelled=modelled)
        self.tables = self.moves = 0
        self.hasty = self.filled = False
        self.settings = make_settings(
            seed, standby or {"batch_size": 20}, operators, mode, modelled=modelled, poisonous=poisonous
        )
        self.network = make_network(seed)
        layout = LAYOUT | {topics.HEARTBEATS: partitions_for(cells), topics.ACKS: cells}
        self.log = MemoryLog(self.clock, layout, network=self.network, rng=random.Random(seed + 1))
        self._words = Words()
        self._asked = Asked(self.log, self._words)
        self.edges = [
            SimEdge(
                name,
                self.log,
                self.log.client(name),
                self.settings,
                by_slot,
                NodeClock(self.clock),
                cells=Cells(cells),
            )
            for name, by_slot in sensors_by_slot(self.table).items()
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
        self.ended: list[tuple[str, int]] = []
        self._chance = random.Random(seed + 2)  # of its own: connections that end draw nothing from the schedule
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
        self.lost_contexts: dict[int, set[int]] = {slot: set() for slot in range(SLOTS)}

    @classmethod
    def of_seed(cls, seed: int, cells: int = 1) -> World:
        """Return the world of a seed, with its slots in so many cells."""
        return cls(seed, **options_of(seed), cells=cells)

    def load_model(self, sha256: str) -> Model:
        """Return a model that a log names."""
        return load_from_store(self.settings.recovery.store, sha256)

    def note(self, event: str) -> None:
        """Keep a line for the report of a failing run."""
        self.events.append((round(self.now, 3), event))

    def ask(self, key: str, **body: Any) -> Plan:
        """Ask for something in `plan` under this key, as an operator's command does; return the record."""
        plan = Plan(version=VERSION, serial=self._words.next(key), **body)
        self._user.send(topics.PLAN, 0, key.encode(), plan.SerializeToString())
        return plan

    @property
    def per_record(self) -> int:
        """The most outputs of a record without steps: rows of the operators, and of each query."""
        return PER_PAST if self.filled else PER_RECORD

    def put_table(self, table: SensorTable) -> None:
        """Put a sensors table in force, as `tsunagi apply` does; each edge goes by it a little later."""
        self.in_force = table
        self.tables += 1
        self.hasty |= any(edge.goes_by_at < math.inf for edge in self.edges)
        self._words.next(KEY)  # the serial number of the scaler's, which may be on its way
        self.ask(KEY, table=pack_table(table, by="user", from_us=self.clock.now_us()))
        for edge in self.edges:
            edge.goes_by_at = self.now + self.rng.uniform(0.5, 1.5)

    def _follow_table(self, edge: SimEdge) -> None:
        """Let an edge go by the table in force once all of its sensors are placed."""
        if edge.goes_by_at > self.now:
            return
        plans = [Plan.FromString(record.value or b"") for record in self.usable(topics.PLAN)]
        placements = [plan.placement for plan in plans if plan.WhichOneof("body") == "placement"]
        slots: Sensors | list[int] = sensors(max(placements, key=lambda item: item.serial).slot) if placements else []
        own = self.in_force.of_edge(edge.name)
        if any(sensor.id >= len(slots) for sensor in own):
            return
        edge.goes_by_at = math.inf
        edge.sensors = {}
        for sensor in own:
            edge.sensors.setdefault(int(slots[sensor.id]), []).append(sensor.id)

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
        if self._chance.random() < WRONG_HINTS_S * self.tick_s:
            lives = [node for node in self.nodes.values() if node.made is not None]
            self._chance.shuffle(lives)
            self.ended += [(node.name, node.made.incarnation) for node in lives[:1]]
        self.rng.shuffle(nodes)
        with poison.armed():
            for node in nodes:
                self._turn(node)

    def _turn_edge(self, edge: SimEdge) -> None:
        self._follow_table(edge)
        if self.moves:
            moves.follow(self, edge)
        edge.turn(self._asked, self.rng)

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
                host = ReplicaHost(
                    settings,
                    node.name,
                    self.table,
                    node.client,
                    node.clock,
                    _silent,
                    threads=False,
                    lifelines=SimLifelines(self, node.name) if settings.standby.speculate else None,
                )
                self._arm(node, host)
                node.made = host
        except LogError:
            node.client.crash()
            raise
        node.beat_at = 0.0
        self.note(f"{node.name} started")

    def _arm(self, node: Node, host: ReplicaHost) -> None:
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
        if node.made is not None:
            self.ended.append((node.name, node.made.heartbeats.incarnation))
        node.client.crash()
        node.made = None
        if node in self.elders:
            self.elders.remove(node)  # nobody starts it again: the one who began later goes on
        node.paused = False
        node.crash_after = node.announced_by = None
        node.restart_at = self.now + self.rng.uniform(0.3, 3.0)

    # ---- faults ------------------------------------------------------------------------------------------------

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

    def broker(self, *, up: bool) -> None:
        """Stop or start the broker."""
        if up != self.broker_up:
            self.note(f"broker {'up' if up else 'down'}")
            self.struck.add("broker")
            self.broker_up = up
            (self.log.start if up else self.log.stop)()

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

    # ---- what is read of it ------------------------------------------------------------------------------------

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

    def acks(self) -> list[Record]:
        """Return the usable acknowledgements of all cells, one cell after the other."""
        return [record for cell in range(self.log.layout[topics.ACKS]) for record in self.usable(topics.ACKS, cell)]

    def sending(self, name: str) -> bool:
        """Return whether a worker has outputs on their way."""
        made = self.nodes[name].made
        return made is not None and any(len(replica.pending) for replica in made.replicas.values())

    def last_beats(self) -> dict[str, Heartbeat]:
        """Return every node's last heartbeat in the summary."""
        beats, heard = {}, HeartbeatFilter()
        for record in self.usable(topics.HEARTBEATS):
            beat = Heartbeat.FromString(record.value or b"")
            if heard.news(beat):
                beats[beat.node] = beat
        return beats
