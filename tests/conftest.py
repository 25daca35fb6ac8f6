"""Fixtures that all tests share: one real broker a session, and topics of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import hypothesis
import pytest

from deploy.kafka.broker import Broker
from deploy.kafka.checks import free_port
from services.runtime.kafka import KafkaLog
from services.runtime.settings import Kafka

# The tests share two cores with brokers and JVMs: how long an example takes says nothing about the code.
hypothesis.settings.register_profile(
    "tsunagi", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("tsunagi")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker, shared: a test that disturbs its broker makes one of its own."""
    shared = Broker(tmp_path_factory.mktemp("kafka"), free_port())
    shared.start()
    try:
        shared.wait_ready()
        yield shared
    finally:
        shared.stop()


@pytest.fixture
def kafka_settings(broker: Broker) -> Iterator[Kafka]:
    """[kafka] for the shared broker, with a prefix that no other test has; its topics are deleted afterwards."""
    name = uuid.uuid4().hex[:12]
    settings = Kafka(servers=broker.servers, prefix=f"{name}.", group_prefix=name)
    yield settings
    log = KafkaLog(settings, client_id="teardown")
    try:
        topics = [topic for topic in log.admin().list_topics(timeout=10).topics if topic.startswith(settings.prefix)]
        if topics:
            for future in log.admin().delete_topics(topics).values():
                future.result(timeout=30)
    finally:
        log.close()
