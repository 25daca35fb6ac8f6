"""What a run left behind: whole topics, and what was noted while it ran; decoded without judging it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tsunagi.replay.generations import begins_term
from tsunagi.runtime import log
from tsunagi.runtime.auth import forgery
from tsunagi.runtime.columns import Bytes, Floats, Sensors, floats, octets, sensors
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import DeadLetter, Heartbeat, Late, LogRecord, Plan, Recovered, ResultBlock, TupleBatch
from tsunagi.runtime.names import Name
from tsunagi.runtime.plan import Words

_M = TypeVar("_M", Heartbeat, LogRecord, Plan)
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL, with what was known when it was sent.

    Attributes:
        what: edge | owner.
        at_us: the killer's clock, just before the signal.
        slot: of the owner; -1 = an edge.
        epoch: the owner's term.
        owner: the slot's owner by its log at that moment.
        log_end: end of the slot's log at that moment.
        acked: the owner's last Level-0-Ack (exclusive); -1 = none seen.
        newest_us: when the newest record of the slot's log was appended.
    """

    what: str
    node: str
    pid: int
    at_us: int
    slot: int = -1
    epoch: int = 0
    owner: str = ""
    log_end: int = -1
    acked: int = -1
    newest_us: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """An edge was down from its kill until the process that replaced it was started (0 = never)."""

    edge: str
    from_us: int
    to_us: int


@dataclass(frozen=True, slots=True)
class Read:
    """A reader saw the record of `results` at this place at this time."""

    partition: int
    offset: int
    read_us: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that the checker looks at, besides the CSV.

    Attributes:
        tuples, recovered, results: whole topics by partition.
        placement: uint32[n], slot by sensor id.
        notes: log lines of the services with `event`, as they wrote them (takeovers).
        ended_us: from then on the services were stopped in good order; 0 = they were not.
    """

    tuples: Mapping[int, Sequence[Record]]
    recovered: Mapping[int, Sequence[Record]]
    results: Mapping[int, Sequence[Record]]
    late: Sequence[Record]
    dead_letters: Sequence[Record]
    placement: Sensors
    kills: Sequence[Kill] = ()
    outages: Sequence[Outage] = ()
    reads: Sequence[Read] = ()
    notes: Sequence[Mapping[str, Any]] = ()
    ended_us: int = 0

    def kill_of(self, before: Owner, owner: Owner) -> Kill | None:
        """Return the kill that ended the term before `owner`; None = there was none."""
        fitting = [
            kill
            for kill in self.kills
            if kill.what == "owner"
            and kill.node == before.node
            and before.appended_us <= kill.at_us <= owner.appended_us
        ]
        return fitting[-1] if fitting else None

    def cause(self, before: Owner, owner: Owner) -> str:
        """Return why a slot changed its owner: kill | end; "" = nothing that was done to it."""
        if self.kill_of(before, owner) is not None:
            return "kill"
        return "end" if 0 < self.ended_us <= owner.appended_us else ""

    def note(self, owner: Owner) -> Mapping[str, Any]:
        """Return what a new owner noted of its takeover; empty = nothing."""
        for note in self.notes:
            if note.get("event") == "takeover" and (note.get("slot"), note.get("epoch")) == (owner.slot, owner.epoch):
                return note
        return {}


@dataclass(frozen=True, slots=True)
class Batch:
    """A TupleBatch and its place."""

    slot: int
    offset: int
    appended_us: int
    edge: str
    incarnation: int
    step: int
    sensor: Sensors
    value: Floats

    @property
    def place(self) -> str:
        """Where it stands and what it is, in words."""
        return f"tuples/{self.slot}, offset {self.offset} ({self.edge}, step {self.step})"


@dataclass(frozen=True, slots=True)
class Owner:
    """A term of ownership that counted."""

    slot: int
    epoch: int
    node: str
    offset: int
    appended_us: int


@dataclass(slots=True)
class SlotLog:
    """A partition of `tuples`.

    Attributes:
        model_from: offset of the first model in force; -1 = none.
        unreadable: offsets of records that are no LogRecord.
    """

    slot: int
    batches: list[Batch] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    model_from: int = -1
    unreadable: list[int] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Take in the next record; ownership and its epochs are judged in log order, as everybody must."""
        message = parse(LogRecord, record)
        body = message.WhichOneof("body") if message is not None else None
        epoch = self.owners[-1].epoch if self.owners else 0
        if message is None or body is None:
            self.unreadable.append(record.offset)
        elif body == "batch":
            self.batches.append(read_batch(self.slot, record, message.batch))
        elif body == "ownership" and begins_term(message.ownership, epoch):
            claim = message.ownership
            self.owners.append(Owner(self.slot, claim.epoch, claim.node, record.offset, record.appended_us))
        elif body == "model" and message.model.epoch == epoch and message.model.sha256 and self.model_from < 0:
            self.model_from = record.offset

    def owner_at(self, time_us: int) -> Owner | None:
        """Return the owner whose term was in the log at that time."""
        before = [owner for owner in self.owners if owner.appended_us <= time_us]
        return before[-1] if before else None


