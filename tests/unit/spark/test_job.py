from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PythonException

from tests.spark.world import World, write_table
from tsunagi.runtime import metrics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.log import ACKS, PLAN, RECOVERED, LogError
from tsunagi.runtime.messages import VERSION, Ack, Plan
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings, SlotsSettings, SparkSettings
from tsunagi.runtime.testing import MemoryLog
from tsunagi_spark.acknowledge import Acknowledger
from tsunagi_spark.action import named
from tsunagi_spark.balance import Balancer
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.job import BatchDecision, Job
from tsunagi_spark.layout import LayoutError
from tsunagi_spark.standing import JobStanding
from tsunagi_spark.state import CoreState, StateError, Store

TRACE = """An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "spark/tsunagi_spark/state.py", line 3, in write_atomically
{}

    at org.apache.spark.Something(Something.scala:1)"""


class Place:
    def __init__(self, directory: Path) -> None:
        table = write_table(directory / "sensors.csv", sensors=8, groups=2)
        self.settings = Settings(
            sensors=directory / "sensors.csv",
            slots=SlotsSettings(count=2),
            spark=SparkSettings(checkpoint=directory / "checkpoint", wait_s=3),
        )
        self.world = World(self.settings, table)
        self.log = MemoryLog(ManualClock(), {PLAN: 1, RECOVERED: 2, ACKS: 1})
        self.store = Store(self.settings.spark.checkpoint)
        self.store.prepare(2)

    def job(self) -> Job:
        return Job(self.settings, self.log, self.store, lambda: False, lambda: "q")

    def place(self) -> None:
        self.log.append(PLAN, 0, b"placement", self.world.placement())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def decide(job: Job, batch: int, before: JobStanding, now_s: float) -> BatchDecision:
    decision = job._decide(batch, before, now_s)
    job._began_s = now_s
    return decision


def test_a_workers_error_is_named() -> None:
    full = named(
        PythonException(TRACE.format("tsunagi_spark.state.StateError: core-0/state-3: No space left on device"))
    )
    assert isinstance(full, StateError)
    assert str(full) == "core-0/state-3: No space left on device"
    away = named(PythonException(TRACE.format("tsunagi.runtime.log.LogError: results could not be delivered")))
    assert isinstance(away, LogError)
    assert isinstance(named(PythonException(TRACE.format("tsunagi_spark.layout.LayoutError: x"))), LayoutError)
    other = PythonException(TRACE.format("ZeroDivisionError: division by zero"))
    assert named(other) is other


def test_it_waits_for_a_placement(place: Place) -> None:
    job = place.job()
    assert not job.placed()
    place.place()
    assert job.placed()


def test_a_replayed_batch_decides_the_same(place: Place) -> None:
    place.place()
    job = place.job()
    before = JobStanding(batch=0, marks={0: SlotMark(step=9), 1: SlotMark(step=5)})
    decide(job, 1, before, 0.0)
    before = JobStanding(batch=1, marks=before.marks, silent_s={1: 2.5}, layout=1)
    first = decide(job, 2, before, 2.0)
    assert first.overdue == {1}
    again = decide(place.job(), 2, before, 0.0)
    assert again.overdue == {1}
    assert again.silent_s == first.silent_s
    assert again.layout.serial == 1


def test_a_slot_with_unread_records_is_not_left_behind(place: Place) -> None:
    place.place()
    place.log.append(RECOVERED, 1, b"", b"")
    job = place.job()
    before = JobStanding(batch=0, marks={0: SlotMark(step=9), 1: SlotMark(step=5)})
    decide(job, 1, before, 0.0)
    before = JobStanding(batch=1, marks=before.marks, silent_s={1: 2.5}, layout=1)
    decision = decide(job, 2, before, 2.0)
    assert decision.overdue == frozenset()
    assert decision.silent_s[1] == 0


def test_a_grown_table_is_taken_at_a_batch(place: Place) -> None:
    place.place()
    job = place.job()
    assert decide(job, 0, JobStanding(), 0.0).layout.serial == 1
    place.world.table = write_table(place.settings.sensors, sensors=10, groups=2)
    world = World(place.settings, place.world.table)
    world.slot_of[:8] = place.world.slot_of
    assert len(decide(job, 1, JobStanding(batch=0, layout=1), 1.0).layout) == 8
    place.log.append(PLAN, 0, b"placement", world.placement(serial=2))
    grown = decide(job, 2, JobStanding(batch=1, layout=1), 2.0).layout
    assert (grown.serial, len(grown)) == (2, 10)
    assert decide(place.job(), 3, JobStanding(batch=2, layout=2), 3.0).layout.serial == 2
    assert len(decide(place.job(), 1, JobStanding(batch=0, layout=1), 9.0).layout) == 8


def test_the_newest_table_of_plan_rules_over_the_file(place: Place) -> None:
    place.place()
    job = place.job()
    assert job.placed()
    table = place.world.table
    moved = tuple(replace(item, edge="other", before=item.edge) for item in table.sensors[1:])
    gone = replace(table.sensors[0], edge="", before=table.sensors[0].edge, group="")
    for serial, sensors in ((2, (replace(gone, group="machine-0"), *moved)), (1, table.sensors)):
        body = pack_table(SensorTable(sensors), by="a user")
        record = Plan(version=VERSION, serial=serial, table=body).SerializeToString()
        place.log.append(PLAN, 0, b"table", record)
    place.log.append(PLAN, 0, b"table", Plan(version=VERSION, serial=3, table={"csv": b"none"}).SerializeToString())
    place.settings.sensors.unlink()
    layout = decide(job, 0, JobStanding(), 0.0).layout
    assert layout.edges == ("", *["other"] * 7)
    assert layout.table.sensors[0].before == table.sensors[0].edge


