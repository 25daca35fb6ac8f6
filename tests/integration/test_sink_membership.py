"""Which partitions an instance of a sink has, and what becomes of that when the broker dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sinks import wait_until
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RESULTS, LogError
from tsunagi.runtime.settings import KafkaSettings, Settings, SparkSettings
from tsunagi.sink.membership import SinkGroup
from tsunagi.sink.rows import SinkPosition

PATIENCE_S = 30.0
PLACES = frozenset({(RESULTS, 0), (RESULTS, 1)})


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker", free_port())
    broker.start()
    broker.wait_ready()
    yield broker
    broker.stop()


@pytest.fixture
def settings(broker: Broker) -> KafkaSettings:
    """Where the broker is, which has all topics."""
    found = KafkaSettings(servers=broker.servers)
    log = KafkaLog(found, client_id="test")
    log.ensure_topics(Settings(kafka=found, spark=SparkSettings(cores=2)))
    log.close()
    return found


def has_all(group: SinkGroup) -> bool:
    """Take part; return whether the group has all partitions now."""
    group.poll(0.02)
    return group.places == PLACES


def join(group: SinkGroup) -> None:
    wait_until(lambda: has_all(group), "it gets no partitions", PATIENCE_S)


def test_partitions_come_back_after_the_broker_was_away_for_longer_than_a_session(
    broker: Broker, settings: KafkaSettings
) -> None:
    """Kafka's client takes part in no group before its commits have ended, and those of this time do not for long."""
    group = SinkGroup(settings, "out", "sink-out", [RESULTS])
    offset = 0

    def goes_on(until: bool) -> None:
        """Take part until it has the partitions, or no more."""
        nonlocal offset
        deadline = time.monotonic() + PATIENCE_S
        while has_all(group) != until:
            assert time.monotonic() < deadline, f"places: {group.places}"
            if group.places:
                offset += 1
                group.commit({(RESULTS, 0): SinkPosition(offset, "an id")})

    goes_on(True)
    broker.kill()
    goes_on(False)
    broker.start()
    goes_on(True)
    group.commit({(RESULTS, 0): SinkPosition(offset + 1, "an id")})
    group.close()
    other = SinkGroup(settings, "out", "sink-other", [RESULTS])
    assert other.committed(PLACES) == {(RESULTS, 0): SinkPosition(offset + 1, "an id")}
    other.close()


def test_an_instance_whose_commit_is_refused_since_another_has_its_name_says_so(settings: KafkaSettings) -> None:
    groups = [SinkGroup(settings, "out", "sink-out", [RESULTS])]

    def takes_part() -> bool:
        groups[0].poll(0.02)
        return False

    try:
        join(groups[0])
        groups.append(SinkGroup(settings, "out", "sink-out", [RESULTS]))
        join(groups[1])
        groups[0].commit({(RESULTS, 0): SinkPosition(7, "an id")})
        with pytest.raises(LogError, match="another sink runs as 'sink-out' since"):
            wait_until(takes_part, "it says nothing", PATIENCE_S)
    finally:
        for group in groups:
            group.close()


def test_positions_are_told_while_a_member_that_hangs_keeps_others_from_joining(settings: KafkaSettings) -> None:
    position = SinkPosition(7, "an id")
    hangs = SinkGroup(settings, "out", "hangs", [RESULTS])
    join(hangs)
    hangs.commit({(RESULTS, 0): position})
    hangs.poll(1.0)
    joins = SinkGroup(settings, "out", "joins", [RESULTS])
    try:
        joins.poll(2.0)
        assert joins.places == frozenset()
        assert joins.committed(PLACES) == {(RESULTS, 0): position}
    finally:
        hangs.close()
        joins.close()
