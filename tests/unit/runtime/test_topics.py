"""A topic is compared with its documentation key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.runtime.settings import KafkaSettings, Settings
from tsunagi.runtime.topics import Found, differences, topic_layout
from tsunagi.runtime.topics_page import document

LAYOUT = topic_layout(Settings(kafka=KafkaSettings(replication=3)))
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "topics.md"
KEYS = [(topic, key) for topic, (_, config) in LAYOUT.items() for key in config]
OTHERS = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "message.timestamp.type": ("CreateTime",),
    "retention.ms": ("1000",),
    "retention.bytes": ("1000000",),
    "segment.ms": ("604800000",),
    "max.message.bytes": ("1000",),
}


def test_the_document_is_what_the_table_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run `make docs`"


@pytest.mark.parametrize("topic", LAYOUT)
def test_a_topic_as_it_is_made_passes(topic: str) -> None:
    partitions, config = LAYOUT[topic]
    assert differences(topic, Found(partitions, 3, config), partitions, 3, config) == []


@pytest.mark.parametrize(("topic", "key"), KEYS)
def test_each_key_that_differs_is_named_with_found_and_expected(topic: str, key: str) -> None:
    partitions, config = LAYOUT[topic]
    for other in OTHERS[key]:
        if other == config[key]:
            continue
        (said,) = differences(topic, Found(partitions, 3, config | {key: other}), partitions, 3, config)
        assert said.startswith(f"{key}: found {other}, expected {config[key]}")
    without = {name: value for name, value in config.items() if name != key}
    (said,) = differences(topic, Found(partitions, 3, without), partitions, 3, config)
    assert said.startswith(f"{key}: found nothing, expected ")


@pytest.mark.parametrize("topic", LAYOUT)
def test_partitions_and_replication_are_named_even_where_the_configuration_is_hidden(topic: str) -> None:
    partitions, config = LAYOUT[topic]
    assert differences(topic, Found(partitions + 1, 1, None), partitions, 3, config) == [
        f"partitions: found {partitions + 1}, expected {partitions}",
        "replication.factor: found 1, expected 3 or more",
    ]


@pytest.mark.parametrize(("topic", "key"), KEYS)
def test_more_than_is_needed_is_no_fault_where_it_does_no_harm(topic: str, key: str) -> None:
    partitions, config = LAYOUT[topic]
    more = {"retention.ms": "-1", "retention.bytes": "-1", "segment.ms": "1000", "max.message.bytes": "99999999"}
    if key in more and (topic, key) != ("tuples", "max.message.bytes"):
        assert differences(topic, Found(partitions, 5, config | {key: more[key]}), partitions, 3, config) == []
