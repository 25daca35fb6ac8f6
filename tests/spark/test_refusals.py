"""What the job refuses before Spark starts, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.world import FIRST_STEP, World, write_records, write_table
from tsunagi.broker.broker import Broker
from tsunagi.broker.checks import free_port
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.log import RECOVERED, LogError, Position
from tsunagi.runtime.marks import digest_of, record_before
from tsunagi.runtime.settings import (
    AggregateSettings,
    ConfigError,
    KafkaSettings,
    QuerySettings,
    Settings,
    SparkSettings,
)
from tsunagi_spark.checkpoint import Checkpoint
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.identity import reconcile
from tsunagi_spark.service import CheckpointError, begin, check_topics, run
from tsunagi_spark.session import session_options
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import StateError, Store


def settings_of(broker: Broker, tmp_path: Path, prefix: str, cores: int = 2) -> Settings:
    write_table(tmp_path / "sensors.csv")
    return Settings(
        sensors=tmp_path / "sensors.csv",
        kafka=KafkaSettings(servers=broker.servers, prefix=prefix),
        spark=SparkSettings(cores=cores, checkpoint=tmp_path / "checkpoint"),
    )


def test_topics_that_are_missing_or_too_narrow(broker: Broker, tmp_path: Path) -> None:
    settings = settings_of(broker, tmp_path, "narrow.")
    log = KafkaLog(settings.kafka)
    with pytest.raises(
        LogError, match=r"topic narrow.recovered: found 0 partitions, expected at least 2 .\[slots\] count"
    ):
        check_topics(log, settings, wait_s=0)
    log.ensure_topics(settings)
    check_topics(log, settings)
    with pytest.raises(
        LogError, match=r"topic narrow.results: found 2 partitions, expected at least 3 .\[spark\] cores"
    ):
        check_topics(log, settings_of(broker, tmp_path, "narrow.", cores=3))


def test_retention_past_the_checkpoint_and_a_topic_made_anew(broker: Broker, tmp_path: Path) -> None:
    settings = settings_of(broker, tmp_path, "retention.")
    log = KafkaLog(settings.kafka)
    log.ensure_topics(settings)
    from tsunagi.runtime.sensors import read_sensors

    world = World(settings, read_sensors(settings.sensors))
    write_records(log, [(1, *world.record(1, FIRST_STEP + step)) for step in range(10)])
    store = Store(settings.spark.checkpoint)
    store.prepare(2)
    checkpoint = Checkpoint(settings.spark.checkpoint, "retention.recovered")

    def faults(read_to: int, digest: int = 0, topic_id: str = "") -> list[str]:
        standing = JobStanding(
            batch=3, marks={1: SlotMark(read_to=read_to, digest=digest)}, topic_ids={RECOVERED: topic_id}, layout=1
        )
        return [str(fault) for fault in reconcile(log, store, checkpoint, standing, 2)[1]]

    record = record_before(log.reader(), Position(RECOVERED, 1, 8))
    assert record is not None
    mine = log.topic_id(RECOVERED)
    assert faults(4) == faults(8, digest_of(record), mine) == []
    log.delete_records([Position(RECOVERED, 1, 6)])
    assert faults(4) == ["recovered/1: retention took the records 4..6 before they were read"]
    assert checkpoint.positions(3) == {0: 0, 1: 6}
    assert faults(11) == ["recovered/1: the log lost its end: it ends at 10, and was read up to 11"]
    assert "grew again" in faults(8, digest_of(record) ^ 1, mine)[0]
    assert [fault[:12] for fault in faults(8, topic_id="another")] == ["recovered/0:", "recovered/1:"]


def test_a_checkpoint_without_its_state(broker: Broker, tmp_path: Path) -> None:
    settings = settings_of(broker, tmp_path, "stateless.")
    checkpoint = settings.spark.checkpoint
    store = Store(checkpoint)
    store.prepare(2)
    assert begin(store, settings) == JobStanding()
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "7").write_text("v1\n{}")
    (checkpoint / "metadata").write_text('{"id": "q"}')
    with pytest.raises(StateError, match="state is missing"):
        begin(store, settings)
    store.write_json("query.json", {"id": "q"})
    with pytest.raises(StateError, match="driver/after-7: state is missing"):
        begin(store, settings)
    store.write_json("driver/after-7", JobStanding(batch=7, marks={0: SlotMark(step=5)}).as_json())
    with pytest.raises(StateError, match="core-0/state-7: state is missing; restore it, or empty the checkpoint"):
        begin(store, settings)
    for core in range(2):
        store.write(f"core-{core}/state-7", b"")
    with pytest.raises(StateError, match="layouts/0: state is missing"):
        begin(store, settings)
    store.write("layouts/0", b"")
    assert begin(store, settings) == JobStanding(), "what is there, and is not whole, is started from all the same"


def test_missing_jars_are_named(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Spark connector in .*; run `make setup`"):
        session_options(settings_of(broker, tmp_path, ""), jars=tmp_path)


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    write_table(tmp_path / "sensors.csv")
    settings = Settings(sensors=tmp_path / "sensors.csv", kafka=KafkaSettings(servers=f"127.0.0.1:{free_port()}"))
    with pytest.raises(LogError, match=r"127\.0\.0\.1"):
        check_topics(KafkaLog(settings.kafka), settings, wait_s=0)


def test_a_state_directory_that_cannot_be_used(broker: Broker, tmp_path: Path) -> None:
    settings = settings_of(broker, tmp_path, "stateful.")
    KafkaLog(settings.kafka).ensure_topics(settings)
    (tmp_path / "checkpoint").write_text("a file")
    with pytest.raises(CheckpointError, match=r"\[spark\] checkpoint = .*checkpoint: .*File exists"):
        run(settings)


def test_aggregates_that_are_no_whole_steps(broker: Broker, tmp_path: Path) -> None:
    settings = settings_of(broker, tmp_path, "halves.")
    KafkaLog(settings.kafka).ensure_topics(settings)
    query = QuerySettings(aggregates=(AggregateSettings(name="a", range_s=5),))
    with pytest.raises(ConfigError, match=r"a: range_s = 5: expected a multiple of a step, 2 s"):
        run(settings.model_copy(update={"query": query}))
