"""The log in Kafka: every client of the system is made here, with the options that the design has measured.

`auto.offset.reset` is `error` everywhere: a jump over lost records is never silent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from structlog.stdlib import BoundLogger

from tsunagi.runtime import log as topics
from tsunagi.runtime.kafka_errors import Cause, said
from tsunagi.runtime.log import Delivered, LogError, OffsetLostError, Position, Record, Traffic
from tsunagi.runtime.settings import ConfigError, Kafka, Settings
from tsunagi.runtime.topics import Found, differences

# A broker that comes back is found within 0.2 s; the library's own limit of 10 s lets a detector see silence where
# there is none.
_COMMON: dict[str, Any] = {
    # While the broker is away every client tries again and again: at 20 ms those of a worker took 10 to 15 % of a core.
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 500,
    "socket.keepalive.enable": True,
    # A request on a connection that is half open is given up after this, instead of a minute.
    "socket.timeout.ms": 10_000,
    "log.connection.close": False,
}
_READER: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "fetch.error.backoff.ms": 20,
    # A reader that lags fetches more than `queued.min.messages` at once, and would rest for a second each time.
    "fetch.queue.backoff.ms": 5,
    "fetch.min.bytes": 1,
    "queued.min.messages": 5000,
    "queued.max.messages.kbytes": 32768,
    "enable.partition.eof": False,
    "check.crcs": True,
}
GAPLESS = "enable.gapless.guarantee"
_DURABLE: dict[str, Any] = {
    "enable.idempotence": True,
    # Always, so that nobody can forget it: readers drop as a repeat what stands behind a later name, for ever.
    GAPLESS: True,
    "acks": "all",
    "linger.ms": 1,
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "message.max.bytes": 8_000_000,
}
# What is worthless when late must not be appended late either: it is dropped from the queue instead.
_SHORT: dict[str, Any] = {
    "enable.idempotence": False,
    "acks": 1,
    "retries": 0,
    "linger.ms": 0,
    "message.timeout.ms": 500,
    "socket.timeout.ms": 1000,
    "request.timeout.ms": 500,
    "message.max.bytes": 8_000_000,
}
PROTOCOLS = {"plaintext": "plaintext", "tls": "ssl", "sasl_plaintext": "sasl_plaintext", "sasl_tls": "sasl_ssl"}
"""`[kafka] security` -> security.protocol of librdkafka and, in capitals, of Kafka's own clients."""

STATISTICS_MS = 1000
"""The client library tells so often, in milliseconds, what went over the network."""
DEAF_S = 10.0
"""A reader that has heard nothing for so long asks whether the log has more for it."""

SURE_S = 1.0
"""What the log has more must come within this, or the client is taken for deaf."""

_RANGE_S = 2.0
_REFRESH_S = 0.5
_FRESH_S = 1.5
_ADMIN_S = 10.0
WAIT_LINE_S = 5.0
"""Whoever waits for the log says so each so many seconds."""

# A partition that was just made, or whose leader has just changed, answers so for a moment.
_ELECTING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - its public constant
    }
)
_LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - its public constant


Client = TypeVar("Client")


