"""The job notices that the log is not the one it has read, at a start and while it runs, and goes on by the rule."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from tests.spark.world import FIRST_STEP, World, write_table
from tests.unit.spark.small_job import layout_of
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import ACKS, PLAN, RECOVERED, RESULTS
from tsunagi.runtime.marks import BREAK_US
from tsunagi.runtime.messages import Ack
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings, SparkSettings
from tsunagi.runtime.testing import MemoryLog
from tsunagi_spark.acknowledge import Acknowledger
from tsunagi_spark.action import named
from tsunagi_spark.checkpoint import Checkpoint
from tsunagi_spark.decode import Arrived, decode
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.identity import LogChangedError, reconcile
from tsunagi_spark.job import Job
from tsunagi_spark.service import resume
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import Store
from tsunagi_spark.task_context import BatchContext, JobContext
from tsunagi_spark.tasks import decode_records

NONE = np.zeros(0, np.int64)
STEPS = 30
READ = 20
"""Records of each slot that the job has read."""


class Place:
    """A job that has read `READ` records of each of two slots, and sent as many to each partition of `results`."""

    def __init__(self, directory: Path) -> None:
        table = write_table(directory / "sensors.csv", sensors=8, groups=2)
        self.settings = Settings(
            sensors=directory / "sensors.csv",
            slots=SlotsSettings(count=2),
            spark=SparkSettings(checkpoint=directory / "checkpoint"),
        )
        world = World(self.settings, table)
        self.layout = layout_of(world)
        self.written = {slot: [world.record(slot, FIRST_STEP + n) for n in range(STEPS)] for slot in range(2)}
        self.log = MemoryLog(ManualClock(), {PLAN: 1, RECOVERED: 2, ACKS: 1, RESULTS: 2})
        self.store = Store(self.settings.spark.checkpoint)
        self.store.prepare(2)
        self.checkpoint = Checkpoint(self.settings.spark.checkpoint, RECOVERED)
        self.taken: dict[int, list[int]] = {0: [], 1: []}
        for slot in range(2):
            self.append(slot, 0, READ)
            for number in range(READ):
                self.log.append(RESULTS, slot, b"", str(number).encode())
        ids = {topic: self.log.topic_id(topic) for topic in (RECOVERED, RESULTS)}
        self.standing = JobStanding(batch=4, topic_ids=ids, ends={0: READ, 1: READ})
        self.read()
        self.store.write_json("driver/after-4", self.standing.as_json())

    def append(self, slot: int, first: int, last: int) -> None:
        for record in self.written[slot][first:last]:
            self.log.append(RECOVERED, slot, *record)

    def read(self) -> None:
        """Read what the log has from the marks on, as a batch does."""
        for slot in range(2):
            at = self.standing.marks.get(slot, SlotMark()).read_to
            records = [record for record in self.log.records(RECOVERED, slot) if record.offset >= at]
            assert not records or records[0].offset == at, "Spark refuses a hole"
            arrived = [Arrived(slot, item.offset, item.key, item.value, item.appended_us) for item in records]
            for decoder in decode(arrived, self.standing.marks, self.layout, NONE, 2_000_000).values():
                self.taken[slot] += [int(step) - FIRST_STEP for step in decoder.blocks()[0].steps]
                self.standing.marks[slot] = decoder.mark

    def reconcile(self) -> list[str]:
        self.standing, faults = reconcile(self.log, self.store, self.checkpoint, self.standing, 2)
        return [str(fault) for fault in faults]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    return Place(tmp_path)


def regrown(place: Place, choice: random.Random) -> str:
    """Slot 1 loses its end, and its owner writes from there on, past the old end or not."""
    lost = choice.randrange(READ)
    place.log.lose_end(RECOVERED, 1, lost)
    place.append(1, lost, choice.randrange(lost, STEPS + 1))
    return "recovered/1"


def anew(place: Place, choice: random.Random) -> str:
    """The topic is made anew; owners write from somewhere on, perhaps as much as there was."""
    place.log.make_anew(RECOVERED)
    for slot in range(2):
        place.append(slot, choice.randrange(READ), STEPS)
    return "recovered/0"


def expired(place: Place, choice: random.Random) -> str:
    place.append(1, READ, STEPS)
    place.log.truncate(RECOVERED, 1, choice.randrange(READ + 1, STEPS))
    return "recovered/1"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("event", [regrown, anew, expired])
def test_another_log_is_found_and_read_from_its_first_record(
    place: Place, event: Callable[[Place, random.Random], str], seed: int
) -> None:
    place.log._clock.advance(5)  # type: ignore[attr-defined]
    named = event(place, random.Random(seed))
    faults = place.reconcile()
    assert any(fault.startswith(named) for fault in faults)
    assert place.standing.faults == faults, "it stays known"
    assert place.standing == JobStanding.of(place.store.read_json("driver/after-4"))
    positions = place.checkpoint.positions(4)
    for slot in range(2):
        changed = any(fault.startswith(f"recovered/{slot}") for fault in faults)
        first = place.log.reader().range(RECOVERED, slot)[0]
        assert positions[slot] == (first if changed else place.standing.marks[slot].read_to)
    place.read()
    for slot in range(2):
        there = {(record.key, record.value) for record in place.log.records(RECOVERED, slot)}
        kept = [number for number in range(STEPS) if place.written[slot][number] in there]
        assert place.taken[slot] == sorted({*range(READ), *kept}), (
            "each step once, in order, none that is there missing"
        )
    assert place.reconcile() == [], "said once"


def test_the_log_that_was_read_is_gone_on_with(place: Place) -> None:
    before = replace(place.standing)
    place.append(0, READ, STEPS)
    place.log.truncate(RECOVERED, 0, READ)
    assert place.reconcile() == []
    assert place.standing == before
    assert not (place.checkpoint.root / "offsets").exists()


@pytest.mark.parametrize("event", ["anew", "lost end"])
def test_results_that_lost_something_are_computed_again(place: Place, event: str) -> None:
    if event == "anew":
        place.log.make_anew(RESULTS)
    else:
        place.log.lose_end(RESULTS, 1, READ - 1)
    faults = place.reconcile()
    assert all(fault.startswith("results/") for fault in faults)
    assert faults
    assert place.standing == JobStanding(topic_ids=place.standing.topic_ids, faults=faults)
    assert place.checkpoint.batches("commits") == []
    assert place.store.find("driver/after-4") is None


def test_what_older_versions_kept_says_nothing_of_the_log(place: Place) -> None:
    fields = place.standing.as_json()
    for name in ("topic_ids", "ends", "faults"):
        del fields[name]
    fields["marks"] = {slot: list(mark)[:7] for slot, mark in fields["marks"].items()}
    place.standing = JobStanding.of(json.loads(json.dumps(fields)))
    place.log.make_anew(RECOVERED)
    for slot in range(2):
        place.append(slot, 0, READ)
    assert place.reconcile() == []


def test_a_batch_that_lost_results_does_not_count(place: Place) -> None:
    job = Job(place.settings, place.log, place.store, lambda: False, lambda: "q")
    reports: list[dict[str, Any]] = [{"sent_to": {"0": 2}}, {"sent_to": {}}]
    for number in range(2):
        place.log.append(RESULTS, 0, b"", str(number).encode())
    assert job._check(place.standing, reports) == {0: READ + 2, 1: READ}
    with pytest.raises(LogChangedError, match=r"results/1: the log lost its end: it ends at 20, .* written to 21"):
        job._check(place.standing, [*reports, {"sent_to": {"1": 1}}])
    job.close()


def test_records_of_another_log_are_found_before_anything_is_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task decodes what stands behind its positions in a log that has lost its end and grown past it."""
    monkeypatch.setattr("tsunagi_spark.tasks.KafkaLog", lambda _settings, **_: place.log)
    monkeypatch.setattr("tsunagi_spark.tasks._readers", {})
    place.store.write("layouts/1", place.layout.dump())
    marks = dict(place.standing.marks)
    place.append(0, READ, STEPS - 3)

    def task() -> int:
        records = [record for record in place.log.records(RECOVERED, 0) if record.offset >= READ]
        table = pa.table(
            {
                "partition": pa.array([0] * len(records), pa.int32()),
                "offset": pa.array([record.offset for record in records], pa.int64()),
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "timestamp": pa.array(np.array([record.appended_us for record in records], "datetime64[us]")),
            }
        )
        job = JobContext(str(place.store.root.parent), 2_000_000, 30, "blocks", 9, (), KafkaSettings(), 10**9, 0)
        context = BatchContext("identity", 5, 1, 1, marks, (), frozenset(), frozenset())
        return sum(batch.num_rows for batch in decode_records(job, context, iter(table.to_batches())))

    assert task() == 2
    place.log.lose_end(RECOVERED, 0, READ - 3)
    place.log._clock.advance(1)  # type: ignore[attr-defined]
    place.append(0, READ, STEPS)
    with pytest.raises(LogChangedError, match="recovered/0: the log lost its end and grew again"):
        task()


