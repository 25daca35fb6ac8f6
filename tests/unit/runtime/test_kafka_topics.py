"""Topics that are made are there when `ensure_topics` returns, however long a busy broker takes to show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tsunagi.runtime import kafka
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import HEARTBEATS, TUPLES, LogError
from tsunagi.runtime.settings import Settings, SlotsSettings
from tsunagi.runtime.topics import topic_layout


class Answer:
    def result(self, timeout: float) -> None:
        del timeout


class SlowBroker:
    """An administrative client of a broker that shows what it has made after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.made: dict[str, int] = {}

    def create_topics(self, wanted: list[Any]) -> dict[str, Any]:
        self.made = {topic.topic: topic.num_partitions for topic in wanted}
        return {name: Answer() for name in self.made}

    def list_topics(self, timeout: float) -> Any:
        del timeout
        self.looks -= bool(self.made)
        shown = self.made if self.looks < 0 else {}
        partition = SimpleNamespace(replicas=[1])
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(partitions=dict.fromkeys(range(count), partition), error=None)
                for name, count in shown.items()
            }
        )


def test_topics_are_waited_for_until_the_broker_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, log, settings = SlowBroker(3), KafkaLog(Settings().kafka), Settings()
    monkeypatch.setattr(log, "admin", lambda: broker)
    monkeypatch.setattr(kafka, "_LOOK_S", 0.0)
    log.ensure_topics(settings)
    assert {topic: log.partitions(topic) for topic in topic_layout(settings)} == {
        topic: count for topic, (count, _) in topic_layout(settings).items()
    }


def test_topics_that_never_show_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, log = SlowBroker(10**9), KafkaLog(Settings().kafka)
    monkeypatch.setattr(log, "admin", lambda: broker)
    monkeypatch.setattr(kafka, "_SEEN_S", 0.0)
    with pytest.raises(LogError, match=r"made acks, .*tuples, and does not show them in 0 s"):
        log.ensure_topics(Settings())


@pytest.mark.parametrize(("slots", "made", "cells"), [(2, 1, 0), (640, 21, 0), (640, 1, 1), (2, 3, 2), (640, 0, 0)])
def test_a_system_keeps_the_cells_that_its_topics_were_made_for(
    monkeypatch: pytest.MonkeyPatch, slots: int, made: int, cells: int
) -> None:
    log, settings = KafkaLog(Settings().kafka), Settings(slots=SlotsSettings(count=slots))
    monkeypatch.setattr(log, "partitions", {HEARTBEATS: made, TUPLES: slots}.get)
    found = log.with_slots(settings)
    assert found.standby.cells == cells, "0 is as many as the settings say"
    partitions, _ = topic_layout(found)[HEARTBEATS]
    assert partitions == made or not made