class _Sparing(logging.Filter):
    """Lets a client's line through once in a while: one that cannot reach its broker writes a hundred a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next_at = 0.0
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if GAPLESS in record.getMessage():
            return False  # "experimental": it has been for years, and without it an output might be missing
        now = time.monotonic()
        if now < self._next_at:
            self._dropped += 1
            return False
        self._next_at = now + WAIT_LINE_S
        if self._dropped:
            record.msg = f"{record.msg} (and {self._dropped} more lines of the clients before)"
            self._dropped = 0
        return True


_client_logger = logging.getLogger("tsunagi.kafka")
_client_logger.addFilter(_Sparing())


def client_options(settings: Kafka) -> dict[str, Any]:
    """Return the librdkafka options that every client shares.

    Raises:
        ConfigError: a file that they name cannot be read.
    """
    # A name that has an address of either family is asked for that of IPv4: most brokers listen there alone.
    family = "any" if "[" in settings.servers else "v4"
    options: dict[str, Any] = {"bootstrap.servers": settings.servers, "broker.address.family": family, **_COMMON}
    if settings.security != "plaintext":
        options["security.protocol"] = PROTOCOLS[settings.security]
    if settings.security.startswith("sasl"):
        options["sasl.mechanism"] = settings.mechanism
    if settings.ca_file:
        if not os.access(settings.ca_file, os.R_OK):
            raise ConfigError(f"{settings.ca_file} ([kafka] ca_file): no such file, or not readable")
        options["ssl.ca.location"] = settings.ca_file
    if settings.username:
        options |= {"sasl.username": settings.username, "sasl.password": settings.read_password()}
    return options


def make_client(kind: Callable[..., Client], options: dict[str, Any]) -> Client:
    """Make a client of the library.

    Raises:
        ConfigError: the library does not take the options.
    """
    try:
        return kind(options, logger=_client_logger)
    except (KafkaException, ValueError, TypeError) as error:
        told = said(error) if isinstance(error, KafkaException) else str(error)
        raise ConfigError(f"[kafka]: {told}") from None


class KafkaProducer:
    """`tsunagi.runtime.log.Producer` on librdkafka."""

    def __init__(self, options: dict[str, Any], prefix: str) -> None:
        self.appended_us = 0
        self._refused = ""  # the last record that was, in the library's words
        self._producer = make_client(ConfluentProducer, options)
        self._prefix = prefix

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, delivered: Delivered | None = None
    ) -> None:
        callback = None if delivered is None else partial(self._report, delivered)
        name = self._prefix + topic
        try:
            self._producer.produce(name, value=value, key=key, partition=partition, on_delivery=callback)
        except KafkaException as error:  # known beforehand: no such topic, no right to it
            self.poll()  # one that has ended says why
            raise LogError(f"{topic}/{partition}: {said(error)}") from error

    def send_run(
        self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered | None = None
    ) -> int:
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in pairs]
        if delivered is not None:
            messages[-1]["callback"] = partial(self._report, delivered)
        try:
            queued = int(self._producer.produce_batch(self._prefix + topic, messages, partition))
        except KafkaException as error:
            self.poll()
            raise LogError(f"{topic}/{partition}: {said(error)}") from error
        if queued < len(messages):
            # Once the queue is full the library takes none of those behind, so what it took are the first.
            for message in messages:
                trouble = message.get("_error")
                if trouble is not None and trouble.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - public constant
                    raise LogError(f"{topic}/{partition}: {said(trouble)}")
        return queued

    def poll(self, timeout_s: float = 0.0) -> int:
        return self._unless_ended(self._producer.poll, timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self._unless_ended(self._producer.flush, timeout_s)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(LogError):
            self.flush(0.5)

    def _report(self, delivered: Delivered, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        kind, milliseconds = message.timestamp()
        self.appended_us = milliseconds * 1000 if error is None and kind == TIMESTAMP_LOG_APPEND_TIME else 0
        self._refused = self._refused if error is None else said(error)
        delivered(None if error is None else LogError(said(error)), -1 if offset is None else offset)

    def _unless_ended(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call the library; make a LogError of a fatal error, which it raises in one of three ways.

        Raises:
            LogError: the producer has ended.
        """
        try:
            return int(call(timeout_s))
        except KafkaException as error:
            raise LogError(said(error)) from error
        except SystemError as error:  # it was raised in a callback, and may have been lost there
            raise LogError(str(error.__cause__ or self._refused or error)) from error
        except:
            found: object = sys.exc_info()[1]
            if isinstance(found, KafkaError):
                raise LogError(said(found)) from None
            raise


