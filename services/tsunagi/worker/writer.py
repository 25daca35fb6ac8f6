"""Writes for the replicas of a worker, and tells them which records have arrived, and where they stand."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from structlog.stdlib import BoundLogger

from tsunagi.runtime import columns, metrics
from tsunagi.runtime.log import ACKS, CONTEXTS, PLAN, RECOVERED, TUPLES, Delivered, Log, LogError
from tsunagi.runtime.messages import VERSION, Ack, HelperRequest, LogRecord, Plan
from tsunagi.runtime.plan import Words
from tsunagi.slot.outputs import Output
from tsunagi.slot.plain_outputs import PlainOutputs
from tsunagi.standby.parts import split
from tsunagi.standby.replica import Replica

FULL_S = 0.05
"""If the producer's queue is full, it gets further outputs after this time, seconds."""
FLUSH_S = 2.0
"""A worker that ends waits at most this long until its records have arrived, seconds."""
PARTITION_OF_ONE = 0
"""The partition of topics with one partition: `plan`, `late`, `dead-letters`."""
SHOWN = 200
"""The most characters of a control record in the process's log."""

Fail = Callable[[str, LogError], None]
"""Is called with what could not be written, and why. The process must then end, so that no output is missing."""


class Receipt:
    """Is called when the last of several outputs, sent together to one topic, has arrived or failed."""

    __slots__ = ("_fail", "_generation", "_outputs", "_replica")

    def __init__(self, fail: Fail, replica: Replica, outputs: Sequence[Output], generation: int) -> None:
        self._fail = fail
        self._replica = replica
        self._outputs = outputs
        self._generation = generation

    def __call__(self, error: LogError | None, offset: int) -> None:
        if error is None:
            self._replica.on_delivered(self._outputs, self._generation, offset)
        else:
            self._fail(f"{self._outputs[-1].topic}, slot {self._replica.slot_id}", error)


class ContextReceipt:
    """Takes in the offsets of the first and the last part of a context, and checks whether all parts stand in a row.

    Args:
        parts: how many parts there are.
        done: is called with the first part's offset; -1 = another record stands among them, so it cannot be read.
    """

    def __init__(self, parts: int, done: Callable[[int], None]) -> None:
        self._parts = parts
        self._done = done
        self._begin = -1

    def first(self, place: int) -> None:
        """Take in the offset of the first part."""
        self._begin = place
        if self._parts == 1:
            self._done(place)

    def last(self, place: int) -> None:
        """Take in the offset of the last of several parts."""
        self._done(self._begin if place - self._begin == self._parts - 1 else -1)


