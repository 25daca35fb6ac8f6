"""The reader of Kafka. It reads partitions from given offsets on, without a consumer group.

`auto.offset.reset` is `error`, so a reader never jumps over lost records in silence.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from itertools import groupby, repeat
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tsunagi.runtime.kafka_client import ELECTING, client_logger, make_client
from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.log import LogError, OffsetLostError, Position, Record, Traffic

READER: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "fetch.error.backoff.ms": 20,
    # A reader that lags fetches more than `queued.min.messages` at once. By default it would then wait for a second.
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 5000,
    "queued.max.messages.kbytes": 32768,
    "enable.partition.eof": False,
    "check.crcs": True,
}
"""The options of a reader. It commits no offsets, because its owner keeps them."""
STATISTICS_MS = 1000
"""Time between two reports of the client library on its network traffic, in milliseconds."""
DEAF_S = 10.0
"""A reader that has received nothing for this long asks whether the log has more records for it, in seconds."""

SURE_S = 1.0
"""If the log has more records, they must come within this time, in seconds. Otherwise the client counts as deaf."""

_RANGE_S = 2.0
"""Longest wait for the first and last offset of a partition, in seconds."""
_REFRESH_S = 0.5
"""Longest wait for an answer to a short question, in seconds. It is short, because it may hold up a service's loop."""
_FRESH_S = 1.5
"""Longest wait for an answer to a client that was just made and must connect first, in seconds."""
_LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - its public constant
"""The errors by which Kafka says that the log does not have the wanted offset."""