class KafkaReader:
    """`tsunagi.runtime.log.Reader` on librdkafka, without a consumer group."""

    def __init__(self, options: dict[str, Any], prefix: str, *, measured: bool = False) -> None:
        if measured:
            options = options | {
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
                # Only what was asked for shall come: no part before the one before it has been taken.
                "queued.min.messages": 1,
            }
        self._options = options
        self._traffic = Traffic()
        self._measured = measured
        self._consumer = make_client(Consumer, options)
        self._prefix = prefix
        self._next: dict[tuple[str, int], int] = {}  # what is assigned: the offset of the next record
        self._heard_at = time.monotonic()

    def assign(self, positions: Iterable[Position]) -> None:
        wanted = [self._placed(item) for item in positions]
        self._next = {(item.topic, item.partition): item.offset for item in wanted}
        self._heard_at = time.monotonic()
        if wanted:
            self._consumer.assign([self._place(item) for item in wanted])
        else:
            self._consumer.unassign()

    def add(self, position: Position) -> None:
        self.remove(position.topic, position.partition)
        position = self._placed(position)
        self._consumer.incremental_assign([self._place(position)])
        self._next[position.topic, position.partition] = position.offset

    def remove(self, topic: str, partition: int) -> None:
        if self._next.pop((topic, partition), None) is not None:
            self._consumer.incremental_unassign([TopicPartition(self._prefix + topic, partition)])

    def read(self, max_records: int, timeout_s: float) -> list[Record]:
        try:
            messages = self._consumer.consume(max_records, timeout_s)
        except KafkaException as error:
            raise LogError(said(error)) from error
        now = time.monotonic()
        if messages:
            self._heard_at = now
        elif self._next and now - self._heard_at > DEAF_S:
            self._heard_at = now
            messages = self._look_after(max_records)
        records = []
        following = self._next
        last: tuple[str | None, int | None] = None, None
        topic, partition = here = "", 0
        wanted = False
        for message in messages:
            trouble = message.error()
            if trouble is not None:
                if trouble.code() in _LOST:
                    raise OffsetLostError(f"{message.topic()}/{message.partition()}: {trouble.str()}")
                if trouble.fatal() or trouble.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise LogError(f"{message.topic()}/{message.partition()}: {said(trouble)}")
                continue  # connection trouble: librdkafka goes on trying
            place = message.topic(), message.partition()
            if place != last:  # they come partition by partition
                last = place
                topic, partition = here = (place[0] or "")[len(self._prefix) :], place[1] or 0
                wanted = here in following  # if not, it was fetched before `remove`
            if not wanted:
                continue
            offset: int = message.offset()  # type: ignore[assignment]  # an error alone has none
            following[here] = offset + 1
            kind, milliseconds = message.timestamp()
            appended_us = 0 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000
            key: bytes | None = message.key()
            value: bytes | None = message.value()
            records.append(Record(topic, partition, offset, appended_us, key, value))
        return records

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._prefix + topic, partition)
        deadline = time.monotonic() + _RANGE_S
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(place, timeout=_RANGE_S, cached=False)
            except KafkaException as error:
                if error.args[0].code() not in _ELECTING or time.monotonic() > deadline:
                    raise LogError(f"{topic}/{partition}: {said(error)}") from error
                self._refresh(place.topic)
                time.sleep(0.05)
            else:
                return int(low), int(high)

    def traffic(self) -> Traffic:
        if self._measured and not self._next:
            self._consumer.poll(0)  # reports come by `read` otherwise, and one who does not read would heap them up
        return self._traffic

    def close(self) -> None:
        self._consumer.close()

    def _on_statistics(self, report: str) -> None:
        found = json.loads(report)
        self._traffic = Traffic(int(found["rx_bytes"]), int(found["tx_bytes"]), int(found["tx"]))

    def _refresh(self, name: str) -> None:
        """Ask for a topic's metadata.

        A client that had heard of it while its leader was away, and does not fetch from it, never asks again by itself
        (librdkafka 2.16: "unknown partition" for ever, in most clients after a few outages of the broker).
        """
        with contextlib.suppress(KafkaException):
            self._consumer.list_topics(name, timeout=_REFRESH_S)

    def _look_after(self, max_records: int) -> list[Message]:
        """Nothing has come for a while: if the log has more, and it does not come, begin anew with another client.

        A client whose connection is half open, or that has lost sight of its partitions' leader, waits for ever and
        says nothing (seen with librdkafka 2.16 after the broker had been off the network).
        """
        if not self._deaf():
            return []
        messages = self._consumer.consume(max_records, SURE_S)
        if messages:  # it was appended just now
            return messages
        _client_logger.warning("a reader heard nothing although the log goes on: it begins anew with another client")
        self._consumer.close()
        self._consumer = Consumer(self._options, logger=_client_logger)
        self._consumer.assign(
            [TopicPartition(self._prefix + topic, number, offset) for (topic, number), offset in self._next.items()]
        )
        return []

    def _deaf(self) -> bool:
        """Return whether the log holds records that should have come; False as well while it does not answer."""
        for (topic, partition), offset in self._next.items():
            place = TopicPartition(self._prefix + topic, partition)
            try:
                _, end = self._consumer.get_watermark_offsets(place, timeout=_REFRESH_S, cached=False)
            except KafkaException:
                end = self._end_by_another(place)
                if end < 0:
                    return False
            if end > offset:
                return True
        return False

    def _end_by_another(self, place: TopicPartition) -> int:
        """Ask a client that knows nothing yet; return -1 if it gets no answer either."""
        other = Consumer(self._options, logger=_client_logger)
        try:
            _, end = other.get_watermark_offsets(place, timeout=_FRESH_S, cached=False)
        except KafkaException:
            return -1
        finally:
            other.close()
        return int(end)

    def _placed(self, position: Position) -> Position:
        if position.offset >= 0:
            return position
        return position._replace(offset=self.range(position.topic, position.partition)[1])

    def _place(self, position: Position) -> TopicPartition:
        return TopicPartition(self._prefix + position.topic, position.partition, position.offset)


