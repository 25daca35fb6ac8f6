"""Edges on a real Kafka topic of somebody else's, as processes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.integration.edges import LiveWorld, further, line, until
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.columns import floats
from tsunagi.runtime.kafka_client import client_options
from tsunagi.runtime.settings import KafkaSettings


class Topic:
    """A topic of somebody else's, with two partitions."""

    def __init__(self, world: LiveWorld) -> None:
        self.name = f"{world.settings.kafka.prefix}plant"
        self._world = world
        self._producer = Producer(client_options(world.settings.kafka))
        self._count = 0

    def make(self) -> None:
        for future in self._world.log.admin().create_topics([NewTopic(self.name, 2, 1)]).values():
            future.result(timeout=30)

    def send(self, sensor: str, time_us: int, value: float) -> None:
        self._count += 1
        self.raw(line(sensor, time_us, value), partition=self._count % 2)

    def raw(self, value: bytes, *, key: bytes | None = None, partition: int = 0) -> None:
        self._producer.produce(self.name, value=value, key=key, partition=partition)
        assert self._producer.flush(120) == 0


def test_an_edge_on_a_topic_waits_for_it_and_goes_on_where_it_was_killed(make_live: Callable[..., LiveWorld]) -> None:
    world = make_live(kind="kafka", when_behind="send")
    topic = Topic(world)
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    killed = world.start()
    until(lambda: "no such topic" in world.said())
    until(lambda: len(world.batches()) > 2)  # it lives, and says so
    assert killed.poll() is None
    topic.make()
    until(lambda: "reading the topic" in world.said())
    world.keep_sending(topic.send)
    until(further(world))
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    position = json.loads((world.path / "run" / "edges" / "a" / "position.json").read_text())
    time.sleep(1.0)  # readings go on
    again = world.start()
    until(further(world, 20))
    world.stop_sending()
    again.terminate()
    assert again.wait(30) == 0
    world.check()
    batches = world.batches()
    first, second = sorted({batch.incarnation for _, batch in batches})
    steps = sorted({batch.step for _, batch in batches if batch.incarnation == second})
    assert steps == list(range(position["step"] + 1, steps[-1] + 1))
    assert set(steps[:-10]) <= world.full_steps()
    assert max(batch.step for _, batch in batches if batch.incarnation == first) <= position["step"]


def test_an_edge_on_a_topic_outlives_the_death_of_its_cluster(tmp_path: Path) -> None:
    """Log and source are the same broker here, so that both come back at once, and the edge's spool drains."""
    (tmp_path / "broker").mkdir()
    broker = Broker(tmp_path / "broker", free_port())
    broker.start()
    world = None
    try:
        broker.wait_ready()
        world = LiveWorld(tmp_path, KafkaSettings(servers=broker.servers, prefix="outage."), kind="kafka")
        topic = Topic(world)
        topic.make()
        world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
        process = world.start()
        until(lambda: "reading the topic" in world.said())
        world.keep_sending(topic.send)
        until(further(world))
        killed_us = time.time_ns() // 1000
        broker.kill()
        until(lambda: world.said().count("waiting for the source"))
        broker.start()
        broker.wait_ready()
        until(further(world, 10))
        back_us = time.time_ns() // 1000
        until(further(world, 10))
        world.stop_sending()
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
        # The test's own producer may send twice.
        world.check(at_least_once=True, outage_us=(killed_us, back_us))
    finally:
        if world is not None:
            world.close()
        broker.stop()


def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_beginning(make_live: Callable[..., LiveWorld]) -> None:
    world = make_live(kind="kafka")
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())
    world.keep_sending(topic.send)
    until(further(world))
    world.stop_sending()
    for future in world.log.admin().delete_topics([topic.name]).values():
        future.result(timeout=30)
    until(lambda: "no such topic" in world.said())
    topic.make()
    topic.raw(b"before anybody looked")
    until(lambda: "made anew" in world.said())
    until(lambda: len(world.letters("unreadable")) == 1)
    assert world.letters("unreadable")[0].offset == 0
    world.keep_sending(topic.send)
    until(further(world))
    world.stop_sending()
    process.terminate()
    assert process.wait(30) == 0


def test_what_a_topic_has_that_cannot_be_used_stands_in_dead_letters_by_reason(
    make_live: Callable[..., LiveWorld],
) -> None:
    world = make_live(kind="kafka")
    topic = Topic(world)
    topic.make()
    world.environment["TSUNAGI_SOURCE__KAFKA__TOPIC"] = topic.name
    process = world.start()
    until(lambda: "reading the topic" in world.said())
    now_us = time.time_ns() // 1000
    wrong = {
        b"not JSON": "unreadable",
        b"1.5": "no-sensor",
        b'{"sensor": "s0", "value": 1}': "no-time",
        b'{"sensor": "s0", "time": "noon", "value": 1}': "bad-time",
        line("s9", now_us, 1.0): "unknown-sensor",
        line("s1", now_us, 1.0): "foreign-sensor",
        line("s0", now_us, float("nan")): "not-a-number",
        line("s0", now_us - 3_600_000_000, 1.0): "reading-late",
        line("s0", now_us + 3_600_000_000, 1.0): "ahead",
        b"x" * 100_000: "too-long",
    }
    for payload in wrong:
        topic.raw(payload, key=b"s0" if payload == b"not JSON" else None)
    until(lambda: len(world.letters()) == len(wrong))
    letters = {letter.offset: letter for letter in world.letters()}
    for offset, (payload, reason) in enumerate(wrong.items()):
        letter = letters[offset]
        assert letter.reason == reason
        assert letter.value == payload[:65536]
        assert letter.key == f"a/kafka/{topic.name}/0/{offset}".encode()
        assert (letter.topic, letter.partition) == ("source", 0)
        assert topic.name in letter.detail

    def taken() -> bool:
        topic.raw(b"7.5", key=b"s2")  # again, since one that came before the first whole window is in none
        return 7.5 in [value for _, batch in world.batches() for value in floats(batch.value).tolist()]

    until(taken)
    process.terminate()
    assert process.wait(30) == 0
