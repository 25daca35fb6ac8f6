"""The evidence of a run: whole topics, and what was noted while it ran. It is decoded here, and not judged."""

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
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.plan import Words

_M = TypeVar("_M", Heartbeat, LogRecord, Plan)
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL, and what was known when it was sent.

    Attributes:
        what: edge | owner.
        node: the node that was killed.
        pid: its process.
        at_us: when the signal was sent, by the clock of the killer, in microseconds since 1970.
        slot: the slot whose owner was killed; -1 for an edge.
        epoch: the owner's epoch.
        owner: the owner of the slot by its log at that moment.
        log_end: the end of the slot's log at that moment, an offset.
        acked: the offset of the owner's last Level-0-Ack (exclusive); -1 if none was seen.
        newest_us: when the newest record of the slot's log was appended, in microseconds since 1970.
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
    """The time in which an edge was down.

    Attributes:
        from_us: when it was killed, in microseconds since 1970.
        to_us: when the process that replaced it was started; 0 if none was.
    """

    edge: str
    from_us: int
    to_us: int


@dataclass(frozen=True, slots=True)
class Read:
    """A record of `results`, and when a reader saw it, in microseconds since 1970."""

    partition: int
    offset: int
    read_us: int


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that the checker looks at, except for the CSV.

    Attributes:
        tuples, recovered, results: the whole topics, by partition.
        late, dead_letters: the whole topics, which have one partition each.
        placement: uint32[n], the slot of each sensor id.
        kills: the kills of the run.
        outages: the outages of edges.
        reads: when a live reader saw the records of `results`.
        notes: the log lines in which services tell of takeovers, as they wrote them.
        ended_us: when the services began to be stopped in good order, in microseconds since 1970; 0 if they were not.
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

    def kill_of(self, before: OwnershipTerm, owner: OwnershipTerm) -> Kill | None:
        """Return the kill that ended the term before `owner`; None if there was no kill."""
        fitting = [
            kill
            for kill in self.kills
            if kill.what == "owner"
            and kill.node == before.node
            and before.appended_us <= kill.at_us <= owner.appended_us
        ]
        return fitting[-1] if fitting else None

    def cause(self, before: OwnershipTerm, owner: OwnershipTerm) -> str:
        """Return why a slot changed its owner: kill | end; "" if nothing was done to the owner before."""
        if self.kill_of(before, owner) is not None:
            return "kill"
        return "end" if 0 < self.ended_us <= owner.appended_us else ""

    def note(self, owner: OwnershipTerm) -> Mapping[str, Any]:
        """Return what a new owner noted about its takeover; empty if it noted nothing."""
        for note in self.notes:
            if note.get("event") == "takeover" and (note.get("slot"), note.get("epoch")) == (owner.slot, owner.epoch):
                return note
        return {}


@dataclass(frozen=True, slots=True)
class Batch:
    """A TupleBatch, and its place in the log."""

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
        """Where the batch is and what it is, in words."""
        return f"tuples/{self.slot}, offset {self.offset} ({self.edge}, step {self.step})"


@dataclass(frozen=True, slots=True)
class OwnershipTerm:
    """A term of ownership that counted.

    Attributes:
        epoch: the number of the term.
        node: the owner.
        offset: where the Ownership record is in the slot's log.
        appended_us: when the log appended it, in microseconds since 1970.
    """

    slot: int
    epoch: int
    node: str
    offset: int
    appended_us: int


@dataclass(slots=True)
class SlotLog:
    """A partition of `tuples`, decoded.

    Attributes:
        batches: the batches of readings, in log order.
        owners: the terms of ownership that counted, in log order.
        model_from: offset of the first model that came into force; -1 if there was none.
        unreadable: offsets of the records that are no LogRecord.
    """

    slot: int
    batches: list[Batch] = field(default_factory=list)
    owners: list[OwnershipTerm] = field(default_factory=list)
    model_from: int = -1
    unreadable: list[int] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Take the next record in. Ownership is decided by log order and epochs, as by every other reader."""
        message = parse(LogRecord, record)
        body = message.WhichOneof("body") if message is not None else None
        epoch = self.owners[-1].epoch if self.owners else 0
        if message is None or body is None:
            self.unreadable.append(record.offset)
        elif body == "batch":
            self.batches.append(read_batch(self.slot, record, message.batch))
        elif body == "ownership" and begins_term(message.ownership, epoch):
            claim = message.ownership
            self.owners.append(OwnershipTerm(self.slot, claim.epoch, claim.node, record.offset, record.appended_us))
        elif body == "model" and message.model.epoch == epoch and message.model.sha256 and self.model_from < 0:
            self.model_from = record.offset

    def owner_at(self, time_us: int) -> OwnershipTerm | None:
        """Return the owner of the slot by its log at that time, in microseconds since 1970; None if there was none."""
        before = [owner for owner in self.owners if owner.appended_us <= time_us]
        return before[-1] if before else None


@dataclass(frozen=True, slots=True)
class AuditedOutput:
    """A Recovered record, and when it was appended to `recovered` (`written_us`, in microseconds since 1970)."""

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
        """The name of the output and what it is, in words."""
        return f"recovered/{self.slot}, name {tuple(self.name)} (step {self.step}, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class AuditedBlock:
    """A ResultBlock, and its place in `results`."""

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
        """Where the block is and what it is, in words."""
        return f"results/{self.partition}, offset {self.offset}: group {self.group!r}, step {self.step}"


@dataclass(frozen=True, slots=True)
class Aside:
    """A record of `late` or `dead-letters`: where the record in it came from, and why it was set aside."""

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


def read_outputs(slot: int, records: Iterable[Record]) -> list[AuditedOutput]:
    """Decode a partition of `recovered`, in log order. Records that nobody can use are left out."""
    return [output for outputs in _usable(partial(read_record, slot), records) for output in outputs]


def read_record(slot: int, record: Record) -> list[AuditedOutput]:
    """Decode the outputs of a record of `recovered`.

    Raises:
        UnusableError: the record holds no outputs.
    """
    return [_audited(slot, record, message) for message in outputs_of(decode(Recovered, record.value))]


def _audited(slot: int, record: Record, message: Recovered) -> AuditedOutput:
    return AuditedOutput(
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


def read_blocks(partition: int, records: Iterable[Record]) -> list[AuditedBlock]:
    """Decode a partition of `results`, in log order. Records that nobody can use are left out."""
    return _usable(partial(read_block, partition), records)


def read_block(partition: int, record: Record) -> AuditedBlock:
    """Decode a record of `results`.

    Raises:
        UnusableError: the record is no block of results.
    """
    message = decode(ResultBlock, record.value)
    return AuditedBlock(
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
    """Return which records of `tuples` are in `late` and `dead-letters`.

    A record that is there twice, because a takeover repeated it, counts once. Rows of `recovered` that came after their
    step had left (reason "frontier") are no tuples, so they are left out.
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
    """Return the placement in force: the slot of each sensor id, uint32[n].

    Args:
        records: the records of `plan`, from the first one on.

    Raises:
        LogError: `plan` has no placement.
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
    """Return a batch, with the place of the record that has it."""
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
    """Decode a record; None if nobody can use it, or if its signer was not allowed to write it."""
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