class KafkaLog:
    """`tsunagi.runtime.log.Log` on a Kafka cluster."""

    def __init__(self, settings: Kafka, *, client_id: str = "tsunagi") -> None:
        self._settings = settings
        self._client_id = client_id
        self._admin: AdminClient | None = None
        self._cause = Cause()

    def producer(self, *, durable: bool = True) -> KafkaProducer:
        return KafkaProducer(self._options(_DURABLE if durable else _SHORT), self._settings.prefix)

    def reader(self, *, wait_s: float = 0.1, measured: bool = False) -> KafkaReader:
        own = {
            "group.id": f"{self._settings.group_prefix}-{self._client_id}",
            "fetch.wait.max.ms": round(wait_s * 1000),
        }
        return KafkaReader(self._options(_READER | own), self._settings.prefix, measured=measured)

    def partitions(self, topic: str) -> int:
        name = self._settings.prefix + topic
        try:
            metadata = self.admin().list_topics(timeout=_ADMIN_S)
        except KafkaException as error:
            raise LogError(f"broker {self._settings.servers}: {self._said(error)}") from error
        found = metadata.topics.get(name)
        if found is not None and found.error is not None and found.error.code() not in _ELECTING:
            raise LogError(f"broker {self._settings.servers}: topic {name}: {said(found.error)}")
        return 0 if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> str:
        name = self._settings.prefix + topic
        try:
            asked = self.admin().describe_topics(TopicCollection([name]), request_timeout=_ADMIN_S)
            found = asked[name].result(timeout=_ADMIN_S)
        except KafkaException as error:
            if error.args[0].code() in _ELECTING:
                return ""
            raise LogError(f"broker {self._settings.servers}: topic {name}: {self._said(error)}") from error
        except TimeoutError as error:
            raise LogError(f"broker {self._settings.servers}: topic {name}: no answer in {_ADMIN_S:.0f} s") from error
        return "" if found.topic_id is None else str(found.topic_id)

    def admin(self) -> AdminClient:
        """Return the one AdminClient; the reference is kept, or its thread would crash on collection."""
        if self._admin is None:
            self._admin = make_client(AdminClient, self._options({}) | {"error_cb": self._cause})
        return self._admin

    def _said(self, error: KafkaException) -> str:
        """Return why the broker does not answer, and what to do."""
        self.admin().poll(0)  # what the client has heard of its connections comes now
        return self._cause.said(error)

    def ensure_topics(self, settings: Settings, needed: Collection[str] = topics.TOPICS) -> None:
        """Make the missing topics, or only check them (`[kafka] topics`), then by every key of the layout.

        Args:
            settings: with `[slots] count` as it is to be where the topics are not there yet.
            needed: those to check; a user whom access control keeps from the others does not see them.

        Raises:
            LogError: topics are missing, are not as they must be (all that differs, in one list), or cannot be made.
        """
        settings = self.with_slots(settings)
        only_check = self._settings.topics == "check"
        wanted = {
            topic: layout for topic, layout in topic_layout(settings).items() if not only_check or topic in needed
        }
        there = self._found(wanted, configured=only_check)
        wrong = []
        for topic, (partitions, config) in wanted.items():
            name = self._settings.prefix + topic
            found = there.get(topic)
            if found is None:
                wrong += [f"topic {name}: missing, or [kafka] username may not see it"] if only_check else []
                continue
            replication = self._settings.replication if only_check else 0
            wrong += [f"topic {name}: {item}" for item in differences(topic, found, partitions, replication, config)]
        if wrong:
            how = '[kafka] topics = "check": nothing is made or changed; docs/topics.md'
            if not only_check:
                how = "the number of slots and cores is fixed when the topics are made"
            raise LogError("\n".join([f"topics are not as they must be ({how}):", *(f"  {item}" for item in wrong)]))
        missing = [
            NewTopic(self._settings.prefix + topic, partitions, self._settings.replication, config=config)
            for topic, (partitions, config) in wanted.items()
            if topic not in there
        ]
        if not missing:
            return
        for topic, future in self.admin().create_topics(missing).items():
            try:
                future.result(timeout=30)
            except TimeoutError:
                raise LogError(f"topic {topic}: not made within 30 s") from None
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise LogError(f"topic {topic}: {said(error)}") from error

    def _found(self, names: Collection[str], *, configured: bool) -> dict[str, Found]:
        """Return those topics that are there.

        Args:
            configured: with their configuration, where this user may see it.
        """
        try:
            metadata = self.admin().list_topics(timeout=_ADMIN_S).topics
        except KafkaException as error:
            raise LogError(f"broker {self._settings.servers}: {self._said(error)}") from error
        found = {}
        for topic in names:
            partitions = getattr(metadata.get(self._settings.prefix + topic), "partitions", {})
            if partitions:
                replication = min(len(partition.replicas) for partition in partitions.values())
                found[topic] = Found(len(partitions), replication, self._seen_config(topic) if configured else None)
        return found

    def _seen_config(self, topic: str) -> dict[str, str] | None:
        try:
            return self.topic_config(topic)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return None
            raise LogError(f"topic {self._settings.prefix}{topic}: {said(error)}") from error
        except TimeoutError as error:
            name = self._settings.prefix + topic
            raise LogError(f"broker {self._settings.servers}: topic {name}: no answer in {_ADMIN_S:.0f} s") from error

    def slots_made(self) -> int:
        """Return how many slots the topics were made with; 0 = they are not there. A user may see one of them only."""
        return max(self.partitions(topics.TUPLES), self.partitions(topics.RECOVERED))

    def with_slots(self, settings: Settings) -> Settings:
        """Return the settings with so many slots as the topics were made with, between `[slots] count` and `most`."""
        slots = settings.slots
        if not slots.grow:
            return settings
        found = min(max(self.slots_made(), slots.count), slots.most)
        return settings.model_copy(update={"slots": slots.model_copy(update={"count": found})})

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return a topic's configuration as the broker has it."""
        resource = ConfigResource(ResourceType.TOPIC, self._settings.prefix + topic)
        future = self.admin().describe_configs([resource])[resource]
        return {name: str(entry.value) for name, entry in future.result(timeout=_ADMIN_S).items()}

    def delete_records(self, positions: Iterable[Position]) -> None:
        """Delete what stands before the given offsets (retention by hand; ends replay)."""
        places = [TopicPartition(self._settings.prefix + item.topic, item.partition, item.offset) for item in positions]
        for future in self.admin().delete_records(places).values():
            future.result(timeout=_ADMIN_S)

    def close(self) -> None:
        """Let go of the AdminClient."""
        with contextlib.suppress(KafkaException):
            self._admin = None

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return client_options(self._settings) | {"client.id": self._client_id} | options | dict(self._settings.options)