class Writer:
    """Writes for replicas: outputs, contexts and acknowledgements without a gap, control records without a repeat.

    Args:
        context_bytes: a larger context is written in parts of this size, bytes.
        serial: serial number of the first control record. It comes from a clock, which need not be right: an epoch
            (number of an ownership) belongs to one process, and the count of an epoch begins with its claim.
        words: gives the serial numbers of records for `plan`.

    Attributes:
        fatal: why the process must end; None = it need not end.
    """

    def __init__(self, log: Log, node: str, context_bytes: int, serial: int, words: Words, logger: BoundLogger) -> None:
        self.fatal: LogError | None = None
        self._node = node
        self._context_bytes = context_bytes
        self._serials = itertools.count(serial)
        self._words = words
        self._logger = logger
        self._outputs = log.producer()
        self._control = log.producer(durable=False)

    def poll(self) -> None:
        """Have the receipts called of records that have arrived or failed."""
        self._outputs.poll()
        self._control.poll()

    def close(self) -> None:
        """Wait up to `FLUSH_S` until all outputs have arrived, and close both clients."""
        with contextlib.suppress(LogError):
            self._outputs.flush(FLUSH_S)
        self._outputs.close()
        self._control.close()

    def fail(self, what: str, error: LogError) -> None:
        """Have the process end because something could not be written."""
        self.end(f"{what}: {error}")

    def end(self, why: str) -> None:
        """Have the process end; the first reason counts."""
        self.fatal = self.fatal or LogError(why)

    def append(self, slot: int, record: LogRecord) -> None:
        """Append a control record. It may be lost; then the replica writes it again."""
        record.serial = next(self._serials)
        self._send(TUPLES, slot, b"!" + self._node.encode(), record.SerializeToString())
        kind = record.WhichOneof("body")
        say = self._logger.debug if kind == "punctuation" else self._logger.info
        text = str(record).replace("\n", " ")
        say("control record", slot=slot, kind=kind, body=text if len(text) < SHOWN else text[:SHOWN] + "...")

    def request(self, slot: int, helpers: HelperRequest) -> None:
        """Ask in `plan` for helpers. The record may be lost; then the replica asks again."""
        place = f"helpers/{slot}"
        plan = Plan(version=VERSION, helpers=helpers, serial=self._words.next(place))
        self._send(PLAN, PARTITION_OF_ONE, place.encode(), plan.SerializeToString())
        self._logger.info("helpers asked for", slot=slot, sensors=columns.sensors(helpers.sensor).tolist())

    def emit(self, replica: Replica, outputs: Sequence[Output], generation: int) -> None:
        """Write outputs. If they cannot be written, the process ends, so that none is missing."""
        slot = replica.slot_id
        if isinstance(outputs, PlainOutputs):
            self._emit(RECOVERED, outputs, outputs.encode(slot, generation), replica, generation)
            return
        for topic, group in groupby(outputs, attrgetter("topic")):
            run = tuple(group)
            self._emit(topic, run, [output.encode(slot, generation) for output in run], replica, generation)

    def _emit(
        self, topic: str, run: Sequence[Output], pairs: Sequence[tuple[bytes, bytes]], replica: Replica, generation: int
    ) -> None:
        slot = replica.slot_id
        partition = slot if topic == RECOVERED else PARTITION_OF_ONE
        try:
            self._write(topic, partition, pairs, Receipt(self.fail, replica, run, generation))
        except LogError as error:
            self.fail(f"{topic}, slot {slot}", error)

    def save_context(self, replica: Replica, value: bytes, term: int) -> None:
        """Write a context, in parts if it is large, and report its offset to the replica."""
        slot = replica.slot_id
        metrics.CONTEXT_BYTES.labels(slot=str(slot)).set(len(value))
        metrics.CONTEXTS_WRITTEN.labels(slot=str(slot)).inc()
        pairs = [(str(slot).encode(), part) for part in split(value, self._context_bytes)]
        saved = ContextReceipt(len(pairs), partial(replica.on_context_saved, term=term))
        self._write(CONTEXTS, slot, pairs[:1], partial(self._reported, CONTEXTS, saved.first))
        self._write(CONTEXTS, slot, pairs[1:], partial(self._reported, CONTEXTS, saved.last))

    def send_ack(self, slot: int, ack: Ack, partition: int) -> None:
        """Write an acknowledgement. Its key has slot, level and node; compaction keeps the newest one of each key."""
        level = "level0" if ack.WhichOneof("body") == "level0" else "level1"
        self._acknowledge(f"{slot}/{level}/{self._node}", ack, partition)

    def _acknowledge(self, key: str, ack: Ack, partition: int) -> None:
        pair = key.encode(), ack.SerializeToString()
        self._write(ACKS, partition, [pair], partial(self._reported, ACKS, None))

    def _send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        with contextlib.suppress(BufferError):  # a full queue: the record is lost, as it may be
            self._control.send(topic, partition, key, value)
            self._control.poll()

    def _write(self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], report: Delivered) -> None:
        """Write pairs of key and value without a gap: wait while the queue is full, unless the process must end."""
        while pairs and self.fatal is None:
            pairs = pairs[self._outputs.send_run(topic, partition, pairs, report) :]
            if pairs:
                self._outputs.poll(FULL_S)

    def _reported(self, topic: str, done: Callable[[int], None] | None, error: LogError | None, offset: int) -> None:
        if error is not None:
            self.fail(topic, error)
        elif done is not None:
            done(offset)
