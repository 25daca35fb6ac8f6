from __future__ import annotations

import pytest

from tsunagi.broker.checks import BrokerError
from tsunagi.broker.container import Container


def test_one_broker_by_default() -> None:
    found = Container.read({}).properties()
    assert found["node.id"] == "1"
    assert found["controller.quorum.voters"] == "1@kafka:9093"
    assert found["advertised.listeners"].split(",")[:2] == ["CLIENTS://kafka:9092", "EXTERNAL://127.0.0.1:9092"]
    assert (found["default.replication.factor"], found["min.insync.replicas"]) == ("1", "1")
    assert "controller.quorum.bootstrap.servers" not in found
    assert "$" not in "".join(found.values())


def test_three_brokers_keep_two_copies_in_sync_at_least() -> None:
    found = Container.read({"KAFKA_NODE": "kafka-3", "KAFKA_NODES": "kafka,kafka-2,kafka-3"}).properties()
    assert found["node.id"] == "3"
    assert found["controller.quorum.voters"] == "1@kafka:9093,2@kafka-2:9093,3@kafka-3:9093"
    assert (found["default.replication.factor"], found["min.insync.replicas"]) == ("3", "2")
    assert found["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"KAFKA_NODE": "kafka-2"}, "KAFKA_NODE: found 'kafka-2', expected one of KAFKA_NODES = kafka;"),
        ({"KAFKA_NODES": "kafka,b"}, "KAFKA_NODES: found 2 brokers, expected 1, 3 or 5"),
        ({"KAFKA_EXTERNAL": "9092"}, "KAFKA_EXTERNAL: found '9092', expected host:port"),
        ({"KAFKA_HEAP_MB": "64"}, "KAFKA_HEAP_MB: found '64', expected a number of megabytes, 128 or more"),
    ],
)
def test_what_cannot_be_is_named(environment, said) -> None:
    with pytest.raises(BrokerError) as caught:
        Container.read(environment)
    assert said in str(caught.value)
