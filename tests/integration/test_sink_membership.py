"""Which partitions an instance of a sink has, and what becomes of that when the broker dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_partitions_come_back_after_the_broker_was_away_for_longer_than_a_session(broker: Broker) -> None:
    """Kafka's client takes part in no group before its commits have ended, and those of this time do not for long."""
    settings = KafkaSettings(servers=broker.servers)
    log = KafkaLog(settings, client_id="test")
    log.ensure_topics(Settings(kafka=settings, spark=SparkSettings(cores=2)))
    group = SinkGroup(settings, "out", "sink-out", [RESULTS])
    offset = 0

    def goes_on(until: bool) -> None:
        """Take part until it has the partitions, or no more."""
        nonlocal offset
        deadline = time.monotonic() + PATIENCE_S
        while (group.places == PLACES) != until:
            assert time.monotonic() < deadline, f"places: {group.places}"
            group.poll(0.02)
            if group.places:
                offset += 1
                group.commit({(RESULTS, 0): SinkPosition(offset, "an id")})

    try:
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
    finally:
        log.close()


def test_an_instance_whose_commit_is_refused_since_another_has_its_name_says_so(broker: Broker) -> None:
    settings = KafkaSettings(servers=broker.servers)
    log = KafkaLog(settings, client_id="test")
    log.ensure_topics(Settings(kafka=settings, spark=SparkSettings(cores=2)))
    log.close()
    groups = [SinkGroup(settings, "out", "sink-out", [RESULTS])]
    try:
        _join(groups[0])
        groups.append(SinkGroup(settings, "out", "sink-out", [RESULTS]))
        _join(groups[1])
        groups[0].commit({(RESULTS, 0): SinkPosition(7, "an id")})
        with pytest.raises(LogError, match="another sink runs as 'sink-out' since"):
            _take_part(groups[0], PATIENCE_S)
    finally:
        for group in groups:
            group.close()


def _take_part(group: SinkGroup, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        group.poll(0.02)


def _join(group: SinkGroup) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while group.places != PLACES:
        assert time.monotonic() < deadline, f"places: {group.places}"
        group.poll(0.02)


def test_positions_are_told_while_a_member_that_hangs_keeps_others_from_joining(broker: Broker) -> None:
    settings = KafkaSettings(servers=broker.servers)
    log = KafkaLog(settings, client_id="test")
    log.ensure_topics(Settings(kafka=settings, spark=SparkSettings(cores=2)))
    log.close()
    position = SinkPosition(7, "an id")
    hangs = SinkGroup(settings, "out", "hangs", [RESULTS])
    _join(hangs)
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
