"""The producer of Kafka. It is durable and gapless, or gives up soon, for records that are worthless when late."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message
from confluent_kafka import Producer as ConfluentProducer

from tsunagi.runtime.kafka_client import GAPLESS, make_client
from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.log import Delivered, LogError

DURABLE: dict[str, Any] = {
    "enable.idempotence": True,
    # All durable producers are gapless, so that nobody forgets it: readers would drop an output that is written after
    # one with a later name, as a repeat.
    GAPLESS: True,
    "acks": "all",
    "linger.ms": 1,
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "message.max.bytes": 8_000_000,
}
"""The options of a durable producer. It sends again for as long as it takes (message.timeout.ms is 0)."""
# A record that is worthless when late must not be appended late either, so it is dropped from the queue instead.
SHORT: dict[str, Any] = {
    "enable.idempotence": False,
    "acks": 1,
    "retries": 0,
    "linger.ms": 0,
    "message.timeout.ms": 500,
    "socket.timeout.ms": 1000,
    "request.timeout.ms": 500,
    "message.max.bytes": 8_000_000,
}
_NO_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - its public constant
"""The error by which the client says that it knows of no such partition."""
_REFRESH_S = 1.0
"""Longest wait for the partitions of a topic, in seconds. A service's loop waits as long."""


class KafkaProducer:
    """A `tsunagi.runtime.log.Producer` on librdkafka."""

    def __init__(self, options: dict[str, Any], prefix: str) -> None:
        self.appended_us = 0
        self._refused = ""  # the library's error for the last record that was refused
        self._producer = make_client(ConfluentProducer, options)
        self._prefix = prefix

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, delivered: Delivered | None = None
    ) -> None:
        callback = None if delivered is None else partial(self._report, delivered)
        name = self._prefix + topic
        try:
            try:
                self._producer.produce(name, value=value, key=key, partition=partition, on_delivery=callback)
            except KafkaException as error:
                if error.args[0].code() != _NO_PARTITION:
                    raise
                self._refresh(name)
                self._producer.produce(name, value=value, key=key, partition=partition, on_delivery=callback)
        except KafkaException as error:  # the client knows already that there is no such topic, or no right to it
            self.poll()  # a producer that has ended raises here, and says why
            raise LogError(f"{topic}/{partition}: {said(error)}") from error

    def send_run(
        self, topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered | None = None
    ) -> int:
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in pairs]
        if delivered is not None:
            messages[-1]["callback"] = partial(self._report, delivered)
        name = self._prefix + topic
        try:
            queued = int(self._producer.produce_batch(name, messages, partition))
            trouble = messages[0].get("_error")
            if trouble is not None and trouble.code() == _NO_PARTITION:
                self._refresh(name)
                for message in messages:
                    message.pop("_error", None)
                queued = int(self._producer.produce_batch(name, messages, partition))
        except KafkaException as error:
            self.poll()
            raise LogError(f"{topic}/{partition}: {said(error)}") from error
        if queued < len(messages):
            # When the queue is full the library takes no further record, so it has taken the first ones.
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

    def _refresh(self, name: str) -> None:
        """Ask for a topic's partitions, since some may have been added: by itself the client asks every few minutes."""
        with contextlib.suppress(KafkaException):
            self._producer.list_topics(name, timeout=_REFRESH_S)

    def _report(self, delivered: Delivered, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        kind, milliseconds = message.timestamp()
        self.appended_us = milliseconds * 1000 if error is None and kind == TIMESTAMP_LOG_APPEND_TIME else 0
        self._refused = self._refused if error is None else said(error)
        delivered(None if error is None else LogError(said(error)), -1 if offset is None else offset)

    def _unless_ended(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call the library. Turn a fatal error, which it raises in one of three ways, into a LogError.

        Raises:
            LogError: the producer has ended.
        """
        try:
            return int(call(timeout_s))
        except KafkaException as error:
            raise LogError(said(error)) from error
        except SystemError as error:  # the fatal error was raised in a callback, and may have been lost there
            raise LogError(str(error.__cause__ or self._refused or error)) from error
        except:
            found: object = sys.exc_info()[1]
            if isinstance(found, KafkaError):
                raise LogError(said(found)) from None
            raise
