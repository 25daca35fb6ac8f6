"""A replica's shell over a list: it answers at once, and carries out nothing that a test does not ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.unit.slot.small_slot import EDGES, FIRST, GENERATION, SLIDE_US, SLOT, batch, load, make_config
from tsunagi.runtime.log import RECOVERED, TUPLES, LogError, OffsetLostError, Record
from tsunagi.runtime.messages import (
    VERSION,
    Ack,
    Context,
    Heartbeat,
    Late,
    LogRecord,
    Ownership,
    Quarantine,
    SlotBeat,
    SlotSettings,
)
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.runtime.settings import Settings, StandbySettings, StepsSettings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.deciding import Decider
from tsunagi.slot.models import Announce
from tsunagi.slot.outputs import Output
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.detector import Detector
from tsunagi.standby.replica import Replica
from tsunagi.standby.shared import Shared
from tsunagi.standby.stages.base import ReplicaStage

HEARTBEAT_S = 0.1
DETECT_S = 0.75
TICK_S = 0.02


def make(*operators: dict[str, Any]) -> SlotConfig:
    """Return a configuration under which no batch is too far ahead."""
    return make_config(*operators, max_ahead_us=1 << 50)


@dataclass
class Cluster:
    """One slot's log and what else is shared."""

    records: list[Record] = field(default_factory=list)
    recovered: list[Output] = field(default_factory=list)
    side: list[Output] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    first: int = 0
    now: float = 100.0
    answers: bool = True
    nodes: list[Node] = field(default_factory=list)
    killer: int = -1
    gone: int = 0
    generations: int = 0
    generation_of: list[int] = field(default_factory=list)  # of each in `recovered`
    written: int = 0  # the generation of the last outputs

    @property
    def now_us(self) -> int:
        """Well before the first step that a test sends, so that the slot begins with that."""
        return (FIRST - 50) * SLIDE_US + round((self.now - 100.0) * 1e6)

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.gone

    def away(self, lost: int, step: int) -> None:
        """The broker is killed and loses its last records; it is longer again than before when anybody looks."""
        self.now += 0.3
        del self.records[-lost:]
        for later in range(step, step + 5):
            self.step(later)

    def read(self, offset: int, upto: int) -> list[Record]:
        if offset < self.first:
            raise OffsetLostError(f"the log begins at {self.first}")
        return [record for record in self.records if offset <= record.offset < upto]

    def forget(self, first: int) -> None:
        """Retention: nothing stands before this offset any more."""
        self.gone = self.end
        self.first = first
        self.records = [record for record in self.records if record.offset >= first]

    def append(self, message: LogRecord) -> int:
        message.version = VERSION
        self.records.append(Record(TUPLES, SLOT, self.end, self.now_us, b"", message.SerializeToString()))
        return self.end - 1

    def step(self, step: int, *edges: str) -> None:
        """Every edge (or these) delivers a step."""
        for edge in edges or EDGES:
            self.append(LogRecord(batch=batch(edge, step)))

    def own(self, epoch: int, node: str, settings: SlotConfig | None = None) -> int:
        claim = Ownership(epoch=epoch, node=node, generation=GENERATION, first_step=FIRST)
        place = self.append(LogRecord(ownership=claim))
        if settings is not None:
            text = SlotSettings(epoch=epoch, hash=settings.hash, text=settings.text())
            self.append(LogRecord(settings=text))
        return place

    def quarantine(self, epoch: int, offset: int) -> int:
        return self.append(LogRecord(quarantine=Quarantine(epoch=epoch, offset=offset)))

    def run(self, seconds: float) -> None:
        """Let time pass; every node beats at its interval and takes its turns."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = round(self.now + TICK_S, 6)
            for node in list(self.nodes):
                node.beat()
            for node in list(self.nodes):
                node.turn()

    def new_generation(self) -> int:
        self.generations += 1
        return GENERATION + self.generations - 1


class Node:
    """A node with one replica of the slot. It does not speculate unless told to: most tests are about the takeover."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        owner: str = "n1",
        move: bool = False,
        batch_size: int | str = 1,
        config: SlotConfig | None = None,
        incarnation: int = 1,
        load_model: Any = load,
        model: str = "",
        preparing: threading.Event | None = None,
        make_deciders: Callable[[Settings, float, Announce], Sequence[Decider]] = lambda *_: (),
        **standby: Any,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.incarnation = incarnation
        self.config = config or make()
        settings = Settings(
            steps=StepsSettings(interval_s=0.1, window=10, slide=2, grace_s=60, max_skew_s=0.2),
            standby=StandbySettings(batch_size=batch_size, **{"speculate": False, **standby}),
        )
        self.detector = Detector(name, incarnation, HEARTBEAT_S)
        wish = Wish(self.config, model, owner, move)
        shared = Shared(
            SLOT,
            name,
            wish,
            settings,
            self.detector,
            load_model,
            cluster.new_generation,
            cluster.now,
            partial(make_deciders, settings),
            preparing=preparing,
        )
        self.replica = Replica(shared, cluster.now)
        self.follows: int | None = None
        self.silent = False  # sends no heartbeats
        self.spare = True  # has time for what only a standby does
        self.frozen = False  # takes no turns
        self.announces = True  # the log has its announcements in time
        self.deaf = False  # hears no heartbeats, not even its own
        self.keeps_outputs = True  # what it emits arrives at once
        self.way: list[Output] = []  # else it waits here,
        self.way_generations: list[int] = []
        self.saves: list[tuple[Context, int]] = []  # and its contexts here
        self.notes: list[str] = []
        self.takeovers: list[act.TakeoverComplete] = []
        self.announced: list[SlotBeat] = []
        self.fetched: list[tuple[int, int]] = []
        self.tails: list[int] = []  # generations whose last output was asked for
        self.asked = 0  # for the log's end
        self.fails = False  # what it reads does not come
        self._beat_at = 0.0
        cluster.nodes.append(self)
        for ack in cluster.acks:
            self.replica.on_ack(ack, cluster.now)

    def stage(self) -> ReplicaStage:
        return self.replica.stage

    def die(self) -> None:
        self.cluster.nodes.remove(self)

    def leave(self) -> None:
        """Stop in good order: the last heartbeat says so."""
        self.die()
        self._say(leaving=True)

    def beat(self) -> None:
        if self.silent or self.frozen or self.cluster.now - self._beat_at < HEARTBEAT_S - 1e-9:
            return
        self._beat_at = self.cluster.now
        self._say()

    def _say(self, *, leaving: bool = False) -> SlotBeat:
        part = self.replica.beat(self.cluster.now)
        heard = Heartbeat(node=self.name, role="worker", incarnation=self.incarnation, slots=[part], leaving=leaving)
        for node in self.cluster.nodes:
            if not node.deaf:
                node.detector.on_heartbeat(heard, self.cluster.now)
        return part

    def turn(self) -> None:
        if self.frozen:
            return
        cluster = self.cluster
        if self.follows is not None and self.follows < cluster.end:
            records, self.follows = cluster.read(self.follows, cluster.end), cluster.end
            self.carry_out(self.replica.on_records(records, cluster.now, cluster.now_us))
        self.carry_out(self.replica.step(cluster.now, cluster.now_us, spare=self.spare))

    def carry_out(self, actions: list[act.Action]) -> None:
        todo = list(actions)
        while todo:
            action = todo.pop(0)
            try:
                todo += self.do(action)
            except LogError:
                self.replica.on_failed(self.cluster.now)

    def do(self, action: act.Action) -> list[act.Action]:  # noqa: C901 - one case an action
        cluster, replica, now = self.cluster, self.replica, self.cluster.now
        if isinstance(action, act.AskEnd | act.Fetch | act.ReadContext | act.ReadTail) and not cluster.answers:
            raise LogError("the log does not answer")
        match action:
            case act.AskEnd():
                self.asked += 1
                return replica.on_end(cluster.first, cluster.end, now)
            case act.Fetch(offset, upto):
                if self.fails:
                    raise LogError("nothing came")
                self.fetched.append((offset, upto))
                return replica.on_fetched(cluster.read(offset, upto), now)
            case act.CheckRecords(begin, upto):
                again = cluster.read(max(begin, cluster.first), min(upto, cluster.end))
                return replica.on_checked(cluster.first, cluster.end, again, now)
            case act.ReadContext(offset, upto):
                fitting = cluster.contexts[: None if offset is None else offset + 1]
                if upto is not None:
                    fitting = [context for context in fitting if context.offset <= upto]
                found = fitting[-1] if fitting and (upto is not None or len(fitting) == (offset or 0) + 1) else None
                return replica.on_context(found, cluster.first, now)
            case act.ReadTail(wanted, before, below, acknowledged, end):
                self.tails.append(wanted)
                written = cluster.recovered[:before]
                lost = acknowledged is not None and acknowledged not in [item.name for item in written[end - 1 : end]]
                below = acknowledged if lost else below
                if below is not None:
                    written = [output for output in written if output.name < below]
                name, last_us = (written[-1].name, written[-1].appended_us) if written else (NO_NAME, 0)
                return replica.on_tail(cluster.written, name, now, last_us, lost=lost)
            case act.Follow(offset):
                self.follows = offset
            case act.Unfollow():
                self.follows = None
            case act.Append(record):
                if cluster.answers:
                    cluster.append(record)
            case act.Emit(outputs, generation):
                self.way_generations += [generation] * len(outputs)
                self.way += outputs
                if self.keeps_outputs:
                    self.deliver()
            case act.SaveContext(value, term):
                self.saves.append((Context.FromString(value), term))
                if self.keeps_outputs:
                    self.save()
            case act.SendAck(ack):
                cluster.acks.append(ack)
                for node in cluster.nodes:
                    node.replica.on_ack(ack, now)
            case act.Announce():
                if self.announces:
                    self.announced.append(self._say())
                else:
                    replica.on_unannounced()
            case act.TakeoverComplete():
                self.takeovers.append(action)
            case act.Note(event, detail):
                self.notes.append(f"{event}: {detail}")
        return []

    def save(self) -> None:
        """Let the contexts that are on their way arrive."""
        for context, term in self.saves:
            self.cluster.contexts.append(context)
            self.replica.on_context_saved(len(self.cluster.contexts) - 1, term)
        self.saves.clear()

    def deliver(self, count: int | None = None) -> None:
        """Let what is on its way arrive."""
        arriving, self.way = self.way[:count], [] if count is None else self.way[count:]
        for output in arriving:
            generation = self.way_generations.pop(0)
            if output.topic == RECOVERED:
                self.cluster.written = generation
                self.cluster.generation_of.append(generation)
            (self.cluster.recovered if output.topic == RECOVERED else self.cluster.side).append(output)
            self.replica.on_delivered((output,), generation, len(self.cluster.recovered) - 1)