def topic_layout(settings: Settings) -> dict[str, tuple[int, dict[str, str]]]:
    """Return topic -> (partitions, configuration); architecture, "Topics"."""
    slots = settings.slots.count
    # Only closed segments are deleted: without a segment.ms, a slow log would keep records for days past their time.
    retention_ms = round(settings.kafka.retention_s * 1000)
    segment_ms = min(max(retention_ms // 5, 60_000), 86_400_000)
    flushed = {"flush.messages": str(settings.kafka.flush_messages)} if settings.kafka.flush_messages else {}
    stamped = {"message.timestamp.type": "LogAppendTime"}
    deleted = stamped | {"cleanup.policy": "delete", "retention.bytes": "-1"}
    kept = deleted | flushed | {"retention.ms": str(retention_ms), "segment.ms": str(segment_ms)}
    compacted = stamped | flushed | {"cleanup.policy": "compact", "segment.ms": "600000"}
    forever = deleted | flushed | {"retention.ms": "-1"}
    short = deleted | {"retention.ms": "600000", "segment.ms": "300000"}
    large = {"max.message.bytes": str(8 << 20)}  # more than producers' message.max.bytes
    # Contexts are found by offset, so they age by time; the newest is never older than the slot's last progress, and a
    # slot whose context is gone replays from the beginning of `tuples`.
    return {
        topics.TUPLES: (slots, kept | {"max.message.bytes": str(settings.kafka.max_message_bytes)}),
        topics.RECOVERED: (slots, kept | large),
        topics.RESULTS: (settings.spark.cores, kept | large),
        topics.ACKS: (1, compacted),
        topics.CONTEXTS: (slots, kept | large),
        topics.HEARTBEATS: (1, short),
        topics.PLAN: (1, forever),
        topics.LATE: (1, kept),
        topics.DEAD_LETTERS: (1, kept),
    }


def wait_for_topics(
    log: KafkaLog,
    settings: Settings,
    stopped: Callable[[], bool],
    logger: BoundLogger,
    needed: Collection[str] = topics.TOPICS,
    *,
    sized: Callable[[Settings], Settings] | None = None,
) -> Settings | None:
    """Wait until the broker answers and every topic is there, making them if `[kafka] topics` says so.

    Args:
        needed: see `KafkaLog.ensure_topics`.
        sized: says how many slots new topics are to have; None = where `[slots] most` lets them be more than `count`,
            somebody who knows is waited for.

    Returns:
        The settings with so many slots as there are; None if `stopped()` became true before.

    Raises:
        LogError: the broker answers, and the topics are not as they must be.
    """
    said = 0.0
    while not stopped():
        try:
            there = log.slots_made() > 0
        except LogError as error:
            if time.monotonic() - said > WAIT_LINE_S:
                said = time.monotonic()
                logger.warning("waiting for the broker", servers=settings.kafka.servers, detail=str(error))
            time.sleep(0.2)
            continue
        if not there and settings.slots.grow and settings.kafka.topics == "create" and sized is None:
            if time.monotonic() - said > WAIT_LINE_S:
                said = time.monotonic()
                logger.info("waiting for the scaler, or `tsunagi topics`, to make the topics")
            time.sleep(0.2)
            continue
        if not there and sized is not None:
            settings = sized(settings)  # kept: just after they were made the broker may not tell of them yet
        log.ensure_topics(settings, needed)
        return log.with_slots(settings)
    return None
