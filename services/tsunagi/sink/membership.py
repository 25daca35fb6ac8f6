"""Shares the partitions of topics out among the instances of a sink, by a consumer group of Kafka.

The group only says who has which partition, and keeps positions for targets that cannot. Records are read by the
reader that all services have: it checks signatures, and never jumps over lost records in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tsunagi.runtime.kafka_client import client_options, make_client
from tsunagi.runtime.kafka_errors import said
from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import KafkaSettings
from tsunagi.sink.rows import Place, SinkPosition

SESSION_S = 10.0
"""The partitions of an instance that has been silent for so long go to others, in seconds. One that is started again
under its name before has them at once."""
_ASK_S = 10.0
"""Longest wait for the positions that the group keeps, in seconds."""
_FINAL = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors after which an instance does not come into the group by waiting."""


class GroupInUseError(LogError):
    """The positions of a group cannot be set while it has members."""


def group_of(settings: KafkaSettings, sink: str) -> str:
    """Return the name of a sink's consumer group."""
    return f"{settings.group_prefix}-sink-{sink}"


def set_positions(settings: KafkaSettings, sink: str, positions: Mapping[Place, SinkPosition]) -> None:
    """Have the group of a sink keep other positions.

    Raises:
        GroupInUseError: an instance of the sink runs, or was killed less than `SESSION_S` ago.
        LogError: the cluster does not answer, or refuses.
    """
    offsets = [
        TopicPartition(settings.prefix + topic, partition, offset, topic_id)
        for (topic, partition), (offset, topic_id) in positions.items()
    ]
    wanted = ConsumerGroupTopicPartitions(group_of(settings, sink), offsets)
    admin = _admin_of(settings)
    try:
        _answer(admin.alter_consumer_group_offsets([wanted], request_timeout=_ASK_S))
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
            told = f"sink {sink}: an instance runs, or was killed just now: stop it first"
            raise GroupInUseError(told) from None
        raise LogError(said(error)) from None


def _admin_of(settings: KafkaSettings) -> AdminClient:
    return make_client(AdminClient, client_options(settings) | dict(settings.options))


def _answer(asked: Mapping[str, Future[ConsumerGroupTopicPartitions]]) -> list[TopicPartition]:
    """Wait for the answer about one group.

    Raises:
        KafkaException: the cluster does not answer, or refuses the group or one of the partitions.
    """
    (future,) = asked.values()
    found = future.result(timeout=2 * _ASK_S).topic_partitions or []
    for item in found:
        if item.error is not None:
            raise KafkaException(item.error)
    return found


def _is_final(error: KafkaError) -> bool:
    return error.fatal() or error.code() in _FINAL


class SinkGroup:
    """A member of the group of a sink.

    Args:
        settings: where the cluster is.
        sink: the name of the sink.
        member: the name of this instance, which no other living one has.
        topics: the topics whose partitions are shared out, without prefix.

    Attributes:
        places: the partitions of this instance.
        changes: how often they have changed.
    """

    def __init__(self, settings: KafkaSettings, sink: str, member: str, topics: Iterable[str]) -> None:
        self.places: frozenset[Place] = frozenset()
        self.changes = 0
        self._member = member
        self._committing = False  # the client takes part in no group again before all of its commits have ended
        self._pending: dict[Place, SinkPosition] = {}  # positions for the commit after the one that is under way
        self._refusal: KafkaError | None = None  # why no commit will be taken any more
        self._settings = settings
        self._prefix = settings.prefix
        self._group = group_of(settings, sink)
        options: dict[str, Any] = {
            "client.id": member,
            "group.id": self._group,
            "group.instance.id": member,
            "session.timeout.ms": round(SESSION_S * 1000),
            "heartbeat.interval.ms": round(SESSION_S * 250),
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "on_commit": self._on_commit,
            "queued.min.messages": 1,
        }
        self._consumer = make_client(Consumer, client_options(settings) | options | dict(settings.options))
        self._consumer.subscribe(
            [settings.prefix + topic for topic in topics],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take part in the group; `places` may be others afterwards. It must be called at least every five minutes.

        Raises:
            LogError: another instance has the name of this one, or the group is closed to this user.
        """
        message = self._consumer.poll(timeout_s)
        # The client says it once only that it is out of the group: to the commit, if that is the first to hear of it.
        error = self._refusal or (None if message is None else message.error())
        if error is None or not _is_final(error):
            return
        if error.code() == KafkaError.FENCED_INSTANCE_ID:
            raise LogError(f"another sink runs as {self._member!r} since: give each instance a --node of its own")
        raise LogError(said(error))

    def committed(self, places: Collection[Place]) -> dict[Place, SinkPosition]:
        """Return the positions of partitions that the group keeps, as far as it has any.

        A client of its own asks for them. Kafka answers the questions of a connection in their order, and a member that
        joins has its answer only when all others have joined too, which takes minutes when one of them hangs.

        Raises:
            LogError: the cluster does not answer, or refuses.
        """
        if not places:
            return {}
        wanted = [TopicPartition(self._prefix + topic, partition) for topic, partition in places]
        asked = [ConsumerGroupTopicPartitions(self._group, wanted)]
        admin = _admin_of(self._settings)
        try:
            found = _answer(admin.list_consumer_group_offsets(asked, request_timeout=_ASK_S))
        except KafkaException as error:
            raise LogError(said(error)) from None
        return {
            (item.topic[len(self._prefix) :], item.partition): SinkPosition(item.offset, item.metadata or "")
            for item in found
            if item.offset >= 0
        }

    def commit(self, positions: Mapping[Place, SinkPosition]) -> None:
        """Have the group keep positions, now or when the commit that is under way has ended.

        A commit that fails is made good by the next one. Rows of its records are written again otherwise, which their
        names show.
        """
        self._pending |= positions
        if not self._committing:
            self._send()

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        offsets = [
            TopicPartition(self._prefix + topic, partition, offset, topic_id)
            for (topic, partition), (offset, topic_id) in pending.items()
            if (topic, partition) in self.places
        ]
        if not offsets:
            return
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=offsets, asynchronous=True)
            self._committing = True

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._committing = False
        if error is not None and _is_final(error):
            self._refusal = error
        elif self._pending:
            self._send()

    def close(self) -> None:
        """Leave the others alone with the partitions; the last positions are committed before."""
        if self._pending:
            self._send()
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)  # another reader reads them
        self._set((item.topic[len(self._prefix) :], item.partition) for item in partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.unassign()
        self._set(())

    def _set(self, places: Iterable[Place]) -> None:
        self.places = frozenset(places)
        self.changes += 1
