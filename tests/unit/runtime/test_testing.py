"""The log in memory: what holds without faults, and what faults may and may not do."""

from __future__ import annotations

import random

import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import Delivered, LogError, OffsetLostError, Position
from tsunagi.runtime.testing import MemoryLog, MemoryReader, Network


def make(network: Network | None = None, seed: int = 1) -> tuple[MemoryLog, ManualClock]:
    clock = ManualClock()
    return MemoryLog(clock, {"tuples": 2, "plan": 1}, network=network, rng=random.Random(seed)), clock


def values(log: MemoryLog, topic: str = "tuples", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in log.records(topic, partition)]


def read(reader: MemoryReader, count: int = 1000) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in reader.read(count, 0.0)]


def note(into: list[int]) -> Delivered:
    return lambda _, offset: into.append(offset)


def note_error(into: list[LogError | None]) -> Delivered:
    return lambda error, _: into.append(error)


def test_what_is_sent_is_read_in_order_with_its_append_time() -> None:
    log, clock = make()
    producer, reader = log.producer(), log.reader()
    reader.assign([Position("tuples", 0, 0)])
    producer.send("tuples", 0, b"k", b"a")
    clock.advance(1.0)
    producer.send("tuples", 0, b"k", b"b")
    first, second = reader.read(10, 0.0)
    assert (first.value, second.value) == (b"a", b"b")
    assert second.appended_us - first.appended_us == 1_000_000
    assert second.appended_us == clock.now_us()
    assert reader.range("tuples", 0) == (0, 2)
    assert log.partitions("tuples") == 2
    assert log.partitions("nothing") == 0


def test_callbacks_come_from_poll_and_flush_alone() -> None:
    log, _ = make()
    producer = log.producer()
    heard: list[tuple[LogError | None, int]] = []
    producer.send("tuples", 0, None, b"a", lambda error, offset: heard.append((error, offset)))
    assert heard == []
    assert producer.poll() == 1
    producer.send("tuples", 0, None, b"b", lambda error, offset: heard.append((error, offset)))
    assert producer.flush(0.0) == 0
    assert heard == [(None, 0), (None, 1)]


def test_reader_takes_at_most_what_it_is_asked_and_starves_no_partition() -> None:
    log, _ = make()
    for partition in (0, 1):
        for number in range(100):
            log.append("tuples", partition, None, b"%d" % number)
    reader = log.reader()
    reader.assign([Position("tuples", 0, 0), Position("tuples", 1, 0)])
    seen = {record.partition for _ in range(2) for record in reader.read(10, 0.0)}
    assert seen == {0, 1}


def test_a_negative_offset_is_the_present_end() -> None:
    log, _ = make()
    log.append("plan", 0, None, b"old")
    reader = log.reader()
    reader.assign([Position("plan", 0, -1)])
    log.append("plan", 0, None, b"new")
    assert read(reader) == [(1, b"new")]


def test_an_offset_outside_the_log_is_an_error() -> None:
    log, _ = make()
    for number in range(5):
        log.append("tuples", 0, None, b"%d" % number)
    log.truncate("tuples", 0, 3)
    reader = log.reader()
    assert reader.range("tuples", 0) == (3, 5)
    for lost in (2, 6):
        reader.assign([Position("tuples", 0, lost)])
        with pytest.raises(OffsetLostError, match="outside the log"):
            reader.read(1, 0.0)
    reader.assign([Position("tuples", 0, 5)])
    assert reader.read(1, 0.0) == []
    log.lose_end("tuples", 0, 4)
    with pytest.raises(OffsetLostError):
        reader.read(1, 0.0)


def test_compaction_leaves_the_last_record_of_each_key_and_the_offsets_as_they_were() -> None:
    log = MemoryLog(ManualClock(), {"acks": 1})
    for number, key in enumerate((b"a", b"b", b"a", b"c", b"a")):
        log.append("acks", 0, key, str(number).encode())
    assert [record.offset for record in log.compact("acks", 0, 4)] == [0]  # the last segment is not closed yet
    reader = log.reader()
    reader.assign([Position("acks", 0, 0)])
    assert [record.offset for record in reader.read(2, 0.0)] == [1, 2]
    assert [record.offset for record in reader.read(9, 0.0)] == [3, 4]
    assert reader.range("acks", 0) == (0, 5)
    assert [record.offset for record in log.compact("acks", 0, 5)] == [2]
    assert log.append("acks", 0, b"b", b"5") == 5
    reader.assign([Position("acks", 0, 2)])
    assert [record.offset for record in reader.read(9, 0.0)] == [3, 4, 5]
    log.lose_end("acks", 0, 4)
    assert [record.offset for record in log.records("acks")] == [1, 3]


def test_what_a_muted_client_sends_to_a_topic_gets_lost() -> None:
    log = MemoryLog(ManualClock(), {"acks": 1, "heartbeats": 1})
    log.muted.add(("one", "heartbeats"))
    for client in ("one", "two"):
        for topic in ("acks", "heartbeats"):
            log.client(client).producer().send(topic, 0, client.encode(), b"")
    assert [record.key for record in log.records("heartbeats")] == [b"two"]
    assert len(log.records("acks")) == 2