def test_a_removed_sensor_needs_no_group(place: Place) -> None:
    place.place()
    spark = place.settings.spark.model_copy(update={"ungrouped": "refuse"})
    place.settings = place.settings.model_copy(update={"spark": spark})
    table = place.world.table
    gone = replace(table.sensors[0], edge="", before=table.sensors[0].edge, group="")
    body = pack_table(SensorTable((gone, *table.sensors[1:])), by="a user")
    place.log.append(PLAN, 0, b"table", Plan(version=VERSION, serial=1, table=body).SerializeToString())
    assert place.job().placed()
    assert metrics.SPARK_UNGROUPED._value.get() == 0


def test_reports_become_the_next_standing(place: Place) -> None:
    place.place()
    job = place.job()
    decision = decide(job, 0, JobStanding(), 0.0)
    slots = {"0": {"mark": SlotMark(7, 3, 0, 11, 2, 4), "counters": {"records": 4, "rows": 9}}}
    plain = {"slots": slots, "rows": 9, "blocks": 1, "taken": 9, "cpu_s": 0.1, "sent_us": 2, "appended_us": [1]}
    reports = [json.loads(json.dumps(plain | {"core": core, "delivered": {str(core): 11}})) for core in (1, 0)]
    after = job._after(0, JobStanding(), decision, reports)
    assert after.marks[0] == SlotMark(7, 3, 0, 11, 2, 4)
    assert after.delivered == [11, 11]
    assert after.totals["records"] == 4
    assert after.totals["sent_rows"] == 18
    assert JobStanding.of(json.loads(json.dumps(after.as_json()))) == after
    with pytest.raises(StateError, match=r"cores \[0\] reported, expected 2"):
        job._after(0, JobStanding(), decision, reports[1:])


def test_acknowledgements_say_how_far_recovered_was_read(place: Place) -> None:
    acknowledger = Acknowledger(place.log)
    acknowledger.write({1: SlotMark(7, 3, 1, 11, 2, 4)})
    (record,) = place.log.records(ACKS, 0)
    assert record.key == b"1/level0/spark"
    ack = Ack.FromString(record.value or b"").level0
    assert (ack.slot, ack.node, ack.epoch, ack.generation) == (1, "spark", 2, 7)
    assert (ack.offset, ack.last_offset, ack.last_index) == (4, 3, 1)
    acknowledger.close()


def test_too_many_rows_that_wait_leave_the_lagging_slot_behind(place: Place) -> None:
    place.place()
    place.settings = place.settings.model_copy(
        update={"spark": place.settings.spark.model_copy(update={"max_carried": 100})}
    )
    marks = {0: SlotMark(step=9), 1: SlotMark(step=5)}
    decide(place.job(), 1, JobStanding(batch=0, marks=marks, carried=100), 0.0)
    decision = decide(place.job(), 2, JobStanding(batch=1, marks=marks, layout=1, carried=101), 0.0)
    assert decision.dropped == {1}
    assert not decision.overdue
    again = decide(place.job(), 2, JobStanding(batch=1, marks=marks, layout=1), 0.0)
    assert again.dropped == {1}, "a batch that is run again decides the same"


def test_sensors_without_a_group_are_counted_or_refused(place: Place) -> None:
    place.place()
    table = place.settings.sensors.read_text().replace("machine-1", "")
    place.settings.sensors.write_text(table)
    job = place.job()
    assert job.placed()
    assert metrics.SPARK_UNGROUPED._value.get() == 4
    assert decide(job, 0, JobStanding(), 0.0).layout.groups == ("machine-0", "ungrouped")
    spark = place.settings.spark.model_copy(update={"ungrouped": "refuse"})
    place.settings = place.settings.model_copy(update={"spark": spark})
    with pytest.raises(
        LayoutError, match=r"sensors.csv: 4 sensors have no group \(s1, s3, s5, s7\); expected one of each"
    ):
        place.job().placed()


def test_a_table_is_changed_by_what_the_cores_report(place: Place) -> None:
    place.place()
    job = place.job()
    job._balancer = Balancer("basic", every_s=1)
    first = decide(job, 0, JobStanding(), 0.0).layout
    for core in range(2):
        state = CoreState(np.zeros(2, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64), RecoveredRows.empty())
        state.rate = np.where(first.sensor_core == core, 1.0 + 8.0 * (np.arange(8) == 0), 0.0)
        place.store.write(f"core-{core}/state-0", state.dump())
    assert job._rates(0).tolist() == [9.0, *[1.0] * 7]
    job._settings = place.settings.model_copy(
        update={"spark": place.settings.spark.model_copy(update={"order": "optimised"})}
    )
    job._balancer = Balancer("optimised", every_s=1)
    changed = decide(job, 1, JobStanding(batch=0, layout=1), 0.0).layout
    assert (changed.serial, changed.order) == (2, "optimised")
    assert np.array_equal(changed.home, first.home)
    assert decide(place.job(), 1, JobStanding(batch=0, layout=1), 9.0).layout.serial == 2, "as decided before"
