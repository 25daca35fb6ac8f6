"""The scaler's own loop on the log in memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import structlog

from tsunagi.runtime import log as topics
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import sensors
from tsunagi.runtime.fleet_change import fleet_change
from tsunagi.runtime.fleet_table import pack_table, unpack_table
from tsunagi.runtime.log import HEARTBEATS, PLAN
from tsunagi.runtime.messages import VERSION, Heartbeat, Plan, SlotBeat, SlotMove, Workers
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import ScalerSettings, Settings, SlotsSettings
from tsunagi.runtime.testing import MemoryLog
from tsunagi.scaler.scaler import Scaler

_silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ((), {})])


@pytest.mark.parametrize("jump_s", [-3600, -2, 2, 3600])
def test_a_clock_that_jumps_neither_holds_decisions_up_nor_hurries_them(
    monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    clock = ManualClock()
    start_s = clock.now_us() / 1e6
    log = MemoryLog(clock, dict.fromkeys(topics.TOPICS, 1))
    settings = Settings(scaler=ScalerSettings(launcher="none"))
    scaler = Scaler(settings, SensorTable((Sensor(0, "a", "edge"),)), log, clock, _silent)
    asked: list[float] = []

    def ask(alive: Mapping[str, Heartbeat], now_s: float) -> Workers | None:
        del alive
        asked.append(now_s - start_s - clock.monotonic())
        return None

    monkeypatch.setattr(scaler.elastic, "ask", ask)
    for turn in range(100):
        clock.advance(0.1)
        clock.skew_us = jump_s * 1_000_000 if turn > 50 else 0
        scaler.heartbeats.send()
        scaler.step()
    assert len(asked) > 80
    assert max(map(abs, asked)) < 1e-3
    assert log.records(HEARTBEATS)


def test_new_sensors_are_placed_and_the_table_in_force_outlives_the_file() -> None:
    clock = ManualClock()
    log = MemoryLog(clock, dict.fromkeys(topics.TOPICS, 1))
    settings = Settings(scaler=ScalerSettings(launcher="none"), slots=SlotsSettings(count=2))
    old = SensorTable(tuple(Sensor(number, f"s{number}", "ab"[number % 2]) for number in range(4)))

    def turns(scaler: Scaler, count: int = 40) -> list[Plan]:
        for _ in range(count):
            clock.advance(0.1)
            scaler.heartbeats.send()
            scaler.step()
        return [Plan.FromString(record.value or b"") for record in log.records(PLAN)]

    scaler = Scaler(settings, old, log, clock, _silent)
    first = turns(scaler)
    assert [plan.WhichOneof("body") for plan in first] == ["table", "placement"]
    assert first[0].table.from_us == 0
    wanted = SensorTable(
        (Sensor(0, "new", "b"), Sensor(1, "s0", "b"), Sensor(2, "s3", "a"), Sensor(3, "x", "a", was="s1"))
    )
    table = fleet_change(unpack_table(first[0].table), wanted).table
    user = log.client("user").producer()
    change = Plan(version=VERSION, serial=2, table=pack_table(table, by="apply", from_us=1))
    user.send(PLAN, 0, b"table", change.SerializeToString())
    found = turns(scaler)
    assert [plan.WhichOneof("body") for plan in found[2:]] == ["table", "placement"]
    before, after = (sensors(plan.placement.slot).tolist() for plan in (found[1], found[3]))
    assert after[:4] == before
    assert len(after) == 5
    assert table.placed(5, found[3].placement.table_sha256)
    scaler.close()
    again = Scaler(settings, old, log, clock, _silent)  # its file is the old one
    assert len(turns(again)) == len(found)


class Obedient:
    """A scaler and three workers on the log in memory. The workers do at once what the plan says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, dict.fromkeys(topics.TOPICS, 1))
        self.settings = Settings(scaler=ScalerSettings(launcher="none", workers=3), slots=SlotsSettings(count=1))
        self.table = SensorTable((Sensor(0, "a", "edge"),))
        self.scaler = self.started()
        self._workers = self.log.client("workers").producer()
        self._sequence = 0
        self._epochs: dict[str, int] = {}

    def started(self) -> Scaler:
        return Scaler(self.settings, self.table, self.log, self.clock, _silent)

    @property
    def plans(self) -> list[Plan]:
        return [Plan.FromString(record.value or b"") for record in self.log.records(PLAN)]

    @property
    def pair(self) -> tuple[str, str]:
        """Who has the slot, by the newest assignment."""
        found = [plan.assignment for plan in self.plans if plan.WhichOneof("body") == "assignment"]
        return (found[-1].owner, found[-1].secondary) if found else ("", "")

    def run(self, seconds: float = 20.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            self._sequence += 1
            owner, secondary = self.pair
            if owner not in self._epochs:
                self._epochs[owner] = len(self._epochs)
            for name in ("a", "b", "c"):
                roles = {owner: "primary", secondary: "standby"}
                role = roles.get(name, "")
                parts = [SlotBeat(slot=0, role=role, epoch=self._epochs[owner], ready=True)] if role else []
                beat = Heartbeat(
                    version=VERSION, node=name, role="worker", incarnation=1, sequence=self._sequence, slots=parts
                )
                self._workers.send(HEARTBEATS, 0, name.encode(), beat.SerializeToString())
            self.scaler.heartbeats.send()
            self.scaler.step()

    def ask(self, to: str) -> None:
        asked = Plan(version=VERSION, serial=len(self.plans) + 1, move=SlotMove(slot=0, to=to, by="operator"))
        self._workers.send(PLAN, 0, b"move/0", asked.SerializeToString())


def test_a_slot_moves_to_whom_somebody_asks_for_and_its_owner_stands_by() -> None:
    fleet = Obedient()
    fleet.run()
    owner, secondary = fleet.pair
    other = ({"a", "b", "c"} - {owner, secondary}).pop()
    fleet.ask(other)
    fleet.run()
    assert fleet.pair == (other, owner)
    reasons = [plan.assignment.reason for plan in fleet.plans if plan.WhichOneof("body") == "assignment"]
    assert reasons[-3:-1] == ["prepare", "move"]


def test_a_wish_to_move_that_was_seen_to_is_not_carried_out_again_by_the_next_scaler() -> None:
    fleet = Obedient()
    fleet.run()
    first, second = fleet.pair
    fleet.ask(second)
    fleet.run()
    fleet.ask(first)
    fleet.run()
    assert fleet.pair[0] == first
    written = len(fleet.plans)
    fleet.scaler.close()
    fleet.scaler = fleet.started()
    fleet.run()
    assert len(fleet.plans) == written


def test_the_next_scaler_goes_on_with_a_move_that_was_asked_for_or_begun() -> None:
    for turns in (0.0, 0.2):  # before the scaler has read the wish, and when the plan says who prepares
        fleet = Obedient()
        fleet.run()
        owner, secondary = fleet.pair
        other = ({"a", "b", "c"} - {owner, secondary}).pop()
        fleet.ask(other)
        fleet.run(turns)
        fleet.scaler.close()
        fleet.scaler = fleet.started()
        fleet.run()
        assert fleet.pair[0] == other


def test_a_wish_to_move_to_nobody_is_dropped() -> None:
    fleet = Obedient()
    fleet.run()
    before = fleet.pair
    fleet.ask("nobody")
    fleet.run()
    assert fleet.pair == before