class KafkaReader:
    """A `tsunagi.runtime.log.Reader` on librdkafka, without a consumer group.

    Args:
        options: the options of librdkafka.
        prefix: the prefix of the topics' names.
        measured: whether the reader measures its traffic.
    """

    def __init__(self, options: dict[str, Any], prefix: str, *, measured: bool = False) -> None:
        if measured:
            options = options | {
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._on_statistics,
                # Nothing is fetched ahead, so that the traffic is that of the records that were read.
                "queued.min.messages": 1,
            }
        self._options = options
        self._traffic = Traffic()
        self._measured = measured
        self._consumer = make_client(Consumer, options)
        self._prefix = prefix
        self._next: dict[tuple[str, int], int] = {}  # the offset of the next record of each assigned partition
        self._highest: dict[str, int] = {}  # the highest partition of each topic that was assigned so far
        self._heard_at = time.monotonic()

    def assign(self, positions: Iterable[Position]) -> None:
        positions = list(positions)
        self._learn(positions)
        wanted = [self._placed(item) for item in positions]
        self._next = {(item.topic, item.partition): item.offset for item in wanted}
        self._heard_at = time.monotonic()
        if wanted:
            self._consumer.assign([self._place(item) for item in wanted])
        else:
            self._consumer.unassign()

    def add(self, position: Position) -> None:
        self.remove(position.topic, position.partition)
        self._learn([position])
        position = self._placed(position)
        self._consumer.incremental_assign([self._place(position)])
        self._next[position.topic, position.partition] = position.offset

    def remove(self, topic: str, partition: int) -> None:
        if self._next.pop((topic, partition), None) is not None:
            self._consumer.incremental_unassign([TopicPartition(self._prefix + topic, partition)])

    def read(self, max_records: int, timeout_s: float, *, gather_s: float | None = None) -> list[Record]:
        try:
            if gather_s is None or timeout_s <= gather_s or max_records == 1:
                messages = self._consumer.consume(max_records, timeout_s)
            else:
                first = self._consumer.poll(timeout_s)
                messages = [] if first is None else [first, *self._consumer.consume(max_records - 1, gather_s)]
        except KafkaException as error:
            raise LogError(said(error)) from error
        now = time.monotonic()
        if messages:
            self._heard_at = now
        elif self._next and now - self._heard_at > DEAF_S:
            self._heard_at = now
            messages = self._look_after(max_records)
        records: list[Record] = []
        # Loops over one call each take half the time of one loop with all of them.
        messages = _without_errors(messages)
        names, numbers = [message.topic() for message in messages], [message.partition() for message in messages]
        upto = 0
        for (name, number), group in groupby(zip(names, numbers, strict=True)):  # they come partition by partition
            here = (name or "")[len(self._prefix) :], number or 0
            begin, upto = upto, upto + len(list(group))
            if here not in self._next:  # fetched before `remove`
                continue
            found = messages[begin:upto]
            offsets = [message.offset() for message in found]
            self._next[here] = offsets[-1] + 1  # type: ignore[operator]  # only an error has no offset
            times = [message.timestamp() for message in found]
            appended_us = [
                0 if kind == TIMESTAMP_NOT_AVAILABLE else 1000 * milliseconds for kind, milliseconds in times
            ]
            keys, values = [message.key() for message in found], [message.value() for message in found]
            records += map(Record, repeat(here[0]), repeat(here[1]), offsets, appended_us, keys, values)
        return records

    def range(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._prefix + topic, partition)
        deadline = time.monotonic() + _RANGE_S
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(place, timeout=_RANGE_S, cached=False)
            except KafkaException as error:
                if error.args[0].code() not in ELECTING or time.monotonic() > deadline:
                    raise LogError(f"{topic}/{partition}: {said(error)}") from error
                self._refresh(place.topic)
                time.sleep(0.05)
            else:
                return int(low), int(high)

    def traffic(self) -> Traffic:
        if self._measured and not self._next:
            self._consumer.poll(0)  # delivers the reports, which would pile up while nothing is read
        return self._traffic

    def close(self) -> None:
        self._consumer.close()

    def _on_statistics(self, report: str) -> None:
        found = json.loads(report)
        self._traffic = Traffic(int(found["rx_bytes"]), int(found["tx_bytes"]), int(found["tx"]))

    def _refresh(self, name: str) -> None:
        """Ask for a topic's metadata.

        A client that heard of the topic while its leader was away, and does not fetch from it, never asks again by
        itself. With librdkafka 2.16 most clients say "unknown partition" for ever after a few outages of the broker.
        """
        with contextlib.suppress(KafkaException):
            self._consumer.list_topics(name, timeout=_REFRESH_S)

    def _learn(self, positions: Iterable[Position]) -> None:
        """Ask for the metadata of topics of which higher partitions are wanted than before, since these may be new."""
        highest: dict[str, int] = {}
        for item in positions:
            highest[item.topic] = max(item.partition, highest.get(item.topic, 0))
        for topic, partition in highest.items():
            if partition > self._highest.setdefault(topic, partition):
                self._highest[topic] = partition
                self._refresh(self._prefix + topic)

    def _look_after(self, max_records: int) -> list[Message]:
        """Ask whether the log has more records. If it has, and they do not come, go on with another client.

        This is called when nothing has come for a while. A client whose connection is half open, or that does not know
        the leader of its partitions, waits for ever and says nothing (seen with librdkafka 2.16 after the broker had
        been off the network).
        """
        if not self._deaf():
            return []
        messages = self._consumer.consume(max_records, SURE_S)
        if messages:  # the records were appended just now
            return messages
        client_logger.warning("a reader heard nothing although the log goes on: it begins anew with another client")
        self._consumer.close()
        self._consumer = Consumer(self._options, logger=client_logger)
        self._consumer.assign(
            [TopicPartition(self._prefix + topic, number, offset) for (topic, number), offset in self._next.items()]
        )
        return []

    def _deaf(self) -> bool:
        """Return whether the log has records that should have come; False if the log does not answer."""
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
        """Return the end of a partition by asking through a new client; -1 if that one gets no answer either."""
        other = Consumer(self._options, logger=client_logger)
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


def _without_errors(messages: list[Message]) -> list[Message]:
    """Return the messages that are records.

    Raises:
        OffsetLostError: the log does not have the wanted offset.
        LogError: the client has ended, or has no right to the topic.
    """
    # An error must not be compared with None: the client library fails at it.
    troubled = [(message, trouble) for message in messages if (trouble := message.error()) is not None]
    if not troubled:
        return messages
    for message, trouble in troubled:
        if trouble.code() in _LOST:
            raise OffsetLostError(f"{message.topic()}/{message.partition()}: {trouble.str()}")
        if trouble.fatal() or trouble.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise LogError(f"{message.topic()}/{message.partition()}: {said(trouble)}")
        # The connection is broken, and librdkafka goes on trying.
    return [message for message in messages if message.error() is None]
