"""Readings from an existing Kafka topic: first from its end, after a restart from where the last incarnation was.

The edge keeps its own position beside its steps (tsunagi.edge.position) and uses no consumer group: position and steps
must agree, or a restart would leave windows with holes. While the topic is missing or the cluster is away, the edge
waits.

Each offset is kept with a mark (tsunagi.runtime.marks), which is compared whenever reading begins. A topic that was
made anew is read from its beginning. A topic that lost its end is read on from its present end. If it has grown past
the position since, it is read from the position, or after a restart from the oldest reading of the open windows, and
all of that counts as new. Each of these cases is reported as a fault until the edge is started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as Record
from confluent_kafka.admin import AdminClient

from tsunagi.edge.decode import TOO_LONG
from tsunagi.edge.inbox import Begun, CaughtUp, Inbox, Message
from tsunagi.edge.payload_format import SourceAwayError
from tsunagi.edge.source import LiveProgress, SourceError
from tsunagi.edge.trouble import Trouble
from tsunagi.runtime.kafka_client import client_logger, client_options
from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.kafka_reader import KafkaReader
from tsunagi.runtime.log import LogError, Position
from tsunagi.runtime.log import Record as LogRecord
from tsunagi.runtime.marks import LogMark, digest_of, record_before
from tsunagi.runtime.secret_file import read_secret
from tsunagi.runtime.settings import Settings

MAX_BYTES = 65536
"""A message keeps this many bytes of its payload: a longer one cannot be used, and its dead letter needs no more."""
_LOOK_S = 10.0
"""Time between two checks whether the topic has other partitions or another id, in seconds."""
_PAUSE_S = 0.5
"""Pause before reading is begun again after an error, in seconds."""
_ASK_S = 2.0
"""Longest wait for an answer of the cluster, in seconds. It is also the time between two checks while there is trouble,
so that the end of the trouble is seen soon."""
_READ_S = 0.1
"""Longest time for which one call waits for records, in seconds: the thread looks for its stop after each call."""
_MOST = 500
"""Most records that are taken in one call."""
_OPTIONS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "queued.max.messages.kbytes": 4096,
    "fetch.error.backoff.ms": 100,
    "fetch.wait.max.ms": 100,
}
"""Options of the consumer. Without some of them positions would not be exact; the others bound its memory and
delay. `[source.kafka] options` count more than these."""
_OF_CONSUMERS = frozenset({*_OPTIONS, "group.id", "error_cb"})
"""Options that an admin client does not take: they are for consumers alone."""
# Error codes that mean: this topic or partition does not exist.
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 - its public constants
# Error codes that mean: the offset is no longer, or not yet, in the partition.
_ELSEWHERE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - its public constants
# Not an error: the consumer has reached the end of a partition.
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public constant


class KafkaFeed:
    """A `tsunagi.edge.live.LiveFeed` that reads a Kafka topic.

    Args:
        fetch: gets what a payload needs before it can be read (`tsunagi.edge.payload_format.PayloadFormat`).

    Raises:
        SourceError: the settings name no topic, or options that the client library does not know.
    """

    def __init__(
        self,
        settings: Settings,
        edge: str,
        logger: structlog.stdlib.BoundLogger,
        fetch: Callable[[bytes], None] | None = None,
    ) -> None:
        source = settings.source.kafka
        if not source.topic:
            raise SourceError("[source.kafka] topic: found '', expected the name of the topic to read")
        servers = source.servers or settings.kafka.servers
        self.topic = source.topic
        self.scheme = f"kafka/{source.topic}"
        self.has_positions = True
        self.may_repeat = False
        self.ended = False
        self._max_bytes = settings.source.max_bytes
        self._logger = logger
        self._fetch = fetch
        self._trouble = Trouble(logger, f"Kafka topic {source.topic} at {servers}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._at: dict[int, int] = {}  # partition -> offset to read next
        self._new_from: dict[int, int] = {}  # partition -> offset of the first record that no incarnation has read
        self._marks: dict[int, tuple[int, LogMark]] = {}  # partition -> offset, and the mark in front of it
        self._topic_id = ""
        self._fault = ""
        self._behind: set[int] = set()
        self._first = True
        options = self._client_options = self._options(settings, edge)
        try:
            self._consumer = Consumer(options, logger=client_logger)
            shared = {name: value for name, value in options.items() if name not in _OF_CONSUMERS}
            self._admin = AdminClient(shared, logger=client_logger)
        except (KafkaException, ValueError, TypeError) as error:
            told = said(error) if isinstance(error, KafkaException) else str(error)
            raise SourceError(f"[source.kafka] options: {told}") from None

    @property
    def trouble(self) -> str:
        """Why no readings come; empty while the topic is being read."""
        return self._trouble.text

    def start(self, inbox: Inbox, resume: LiveProgress | None) -> None:
        if resume is not None and resume.partitions:
            self._go_on(resume)
        self._thread = threading.Thread(target=inbox.guard, args=(self._run,), name="kafka-source", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._consumer.close()

    def _go_on(self, resume: LiveProgress) -> None:
        self._first = False
        self._at = {partition: at.oldest for partition, at in resume.partitions.items()}
        self._new_from = {partition: at.next for partition, at in resume.partitions.items()}
        self._marks = {partition: (at.next, at.mark) for partition, at in resume.partitions.items()}

    def _options(self, settings: Settings, edge: str) -> dict[str, Any]:
        source = settings.source.kafka
        if source.servers:
            options: dict[str, Any] = {
                "bootstrap.servers": source.servers,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 1000,
            }
            if source.username:
                password = read_secret(source.password_file, "[source.kafka] password_file", SourceError)
                options |= {"sasl.username": source.username, "sasl.password": password or ""}
        else:
            options = client_options(settings.kafka) | dict(settings.kafka.options)
        own = {
            "client.id": f"{edge}-source",
            "group.id": f"{settings.kafka.group_prefix}-{edge}-source",
            "error_cb": self._on_error,
        }
        return options | _OPTIONS | own | dict(source.options)

    # ---- in the thread

    def _run(self, inbox: Inbox) -> None:
        while not self._stop.is_set():
            try:
                if self._begin(inbox):
                    self._follow(inbox)
            except KafkaException as error:
                self._trouble.note(said(error))
            except LogError as error:
                self._trouble.note(str(error))
            self._stop.wait(_PAUSE_S)

    def _begin(self, inbox: Inbox) -> bool:
        """Find the topic and assign its partitions; return False if there is no such topic."""
        partitions = self._partitions()
        if not partitions:
            return False
        self._topic_id = self._id_of_topic()
        places, starts = [], {}
        for partition in partitions:
            place = TopicPartition(self.topic, partition)
            low, high = self._consumer.get_watermark_offsets(place, timeout=_ASK_S, cached=False)
            self._compare(partition, low, high)
            offset = self._offset(partition, low, high)
            if not self._first and offset < high:
                self._behind.add(partition)
            self._at[partition] = offset
            starts[partition] = max(offset, self._new_from.get(partition, 0))
            places.append(TopicPartition(self.topic, partition, offset))
        self._consumer.assign(places)
        self._first = False
        self._trouble.clear()
        self._logger.info("reading the topic", topic=self.topic, offsets=dict(sorted(self._at.items())))
        return inbox.put(Begun(starts, frozenset(self._behind), self._topic_id, self._fault))

    def _compare(self, partition: int, low: int, high: int) -> None:
        """Compare the topic with what was read of it; report a difference, and go on as the module's text says."""
        if partition not in self._marks:
            return
        offset, mark = self._marks[partition]
        at = self._at.get(partition, offset)
        if why := mark.contradicts(LogMark(self._topic_id, 0)):
            self._at[partition], self._new_from[partition] = low, 0
        elif offset > high and mark.topic_id and self._topic_id:
            why = f"the log lost its end: it ends at {high}, expected {offset} or more"
            self._at[partition], self._new_from[partition] = min(at, high), high
        elif (
            mark.digest
            and (found := self._digest_before(partition, offset))
            and (why := mark.contradicts(LogMark("", found)))
        ):
            self._new_from[partition] = at
        if why:
            self._marks.pop(partition)
            self._fault = f"partition {partition} of topic {self.topic}, offset {offset}: {why}"
            self._logger.error("the topic is not the one that was read", partition=partition, offset=offset, detail=why)

    def _digest_before(self, partition: int, offset: int) -> int:
        """Return the digest of the record before an offset; 0 if the topic no longer holds that record."""
        reader = KafkaReader(self._client_options, "")
        try:
            record = record_before(reader, Position(self.topic, partition, offset))
        finally:
            reader.close()
        return 0 if record is None else digest_of(record)

    def _id_of_topic(self) -> str:
        """Return the topic's id; "" if the cluster keeps none or does not tell it to this user."""
        try:
            asked = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=_ASK_S)
            found = asked[self.topic].result(timeout=_ASK_S).topic_id
        except (KafkaException, TimeoutError):
            return ""
        return "" if found is None else str(found)

    def _offset(self, partition: int, low: int, high: int) -> int:
        wanted = self._at.get(partition)
        if wanted is None:
            return high if self._first else low  # a partition that was added later: all of its records are new
        if wanted > high:
            self._logger.warning("the topic was made anew; it is read from its beginning", partition=partition)
            self._new_from[partition] = 0
            return low
        if wanted < low:
            lost = low - max(wanted, self._new_from.get(partition, 0))
            if lost > 0:
                self._logger.warning("the topic no longer has what came meanwhile", partition=partition, records=lost)
            return low
        return wanted

    def _partitions(self) -> list[int]:
        """Return the topic's partitions; if it cannot be read, return none and note why."""
        found = self._consumer.list_topics(self.topic, timeout=_ASK_S).topics.get(self.topic)
        if found is None or (found.error is not None and found.error.code() in _GONE):
            self._trouble.note("no such topic, says the broker ([source.kafka] topic)")
        elif found.error is not None:
            self._trouble.note(said(found.error))
        else:
            return sorted(found.partitions)
        return []

    def _follow(self, inbox: Inbox) -> None:
        """Read until the topic has other partitions or another id, or until the edge stops."""
        looked_s = time.monotonic()
        while not self._stop.is_set():
            for record in self._consumer.consume(_MOST, _READ_S):
                error = record.error()
                if error is None:
                    message = self._message(record, inbox)
                    if not self._fetched(message):
                        return
                    self._at[message.partition] = message.offset + 1
                    self._marks[message.partition] = message.offset + 1, LogMark(self._topic_id, message.digest)
                    inbox.put(message)
                elif error.code() == _END:
                    if record.partition() in self._behind:
                        self._behind.discard(record.partition() or 0)
                        inbox.put(CaughtUp(record.partition() or 0))
                elif error.code() in _GONE or error.code() in _ELSEWHERE:
                    self._trouble.note(said(error))
                    return
                else:
                    self._trouble.note(said(error))
            now_s = time.monotonic()
            if now_s - looked_s >= (_ASK_S if self._trouble.text else _LOOK_S):
                looked_s = now_s
                if self._partitions() != sorted(self._at):
                    return
                if LogMark(self._topic_id, 0).contradicts(LogMark(self._id_of_topic(), 0)):
                    return
                self._trouble.clear()

    def _fetched(self, message: Message) -> bool:
        """Wait until all is there that a message needs to be read; return False if the edge stops meanwhile."""
        while not self._stop.is_set():
            try:
                if self._fetch is not None and message.fault is None:
                    self._fetch(message.payload)
            except SourceAwayError as error:
                self._trouble.note(str(error))
                self._stop.wait(_PAUSE_S)
            else:
                return True
        return False

    def _message(self, record: Record, inbox: Inbox) -> Message:
        partition, offset, value = record.partition() or 0, record.offset() or 0, _octets(record.value())
        kind, milliseconds = record.timestamp()
        try:
            sensor = (_octets(record.key())).decode("utf-8") or None
        except UnicodeDecodeError:
            sensor = None
        fault = None
        if len(value) > self._max_bytes:
            fault = (TOO_LONG, f"found {len(value)} bytes, expected {self._max_bytes} at most")
        return Message(
            payload=value[:MAX_BYTES],
            place=f"topic {self.topic!r}, partition {partition}, offset {offset}",
            arrived_us=inbox.now_us() if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000,
            sensor=sensor,
            partition=partition,
            offset=offset,
            again=offset < self._new_from.get(partition, 0),
            fault=fault,
            topic=self.topic,
            digest=digest_of(
                LogRecord(
                    self.topic,
                    partition,
                    offset,
                    0 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000,
                    _part(record.key()),
                    _part(record.value()),
                )
            ),
        )

    def _on_error(self, error: KafkaError) -> None:
        """Note an error of the client library, which calls this from `consume`, in the source's thread."""
        self._trouble.note(said(error))


def _part(data: str | bytes | None) -> bytes | None:
    return None if data is None else _octets(data)


def _octets(data: str | bytes | None) -> bytes:
    return data.encode() if isinstance(data, str) else data or b""