def test_a_topic_that_is_not_there_is_an_error() -> None:
    log, _ = make()
    with pytest.raises(LogError, match="no such partition"):
        log.producer().send("tuples", 2, None, b"a")
    with pytest.raises(LogError, match="no such partition"):
        log.reader().assign([Position("nothing", 0, 0)])


def test_delays_keep_the_order_within_a_partition_and_stamp_the_append() -> None:
    log, clock = make(Network(produce_s=(0.01, 0.2), ack_s=(0.01, 0.05), fetch_s=(0.1, 0.3)))
    producer, reader = log.producer(), log.reader()
    reader.assign([Position("tuples", 0, 0)])
    start_us = clock.now_us()
    offsets: list[int] = []
    for number in range(50):
        producer.send("tuples", 0, None, b"%d" % number, lambda _, offset: offsets.append(offset))
    assert values(log) == []
    assert read(reader) == []
    clock.advance(0.2)
    assert values(log) == [b"%d" % number for number in range(50)]
    assert read(reader) == [] or len(offsets) < 50
    clock.advance(0.31)
    assert producer.flush(0.0) == 0
    assert offsets == list(range(50))
    stamps = [record.appended_us for record in log.records("tuples", 0)]
    assert stamps == sorted(stamps)
    assert start_us + 10_000 - 1000 <= stamps[0]
    assert stamps[-1] <= start_us + 200_000
    rest = read(reader)
    assert rest[-1] == (49, b"49")


def test_a_reader_behind_a_fetch_delay_sees_the_end_late_but_range_at_once() -> None:
    log, clock = make(Network(fetch_s=(0.1, 0.1)))
    reader = log.reader()
    reader.assign([Position("tuples", 0, 0)])
    log.append("tuples", 0, None, b"a")
    assert reader.range("tuples", 0) == (0, 1)
    assert read(reader) == []
    clock.advance(0.11)
    assert read(reader) == [(0, b"a")]


def test_a_durable_producer_keeps_its_queue_over_an_outage() -> None:
    log, clock = make(Network(reconnect_s=(0.0, 0.2)))
    producer = log.client("edge").producer()
    offsets: list[int] = []
    producer.send("tuples", 0, None, b"0", lambda _, offset: offsets.append(offset))
    log.stop()
    for number in range(1, 10):
        clock.advance(10.0)
        producer.send("tuples", 0, None, b"%d" % number, lambda _, offset: offsets.append(offset))
        assert producer.poll() in (0, 1)
    assert values(log) == [b"0"]
    assert producer.queued == 9
    log.start()
    clock.advance(0.2)
    assert values(log) == [b"%d" % number for number in range(10)]
    assert producer.flush(0.0) == 0
    assert offsets == list(range(10))


def test_after_an_outage_producers_drain_in_any_order_each_in_its_own() -> None:
    orders = set()
    for seed in range(20):
        log, clock = make(Network(produce_s=(0.0, 0.05), reconnect_s=(0.0, 0.2)), seed)
        producers = {name: log.client(name).producer() for name in "abc"}
        log.stop()
        for number in range(5):
            for name, producer in producers.items():
                producer.send("tuples", 0, name.encode(), b"%d" % number)
        log.start()
        clock.advance(1.0)
        found = [(record.key or b"", record.value) for record in log.records("tuples", 0)]
        for name in producers:
            assert [value for key, value in found if key == name.encode()] == [b"%d" % number for number in range(5)]
        orders.add(tuple(key for key, _ in found))
    assert len(orders) > 5


def test_without_delays_too_the_order_between_producers_is_chance() -> None:
    orders = set()
    for seed in range(10):
        log, _ = make(seed=seed)
        producers = [log.client(name).producer() for name in "abc"]
        log.stop()
        for producer, name in zip(producers, "abc", strict=True):
            producer.send("tuples", 0, None, name.encode())
        log.start()
        orders.add(tuple(values(log)))
    assert len(orders) > 1


def test_a_short_lived_record_is_dropped_with_an_error() -> None:
    log, clock = make()
    producer = log.client("sec").producer(durable=False)
    log.partition_client("sec")
    heard: list[tuple[str, int]] = []
    producer.send("tuples", 0, None, b"old", lambda error, offset: heard.append((str(error), offset)))
    clock.advance(0.4)
    producer.send("tuples", 0, None, b"new", lambda error, offset: heard.append((str(error), offset)))
    assert producer.poll() == 0
    clock.advance(0.2)
    assert producer.poll() == 1
    assert heard == [("timed out", -1)]
    log.heal("sec")
    assert values(log) == [b"new"]
    producer.poll()
    assert heard[1:] == [("None", 0)]


def test_a_short_lived_record_on_a_slow_wire_is_appended_although_its_producer_heard_an_error() -> None:
    log, clock = make(Network(produce_s=(0.8, 0.8)))
    producer = log.producer(durable=False)
    heard: list[LogError | None] = []
    producer.send("tuples", 0, None, b"a", lambda error, _: heard.append(error))
    clock.advance(0.6)
    assert producer.poll() == 1
    assert heard[0] is not None
    clock.advance(0.3)
    assert values(log) == [b"a"]
    assert producer.poll() == 0