def test_a_tasks_finding_is_named() -> None:
    trace = "Traceback (most recent call last):\ntsunagi_spark.identity.LogChangedError: recovered/0: x\n"
    assert isinstance(named(PythonException(trace)), LogChangedError)


def test_a_failure_that_the_log_explains_is_gone_on_from(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi_spark.service.begin", lambda _store, _settings: place.standing)
    failure = RuntimeError("Spark: data loss")
    with pytest.raises(RuntimeError, match="data loss"):
        resume(place.store, place.settings, place.log, failure)
    place.log.lose_end(RECOVERED, 0, 3)
    assert resume(place.store, place.settings, place.log, failure).marks[0].read_to == 0


def test_acknowledgements_say_which_log_they_are_of(place: Place) -> None:
    acknowledger = Acknowledger(place.log)
    acknowledger.write(place.standing.marks, "recovered-1")
    acks = [Ack.FromString(record.value or b"").level0 for record in place.log.records(ACKS, 0)]
    assert {ack.topic_id for ack in acks} == {"recovered-1"}
    assert [ack.digest for ack in acks] == [place.standing.marks[slot].digest for slot in range(2)]
    assert all(ack.digest for ack in acks)
    acknowledger.close()


@pytest.mark.parametrize(
    ("first", "appended_us", "asked"),
    [
        (READ, 1_000_000, False),  # it follows at once on what was read last
        (READ, 1_000_000 + BREAK_US, True),
        (READ, 999_999, True),
        (READ + 1, 1_000_000, True),  # retention, or a loss
    ],
)
def test_the_log_is_asked_only_where_it_may_have_lost_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch, first: int, appended_us: int, *, asked: bool
) -> None:
    found: list[int] = []
    monkeypatch.setattr("tsunagi_spark.tasks.check_read", lambda _reader, marks: found.extend(marks))
    monkeypatch.setattr("tsunagi_spark.tasks._reader", lambda _kafka: None)
    place.store.write("layouts/1", place.layout.dump())
    key, value = place.written[0][READ]
    row = {"partition": [0], "offset": [first], "key": [key], "value": [value]}
    table = pa.table({**row, "timestamp": pa.array(np.array([appended_us], "datetime64[us]"))})
    job = JobContext(str(place.store.root.parent), 2_000_000, 30, "blocks", 9, (), KafkaSettings(), 10**9, 0)
    marks = {0: place.standing.marks[0]._replace(read_us=1_000_000)}
    context = BatchContext("identity", 5, 1, 1, marks, (), frozenset(), frozenset())
    list(decode_records(job, context, iter(table.to_batches())))
    assert found == ([0] if asked else [])
