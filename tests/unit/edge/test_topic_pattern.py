"""Patterns of MQTT topics."""

from __future__ import annotations

import pytest

from tsunagi.edge.source import SourceError
from tsunagi.edge.topic_pattern import TopicPattern


@pytest.mark.parametrize(
    ("pattern", "subscription", "topic", "sensor"),
    [
        ("plant/{edge}/{sensor}", "plant/e1/+", "plant/e1/s7", "s7"),
        ("sensors/+/{sensor}", "sensors/+/+", "sensors/hall/s7", "s7"),
        ("{sensor}/#", "+/#", "s7/value/now", "s7"),
        ("line-{edge}/{sensor}/v", "line-e1/+/v", "line-e1/s7/v", "s7"),
        ("plant/#", "plant/#", "plant/a/b", None),
        ("plant/{sensor}", "plant/+", "plant/", None),
        ("/{sensor}", "/+", "/s7", "s7"),
    ],
)
def test_a_pattern_says_what_to_read_and_whose_it_is(pattern, subscription, topic, sensor):
    found = TopicPattern(pattern, "e1")
    assert found.subscription == subscription
    assert found.sensor(topic) == sensor


@pytest.mark.parametrize(
    ("pattern", "edge", "message"),
    [
        ("", "e1", "found '', expected a topic"),
        ("a/x{sensor}", "e1", "expected {sensor} as a whole level"),
        ("{sensor}/{sensor}", "e1", "expected {sensor} once at most"),
        ("a/{node}", "e1", "expected no names but {edge} and {sensor}"),
        ("a+/b", "e1", r"expected + and # as whole levels"),
        ("a/#/b", "e1", "expected # at its end only"),
        ("a/{edge}/b", "e/1", "has a sign that topics use"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern, edge, message):
    with pytest.raises(SourceError) as caught:
        TopicPattern(pattern, edge)
    assert message in str(caught.value)
    assert "[source.mqtt] topic" in str(caught.value)
