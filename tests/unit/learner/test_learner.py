"""The learner on a log in memory: when it fits, what it refuses, whom it waits for, and what it leaves to users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import structlog
from click.testing import CliRunner

from tsunagi.cli import cli
from tsunagi.learner import learner as module
from tsunagi.learner.learner import BEHIND_STEPS, NODE, Learner
from tsunagi.learner.schedule import Fitted, is_due
from tsunagi.recovery.fit import fit_steps
from tsunagi.recovery.step_history import StepHistory
from tsunagi.recovery.store import load_from_store
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import Floats, pack_floats, pack_sensors
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.log import HEARTBEATS, PLAN, TUPLES, Position
from tsunagi.runtime.memory_clients import MemoryReader
from tsunagi.runtime.messages import VERSION, Heartbeat, LogRecord, ModelTarget, Plan, TupleBatch
from tsunagi.runtime.plan import Words
from tsunagi.runtime.sensors import Sensor, SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog

SENSORS, EDGES, LEAST, FIRST = 8, 2, 40, 1_700_000_000


class Fleet:
    """Eight sensors on two edges that move together, whose batches go to a log in memory; and a learner there."""

    def __init__(self, path: Path, *, alike: float = 1.0) -> None:
        rows = "".join(f"s{n},e{n % EDGES}\n" for n in range(SENSORS))
        (path / "sensors.csv").write_text(f"sensor,edge\n{rows}")
        self.settings = Settings.model_validate(
            {
                "recovery": {"learn": True, "learn_steps": LEAST, "store": path / "models"},
                "sensors": path / "sensors.csv",
                "steps": {"window": 1, "slide": 1},
            }
        )
        self.table = read_sensors(self.settings.sensors)
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, {PLAN: 1, TUPLES: 2, HEARTBEATS: 1})
        self.rng = np.random.default_rng(3)
        self.alike = alike
        self.values: list[Floats] = []
        self.learner = self.start()

    def start(self) -> Learner:
        return Learner(self.settings, self.log, ManualClock(), structlog.get_logger(), threads=False)

    def send(self, steps: int, edges: tuple[int, ...] = (0, 1), sensors: int = SENSORS) -> None:
        """Let edges send some steps; only the first sensors have readings."""
        for _ in range(steps):
            step = FIRST + len(self.values)
            row = self.alike * self.rng.normal() + 0.2 * self.rng.normal(size=SENSORS)
            sent = np.full(SENSORS, np.nan)
            for edge in edges:
                mine = [n for n in range(sensors) if n % EDGES == edge]
                sent[mine] = row[mine]
                batch = TupleBatch(
                    edge=f"e{edge}", incarnation=1, step=step, event_time_us=step * 1_000_000,
                    sensor=pack_sensors(mine), value=pack_floats(row[mine].tolist()),
                )  # fmt: skip
                self.log.append(TUPLES, edge, b"", LogRecord(version=VERSION, batch=batch).SerializeToString())
            self.values.append(sent)
            self.clock.advance(1.0)

    def turn(self, learner: Learner | None = None, turns: int = 4) -> list[ModelTarget]:
        """Let the learner take some turns; return the models that `plan` has had in force, one after the other."""
        for _ in range(turns):
            (learner or self.learner).step()
        words, found = Words(), []
        for record in self.log.records(PLAN):
            plan = Plan.FromString(record.value or b"")
            if words.take(plan, record.offset) and plan.WhichOneof("body") == "model":
                found.append(plan.model)
        return found

    def beat(self) -> Heartbeat:
        self.learner.heartbeats.send()
        return Heartbeat.FromString(self.log.records(HEARTBEATS)[-1].value or b"")


def test_the_first_model_comes_with_enough_steps_and_is_that_of_the_same_history_offline(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.log.append(TUPLES, 0, b"", b"nothing that anybody could read")
    fleet.send(LEAST - 1)
    assert fleet.turn() == []
    beat = fleet.beat().learner
    assert (beat.steps, beat.needed) == (LEAST - 1, LEAST)
    fleet.send(1)
    (target,) = fleet.turn()
    assert (target.by, target.sensors, target.steps) == (NODE, SENSORS, LEAST)
    assert target.error < target.naive
    names = tuple(sensor.name for sensor in fleet.table.sensors)
    history = StepHistory("offline", names, FIRST, np.array(fleet.values))
    offline, report = fit_steps(history, fleet.table, fleet.settings.steps, "auto")
    learned = load_from_store(fleet.settings.recovery.store, target.sha256)
    assert learned.identity == offline.identity
    assert target.error == pytest.approx(report.nrmse)


def test_the_next_one_comes_when_the_history_has_doubled_also_for_a_learner_that_starts_anew(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST)
    assert len(fleet.turn()) == 1
    fleet.send(LEAST - 1)
    again = fleet.start()
    assert len(fleet.turn(again)) == 1
    assert fleet.beat().learner.needed == 2 * LEAST
    fleet.send(1)
    found = fleet.turn(again)
    assert [target.steps for target in found] == [LEAST, 2 * LEAST]
    assert found[0].sha256 != found[1].sha256


def test_gaps_are_left_out_and_a_new_sensor_joins_with_enough_readings(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(2 * LEAST, sensors=SENSORS - 1)
    fleet.send(2 * LEAST, sensors=SENSORS - 1)
    (target,) = fleet.turn()
    assert target.sensors == SENSORS - 1
    fleet.send(LEAST - 1)
    assert len(fleet.turn()) == 1
    fleet.send(1)
    assert [target.sensors for target in fleet.turn()] == [SENSORS - 1, SENSORS]


def test_a_model_waits_until_no_edge_is_out(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST - BEHIND_STEPS - 1)
    fleet.send(BEHIND_STEPS + 1, edges=(0,))
    assert fleet.turn() == []
    assert fleet.beat().learner.out == ["e1"]
    fleet.send(1)
    assert len(fleet.turn()) == 1
    assert fleet.beat().learner.out == []


def test_an_edge_that_is_gone_for_good_is_not_waited_for(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST)
    assert len(fleet.turn()) == 1
    fleet.send(LEAST + 1, edges=(0,))
    assert len(fleet.turn()) == 2


def test_a_model_that_is_worse_than_the_last_value_is_not_put_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORSE", 0.01)
    fleet = Fleet(tmp_path)
    fleet.send(LEAST)
    assert fleet.turn() == []
    assert "on hidden readings" in fleet.beat().learner.fault
    fleet.send(LEAST // 2)
    monkeypatch.setattr(module, "WORSE", 1.05)
    assert len(fleet.turn()) == 1
    assert fleet.beat().learner.fault == ""


def test_sensors_that_have_nothing_in_common_get_a_model_whose_bounds_hold(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, alike=0.0)
    fleet.send(3 * LEAST)
    (target,) = fleet.turn()
    assert target.error <= 1.05 * target.naive


def test_what_a_user_puts_in_force_stays(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    mine = ModelTarget(sha256="ab" * 32, by="user", sensors=8)
    fleet.log.append(PLAN, 0, b"model", Plan(version=VERSION, model=mine, serial=1).SerializeToString())
    fleet.send(3 * LEAST)
    assert fleet.turn() == [mine]
    back = ModelTarget(as_configured=True, by="user")
    fleet.log.append(PLAN, 0, b"model", Plan(version=VERSION, model=back, serial=2).SerializeToString())
    found = fleet.turn()
    assert [target.by for target in found] == ["user", "user", NODE]


def test_what_a_slot_would_refuse_is_not_learned_from(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST // 2)
    far = FIRST + 10_000_000
    for edge, step, sensor in (("e0", far, 0), ("e0", FIRST, 1), ("nobody", FIRST, 0), ("e0", FIRST, 99)):
        batch = TupleBatch(
            edge=edge, incarnation=1, step=step, event_time_us=step * 1_000_000, sensor=pack_sensors([sensor]),
            value=pack_floats([1e6]),
        )  # fmt: skip
        fleet.log.append(TUPLES, 0, b"", LogRecord(version=VERSION, batch=batch).SerializeToString())
    fleet.send(LEAST // 2)
    (target,) = fleet.turn()
    assert target.steps == LEAST
    learned = load_from_store(fleet.settings.recovery.store, target.sha256)
    assert abs(learned.mean).max() < 10


def test_a_user_is_asked_first_also_while_a_model_waits(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST - BEHIND_STEPS - 1)
    fleet.send(BEHIND_STEPS + 1, edges=(0,))
    assert fleet.turn() == []
    mine = ModelTarget(sha256="ab" * 32, by="user", sensors=8)
    fleet.log.append(PLAN, 0, b"model", Plan(version=VERSION, model=mine, serial=1).SerializeToString())
    fleet.send(LEAST)
    assert fleet.turn() == [mine]


def test_what_retention_takes_is_passed_over(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST)
    fleet.log.truncate(TUPLES, 0, LEAST // 2)
    fleet.send(LEAST // 2)
    (target,) = fleet.turn(turns=8)
    assert target.steps == LEAST + LEAST // 2


def test_what_there_is_no_room_for_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 50 * 8 * SENSORS)
    monkeypatch.setattr(module, "READ_RECORDS", 20)
    fleet = Fleet(tmp_path)
    fleet.send(300)
    asked: list[Position] = []
    assign = MemoryReader.assign

    def seen(self: MemoryReader, positions: Iterable[Position]) -> None:
        asked[:] = positions
        assign(self, asked)

    monkeypatch.setattr(MemoryReader, "assign", seen)
    late = fleet.start()
    assert min(place.offset for place in asked if place.topic == TUPLES) > 150
    (target,) = fleet.turn(late, turns=60)
    assert LEAST <= target.steps <= 2 * 50


def test_it_goes_by_the_table_in_force_while_it_runs(tmp_path: Path) -> None:
    """A sensor is renamed, one is removed, and one moves: the model has first names, and who is there."""
    fleet = Fleet(tmp_path)
    fleet.send(LEAST // 2)
    fleet.turn()
    changed = list(fleet.table.sensors)
    changed[0] = replace(changed[0], name="zero", was="s0")
    changed[1] = replace(changed[1], edge="", before="e1")
    changed[2] = replace(changed[2], edge="e1", before="e0")
    new = Sensor(SENSORS, "new", "e2")
    body = pack_table(SensorTable((*changed, new)), by="a user", from_us=1)
    fleet.log.append(PLAN, 0, b"table", Plan(version=VERSION, serial=1, table=body).SerializeToString())
    fleet.settings.sensors.unlink()
    fleet.send(LEAST - LEAST // 2)
    (target,) = fleet.turn()
    learned = load_from_store(fleet.settings.recovery.store, target.sha256)
    assert learned.names == ("s0", *(f"s{n}" for n in range(2, SENSORS)))
    assert target.steps == LEAST
    for step in range(FIRST + LEAST, FIRST + 2 * LEAST + 1):  # an edge that only the newer table knows
        batch = TupleBatch(
            edge="e2", incarnation=1, step=step, event_time_us=step * 1_000_000, sensor=pack_sensors([SENSORS]),
            value=pack_floats([fleet.rng.normal()]),
        )  # fmt: skip
        fleet.send(1)
        fleet.log.append(TUPLES, 0, b"", LogRecord(version=VERSION, batch=batch).SerializeToString())
    models = fleet.turn(fleet.start())
    learned = load_from_store(fleet.settings.recovery.store, models[-1].sha256)
    assert learned.names == ("s0", *(f"s{n}" for n in range(2, SENSORS)), "new")


def test_an_edge_that_has_no_sensors_any_more_is_not_waited_for(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST - BEHIND_STEPS - 1)
    fleet.send(BEHIND_STEPS + 1, edges=(0,))
    assert fleet.turn() == []
    assert fleet.beat().learner.out == ["e1"]
    moved = [replace(sensor, edge="e0", before=sensor.edge) for sensor in fleet.table.sensors]
    body = pack_table(SensorTable(tuple(moved)), by="a user", from_us=1)
    fleet.log.append(PLAN, 0, b"table", Plan(version=VERSION, serial=1, table=body).SerializeToString())
    assert len(fleet.turn()) == 1


@pytest.mark.parametrize(
    ("last", "steps", "newest", "joining", "due"),
    [
        (None, 39, 39, False, False),
        (None, 40, 40, False, True),
        (Fitted(40, 100, frozenset()), 400, 139, False, False),
        (Fitted(40, 100, frozenset()), 400, 140, False, True),
        (Fitted(40, 100, frozenset(), good=False), 400, 119, False, False),
        (Fitted(40, 100, frozenset(), good=False), 400, 120, False, True),
        (Fitted(40, 100, frozenset()), 400, 101, True, True),
        (Fitted(40, 100, frozenset()), 400, 100, True, False),
    ],
)
def test_when_a_fit_is_due(last: Fitted | None, steps: int, newest: int, joining: bool, due: bool) -> None:
    assert is_due(last, steps, newest, 40, joining=joining) == due


def test_a_model_of_other_sensors_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path)
    fleet.send(LEAST)
    (target,) = fleet.turn()
    load_from_store(fleet.settings.recovery.store, target.sha256).save(tmp_path / "model.bin")
    (tmp_path / "other.csv").write_text("sensor,edge\nx,e\n")
    monkeypatch.setenv("TSUNAGI_SENSORS", str(tmp_path / "other.csv"))
    monkeypatch.setenv("TSUNAGI_RECOVERY__STORE", str(tmp_path / "store"))
    monkeypatch.setattr("tsunagi.local.recovery.tool_log", lambda *_: fleet.log)
    found = CliRunner().invoke(cli, ["recovery", "use", str(tmp_path / "model.bin")])
    assert "found none of the sensors" in str(found.exception)
    assert CliRunner().invoke(cli, ["recovery", "use"]).exit_code == 2