@dataclass(frozen=True, slots=True)
class Output:
    """A Recovered record and when it was appended to `recovered`."""

    slot: int
    generation: int
    name: Name
    epoch: int
    step: int
    written_us: int
    sensor: Sensors
    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats

    @property
    def place(self) -> str:
        """Its name and what it is, in words."""
        return f"recovered/{self.slot}, name {tuple(self.name)} (step {self.step}, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class Block:
    """A ResultBlock and its place in `results`."""

    partition: int
    offset: int
    query: str
    group: str
    step: int
    event_time_us: int
    appended_us: int
    sensor: Sensors
    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats
    q1: Sensors
    q2: Sensors
    q3: Floats

    @property
    def place(self) -> str:
        """Where it stands and what it is, in words."""
        return f"results/{self.partition}, offset {self.offset}: group {self.group!r}, step {self.step}"


@dataclass(frozen=True, slots=True)
class Aside:
    """A record of `late` or `dead-letters`: where it came from, and why."""

    topic: str
    slot: int
    offset: int
    reason: str


def read_slot_log(slot: int, records: Iterable[Record]) -> SlotLog:
    """Decode a slot's log."""
    found = SlotLog(slot)
    for record in records:
        found.take(record)
    return found


def read_outputs(slot: int, records: Iterable[Record]) -> list[Output]:
    """Decode a partition of `recovered`, in the order in which it stands; what nobody can use is left out."""
    return _usable(partial(read_output, slot), records)


def read_output(slot: int, record: Record) -> Output:
    """Decode a record of `recovered`.

    Raises:
        UnusableError: it is none.
    """
    message = decode(Recovered, record.value)
    return Output(
        slot,
        message.generation,
        Name(message.offset, message.index),
        message.epoch,
        message.step,
        record.appended_us,
        sensors(message.sensor),
        floats(message.mean),
        floats(message.sd),
        octets(message.quality),
        floats(message.bound),
    )


def read_blocks(partition: int, records: Iterable[Record]) -> list[Block]:
    """Decode a partition of `results`, in the order in which it stands; what nobody can use is left out."""
    return _usable(partial(read_block, partition), records)


def read_block(partition: int, record: Record) -> Block:
    """Decode a record of `results`.

    Raises:
        UnusableError: it is none.
    """
    message = decode(ResultBlock, record.value)
    return Block(
        partition,
        record.offset,
        message.query,
        message.group,
        message.step,
        message.event_time_us,
        message.appended_us,
        sensors(message.sensor),
        floats(message.mean),
        floats(message.sd),
        octets(message.quality),
        floats(message.bound),
        sensors(message.q1),
        sensors(message.q2),
        floats(message.q3),
    )


def read_asides(late: Iterable[Record], dead_letters: Iterable[Record]) -> list[Aside]:
    """Decode what of `tuples` stands in `late` and `dead-letters`.

    A record that stands there twice (a takeover repeats it) counts once. Rows of `recovered` that came after their step
    had left (reason "frontier") are no tuples.
    """
    found = [
        Aside(log.LATE, message.slot, message.offset, message.reason)
        for message in _usable(lambda record: decode(Late, record.value), late)
        if message.reason != "frontier"
    ]
    found += [
        Aside(log.DEAD_LETTERS, letter.partition, letter.offset, letter.reason)
        for letter in _usable(lambda record: decode(DeadLetter, record.value), dead_letters)
        if letter.topic.endswith(log.TUPLES)
    ]
    return list({(aside.topic, aside.slot, aside.offset): aside for aside in found}.values())


def read_placement(records: Iterable[Record]) -> Sensors:
    """Return the placement in force, uint32[n].

    Raises:
        LogError: there is none.
    """
    words, slots = Words(), None
    for record in records:
        plan = parse(Plan, record)
        if plan is not None and words.take(plan, record.offset) and plan.WhichOneof("body") == "placement":
            slots = sensors(plan.placement.slot)
    if slots is None:
        raise log.LogError("plan: no placement in it; the scaler has not written one")
    return np.asarray(slots, dtype=np.uint32)


def read_batch(slot: int, record: Record, batch: TupleBatch) -> Batch:
    """Return a batch as it stands in a record of its slot's log."""
    return Batch(
        slot,
        record.offset,
        record.appended_us,
        batch.edge,
        batch.incarnation,
        batch.step,
        sensors(batch.sensor),
        floats(batch.value),
    )


def parse(kind: type[_M], record: Record) -> _M | None:
    """Decode a record; None = nobody can use it, or it was not written by who it says."""
    try:
        message = decode(kind, record.value)
    except UnusableError:
        return None
    return None if forgery(record, message) else message


def _usable(read: Callable[[Record], _R], records: Iterable[Record]) -> list[_R]:
    found = []
    for record in records:
        with contextlib.suppress(UnusableError):
            found.append(read(record))
    return found