def pair(cluster: Cluster, **options: object) -> tuple[Node, Node]:
    """A primary that runs and its secondary."""
    n1, n2 = Node(cluster, "n1", **options), Node(cluster, "n2", **options)  # type: ignore[arg-type]
    cluster.run(1.5)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.OWN, ReplicaStage.WATCH)
    assert n2.replica.unready() == ""
    return n1, n2


def steps(cluster: Cluster) -> list[int]:
    """Steps in `recovered` as a reader sees them."""
    seen, last = [], Name(-1, 0)
    for output in cluster.recovered:
        if output.name > last:
            last = output.name
            seen.append(output.body.step)  # type: ignore[union-attr]
    return seen


def feed(cluster: Cluster, count: int, seconds: float = 0.2) -> None:
    begin = max([FIRST - 1, *steps(cluster)]) + 1
    for step in range(begin, begin + count):
        cluster.step(step)
        cluster.run(seconds)


def hear(node: Node, sender: str, part: SlotBeat) -> None:
    """Let a node hear what a worker says of the slot."""
    node.detector.on_heartbeat(Heartbeat(node=sender, role="worker", incarnation=1, slots=[part]), node.cluster.now)


def ask_to_move(node: Node, target: str = "") -> None:
    """Let a node hear from the plan that the slot is to move to this target, or to the node itself."""
    node.replica.on_wish(replace(node.replica.wish, owner=target or node.name, move=True))


def output(offset: int, index: int = 0, topic: str = RECOVERED) -> Output:
    """Return an output that follows from the record at this offset."""
    return Output(Name(offset, index), topic, 1, 0, Late())
