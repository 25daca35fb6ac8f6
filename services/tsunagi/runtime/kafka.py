"""Keeps the log in Kafka: makes all producers and readers of the system, and makes and checks the topics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from structlog.stdlib import BoundLogger

from tsunagi.runtime import log as topics
from tsunagi.runtime.cells import cells_for, cells_made
from tsunagi.runtime.kafka_client import ELECTING, WAIT_LINE_S, client_options, make_client
from tsunagi.runtime.kafka_errors import ConnectionErrors, said
from tsunagi.runtime.kafka_producer import DURABLE, SHORT, KafkaProducer
from tsunagi.runtime.kafka_reader import READER, KafkaReader
from tsunagi.runtime.log import LogError, Position
from tsunagi.runtime.settings import KafkaSettings, Settings
from tsunagi.runtime.topics import Found, differences, topic_layout

_SEEN_S = 30.0
"""Longest time until the broker shows topics that it has made, in seconds."""
_LOOK_S = 0.05
"""Time between two looks at the topics, in seconds."""
_ADMIN_S = 10.0
"""Longest wait of the administrative client for an answer, in seconds."""


class KafkaLog:
    """A `tsunagi.runtime.log.Log` on a Kafka cluster.

    Args:
        settings: the section [kafka].
        client_id: the name of the process, which the broker's logs and metrics show.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str = "tsunagi") -> None:
        self._settings = settings
        self._client_id = client_id
        self._admin: AdminClient | None = None
        self._errors = ConnectionErrors()

    def producer(self, *, durable: bool = True) -> KafkaProducer:
        return KafkaProducer(self._options(DURABLE if durable else SHORT), self._settings.prefix)

    def reader(self, *, wait_s: float = 0.1, least_bytes: int = 1, measured: bool = False) -> KafkaReader:
        own = {
            "group.id": f"{self._settings.group_prefix}-{self._client_id}",
            "fetch.wait.max.ms": round(wait_s * 1000),
            "fetch.min.bytes": least_bytes,
        }
        return KafkaReader(self._options(READER | own), self._settings.prefix, measured=measured)

    def partitions(self, topic: str) -> int:
        name = self._settings.prefix + topic
        try:
            metadata = self.admin().list_topics(timeout=_ADMIN_S)
        except KafkaException as error:
            raise LogError(f"broker {self._settings.servers}: {self._said(error)}") from error
        found = metadata.topics.get(name)
        if found is not None and found.error is not None and found.error.code() not in ELECTING:
            raise LogError(f"broker {self._settings.servers}: topic {name}: {said(found.error)}")
        return 0 if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> str:
        name = self._settings.prefix + topic
        try:
            asked = self.admin().describe_topics(TopicCollection([name]), request_timeout=_ADMIN_S)
            found = asked[name].result(timeout=_ADMIN_S)
        except KafkaException as error:
            if error.args[0].code() in ELECTING:
                return ""
            raise LogError(f"broker {self._settings.servers}: topic {name}: {self._said(error)}") from error
        except TimeoutError as error:
            raise LogError(f"broker {self._settings.servers}: topic {name}: no answer in {_ADMIN_S:.0f} s") from error
        return "" if found.topic_id is None else str(found.topic_id)

    def admin(self) -> AdminClient:
        """Return the only AdminClient. A reference to it is kept, as its thread would crash if it were collected."""
        if self._admin is None:
            self._admin = make_client(AdminClient, self._options({}) | {"error_cb": self._errors})
        return self._admin

    def _said(self, error: KafkaException) -> str:
        """Return why the broker does not answer, and what to do."""
        self.admin().poll(0)  # this delivers the errors of the client's connections
        return self._errors.said(error)

    def ensure_topics(self, settings: Settings, needed: Collection[str] = topics.TOPICS) -> None:
        """Make the missing topics, or only check all topics, as `[kafka] topics` says.

        The number of partitions is checked in both cases. If topics are only checked, every key of the layout is.

        Args:
            settings: the settings. Their `[slots] count` is the number of slots of new topics.
            needed: the topics to check. A user does not see the others if access control hides them.

        Raises:
            LogError: topics are missing, or are not as they must be (the message lists all differences), or cannot be
                made.
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
            how = '[kafka] topics = "check": nothing is made or changed; docs/reference/topics.md'
            if not only_check:
                how = "`tsunagi slots` adds slots; the number of cores is fixed when the topics are made"
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
        self._wait_seen({topic: partitions for topic, (partitions, _) in wanted.items() if topic not in there})

    def _wait_seen(self, made: Mapping[str, int]) -> None:
        """Wait until the broker shows partitions that were made: the controller answers first, a busy broker follows.

        Args:
            made: how many partitions each topic has now.
        """
        deadline_s = time.monotonic() + _SEEN_S
        while True:
            shown = self._found(made, configured=False)
            unseen = [name for name in sorted(made) if name not in shown or shown[name].partitions < made[name]]
            if not unseen:
                return
            if time.monotonic() > deadline_s:
                listed = ", ".join(self._settings.prefix + name for name in unseen)
                raise LogError(
                    f"broker {self._settings.servers}: made {listed}, and does not show them in {_SEEN_S:g} s"
                )
            time.sleep(_LOOK_S)

    def _found(self, names: Collection[str], *, configured: bool) -> dict[str, Found]:
        """Return the topics that exist.

        Args:
            names: the topics to look for.
            configured: whether to ask for their configuration too, as far as this user may see it.
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
        """Return for how many slots there are topics; 0 if they do not exist. A user may see only one of them."""
        return self.partitions(topics.TUPLES) or self.partitions(topics.RECOVERED)

    def raise_slots(self, count: int) -> None:
        """Give the topics that have a partition a slot so many partitions, if they have fewer.

        `tuples` is the last one. So whoever goes by its partitions, as `with_slots` does, finds the others ready.

        Raises:
            LogError: the broker does not answer, or does not let this user add partitions, or the settings do not.
        """
        for topic in (topics.CONTEXTS, topics.RECOVERED, topics.TUPLES):
            name = self._settings.prefix + topic
            if (there := self.partitions(topic)) >= count:
                continue
            if self._settings.topics == "check":
                raise LogError(
                    f"topic {name}: found {there} partitions, expected {count} or more; "
                    '[kafka] topics = "check": add them first to contexts, then to recovered, then to tuples'
                )
            try:
                for future in self.admin().create_partitions([NewPartitions(name, count)]).values():
                    future.result(timeout=_ADMIN_S)
            except TimeoutError:
                raise LogError(f"topic {name}: does not have {count} partitions after {_ADMIN_S:.0f} s") from None
            except KafkaException as error:
                raise LogError(f"topic {name}: cannot have {count} partitions: {said(error)}") from error
            self._wait_seen({topic: count})

    def with_slots(self, settings: Settings) -> Settings:
        """Return the settings with the numbers of slots and of cells that the topics have.

        There are more slots than `[slots] count` where `[slots] most` allowed it when the topics were made, or where
        slots were added since.
        """
        slots, standby = settings.slots, settings.standby
        if (there := self.slots_made()) > slots.count:
            slots = slots.model_copy(update={"count": there})
        made = self.partitions(topics.HEARTBEATS)
        if made and cells_made(made) != cells_for(slots.count, standby.cells):
            standby = standby.model_copy(update={"cells": cells_made(made)})
        if slots is settings.slots and standby is settings.standby:
            return settings
        return settings.model_copy(update={"slots": slots, "standby": standby})

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the configuration of a topic as the broker has it."""
        resource = ConfigResource(ResourceType.TOPIC, self._settings.prefix + topic)
        future = self.admin().describe_configs([resource])[resource]
        return {name: str(entry.value) for name, entry in future.result(timeout=_ADMIN_S).items()}

    def delete_records(self, positions: Iterable[Position]) -> None:
        """Delete the records before the given offsets. These records cannot be replayed any more."""
        places = [TopicPartition(self._settings.prefix + item.topic, item.partition, item.offset) for item in positions]
        for future in self.admin().delete_records(places).values():
            future.result(timeout=_ADMIN_S)

    def close(self) -> None:
        """Release the AdminClient."""
        with contextlib.suppress(KafkaException):
            self._admin = None

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return client_options(self._settings) | {"client.id": self._client_id} | options | dict(self._settings.options)


def wait_for_topics(
    log: KafkaLog,
    settings: Settings,
    stopped: Callable[[], bool],
    logger: BoundLogger,
    needed: Collection[str] = topics.TOPICS,
    *,
    sized: Callable[[Settings], Settings] | None = None,
) -> Settings | None:
    """Wait until the broker answers and all topics exist. Missing topics are made if `[kafka] topics` says so.

    Args:
        log: the log.
        settings: the settings of the service.
        stopped: tells whether to give up.
        logger: gets a line every `WAIT_LINE_S` during the wait.
        needed: as for `KafkaLog.ensure_topics`.
        sized: returns settings with the number of slots for new topics. With None, a service whose `[slots] most`
            allows more than `count` waits until another process has made the topics.

    Returns:
        The settings with the number of slots that there are; None if `stopped()` became true before.

    Raises:
        LogError: the broker answers, but the topics are not as they must be.
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
            settings = sized(settings)  # kept, because the broker may not know of new topics for a moment
        log.ensure_topics(settings, needed)
        return log.with_slots(settings)
    return None