def test_one_node_is_cut_off_alone() -> None:
    log, clock = make()
    near, far = log.client("near"), log.client("far")
    reader = far.reader()
    reader.assign([Position("tuples", 0, 0)])
    near.producer().send("tuples", 0, None, b"before")
    clock.advance(0.1)
    log.partition_client("far")
    clock.advance(0.1)
    near.producer().send("tuples", 0, None, b"after")
    assert read(reader) == [(0, b"before")]  # it had come in when the connection broke
    assert read(reader) == []
    with pytest.raises(LogError, match="does not answer"):
        reader.range("tuples", 0)
    with pytest.raises(LogError, match="does not answer"):
        far.partitions("tuples")
    assert near.reader().range("tuples", 0) == (0, 2)
    log.heal("far")
    assert read(reader) == [(1, b"after")]


def test_a_client_made_while_the_broker_is_down_works_once_it_is_up() -> None:
    log, _ = make()
    log.stop()
    producer, reader = log.producer(), log.reader()
    reader.assign([Position("tuples", 0, 0)])
    producer.send("tuples", 0, None, b"a")
    assert read(reader) == []
    log.start()
    assert read(reader) == [(0, b"a")]


def test_of_what_was_in_flight_at_a_crash_a_first_part_may_stand() -> None:
    counts = set()
    for seed in range(40):
        log, clock = make(Network(produce_s=(0.1, 0.1)), seed)
        client = log.client("edge")
        producer = client.producer()
        for number in range(4):
            producer.send("tuples", 0, None, b"%d" % number)
        client.crash()
        clock.advance(1.0)
        found = values(log)
        assert found == [b"%d" % number for number in range(len(found))]
        counts.add(len(found))
        with pytest.raises(LogError, match="closed"):
            producer.send("tuples", 0, None, b"x")
    assert counts == {0, 1, 2, 3, 4}


def test_a_durable_record_whose_answer_was_lost_stands_once_and_is_reported_after_the_reconnect() -> None:
    appended_before = set()
    for seed in range(20):
        log, clock = make(Network(produce_s=(0.05, 0.05), ack_s=(0.05, 0.05)), seed)
        producer = log.producer()
        offsets: list[int] = []
        for number in range(3):
            producer.send("tuples", 0, None, b"%d" % number, note(offsets))
        log.stop()
        appended_before.add(len(values(log)))
        clock.advance(1.0)
        assert producer.poll() == 0
        log.start()
        clock.advance(1.0)
        producer.poll()
        assert values(log) == [b"0", b"1", b"2"]
        assert offsets == [0, 1, 2]
    assert len(appended_before) > 1


def test_a_ghost_is_appended_after_the_network_is_healed() -> None:
    found = set()
    for seed in range(20):
        log, clock = make(Network(produce_s=(0.05, 0.05), ghost=1.0), seed)
        producer = log.client("gw").producer(durable=False)
        heard: list[LogError | None] = []
        producer.send("tuples", 0, None, b"ghost", note_error(heard))
        log.partition_client("gw")
        found.add(tuple(values(log)))
        clock.advance(5.0)
        assert producer.poll() == 1
        assert heard[0] is not None
        log.heal("gw")
        assert values(log) == [b"ghost"]
    assert found == {(), (b"ghost",)}


def test_a_full_queue_is_a_buffer_error_and_loses_nothing() -> None:
    log, _ = make(Network(queue_records=2))
    producer = log.producer()
    log.stop()
    producer.send("tuples", 0, None, b"0")
    producer.send("tuples", 1, None, b"1")
    with pytest.raises(BufferError):
        producer.send("tuples", 0, None, b"2")
    log.start()
    producer.send("tuples", 0, None, b"2")
    assert values(log) == [b"0", b"2"]


def test_a_run_replays_from_its_seed() -> None:
    def run(seed: int) -> list[tuple[bytes | None, int]]:
        log, clock = make(Network((0.0, 0.3), (0.0, 0.1), (0.0, 0.2), (0.0, 0.5), ghost=0.5), seed)
        producers = [log.client(str(node)).producer(durable=node % 2 == 0) for node in range(4)]
        script = random.Random(7)
        for number in range(200):
            clock.advance(script.random() * 0.2)
            script.choice(producers).send("tuples", script.randrange(2), None, b"%d" % number)
            chance, node = script.random(), str(script.randrange(4))
            if chance < 0.05:
                log.partition_client(node)
            elif chance < 0.15:
                log.heal(node)
            elif chance < 0.17:
                log.stop()
            elif chance < 0.25:
                log.start()
        log.start()
        for number in range(4):
            log.heal(str(number))
        clock.advance(2.0)
        return [(record.value, record.appended_us) for record in log.records("tuples")]

    assert run(3) == run(3)
    assert run(3) != run(4)
    values_of = [value for value, _ in run(3)]
    assert len(values_of) == len(set(values_of))
