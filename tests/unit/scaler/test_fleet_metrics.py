"""Nodes and slots as metrics, made anew once a second, and less often where slots are many."""

from __future__ import annotations

import json

import pytest
from prometheus_client import REGISTRY

from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import ACKS, HEARTBEATS, Record
from tsunagi.runtime.messages import Ack, Heartbeat, Level0Ack, Level1Ack
from tsunagi.runtime.settings import KafkaSettings, Settings, SlotsSettings, StepsSettings
from tsunagi.scaler.fleet_metrics import FleetMetrics
from tsunagi.scaler.pace import between_figures
from tsunagi.scaler.roster import FORGET_S


class FakeClock(Clock):
    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def now_us(self) -> int:
        return round(self.now * 1e6)

    def monotonic(self) -> float:
        return self.now - 900.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def outside(clock: FakeClock) -> FleetMetrics:
    settings = Settings(
        slots=SlotsSettings(count=1),
        steps=StepsSettings(interval_s=0.5, slide=4),
        kafka=KafkaSettings(retention_s=3600),
    )
    return FleetMetrics(settings, clock)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def record(topic: str, appended_s: float) -> Record:
    return Record(topic, 0, 0, round(appended_s * 1e6), b"", b"")


def beat(node: str, **more) -> Heartbeat:
    return Heartbeat(node=node, role="edge", incarnation=1, metrics_host="h", metrics_port=1, **more)


def level0(slot: int, offset: int) -> Ack:
    return Ack(level0=Level0Ack(slot=slot, node="a", epoch=1, generation=1, last_offset=offset))


def test_settings_that_thresholds_depend_on_are_exported(outside: FleetMetrics) -> None:
    assert sample("tsunagi_step_seconds") == 2.0
    assert sample("tsunagi_retention_seconds") == 3600.0


def test_targets_and_ages_follow_the_heartbeats(outside: FleetMetrics, clock: FakeClock) -> None:
    outside.on_heartbeat(beat("edge-1"), record(HEARTBEATS, clock.now), old=False)
    outside.on_heartbeat(beat("edge-2"), record(HEARTBEATS, clock.now - 30), old=True)  # it died before we came
    outside.export({}, clock.monotonic())
    assert [group["labels"]["node"] for group in json.loads(outside.targets)] == ["edge-1", "edge-2"]
    assert sample("tsunagi_heartbeat_age_seconds", node="edge-2", role="edge") == 30.0
    outside.on_heartbeat(beat("edge-1", leaving=True), record(HEARTBEATS, clock.now), old=False)
    clock.now += between_figures(1)
    outside.export({}, clock.monotonic())
    assert [group["labels"]["node"] for group in json.loads(outside.targets)] == ["edge-2"]
    assert sample("tsunagi_heartbeat_age_seconds", node="edge-1", role="edge") is None
    clock.now += FORGET_S
    outside.export({}, clock.monotonic())
    assert json.loads(outside.targets) == []
    assert sample("tsunagi_heartbeat_age_seconds", node="edge-2", role="edge") is None


def test_a_slot_goes_on_being_silent_although_nobody_says_so(outside: FleetMetrics, clock: FakeClock) -> None:
    outside.on_ack(level0(0, 7), record(ACKS, clock.now), old=False)
    outside.export({}, clock.monotonic())
    assert sample("tsunagi_slot_silence_seconds", slot="0") == 0.0
    for _ in range(5):
        clock.now += 1.0
        outside.export({}, clock.monotonic())
    assert sample("tsunagi_slot_silence_seconds", slot="0") == 5.0
    assert sample("tsunagi_spark_lag_seconds", slot="0") == 5.0
    assert sample("tsunagi_slot_resume_age_seconds", slot="0") == 5.0
    assert sample("tsunagi_slot_protected", slot="0") == 0.0


def test_what_stood_in_the_log_before_we_came_is_as_old_as_it_is(outside: FleetMetrics, clock: FakeClock) -> None:
    outside.on_ack(level0(0, 7), record(ACKS, clock.now - 40), old=True)
    outside.export({}, clock.monotonic())
    assert sample("tsunagi_slot_silence_seconds", slot="0") == 40.0


def test_acknowledgements_of_slots_that_are_not_ours_are_passed_over(outside: FleetMetrics, clock: FakeClock) -> None:
    outside.on_ack(level0(5, 7), record(ACKS, clock.now), old=False)
    outside.on_ack(Ack(level1=Level1Ack(slot=9)), record(ACKS, clock.now), old=False)
    outside.on_ack(Ack(), record(ACKS, clock.now), old=False)
    outside.export({}, clock.monotonic())
    assert sample("tsunagi_slot_silence_seconds", slot="5") is None


def test_refused_heartbeats_are_counted(outside: FleetMetrics, clock: FakeClock) -> None:
    before = sample("tsunagi_heartbeats_refused_total", reason="name") or 0.0
    outside.on_heartbeat(beat("a/b"), record(HEARTBEATS, clock.now), old=False)
    outside.export({}, clock.monotonic())
    outside.export({}, clock.monotonic() + 2 * between_figures(1))
    assert sample("tsunagi_heartbeats_refused_total", reason="name") == before + 1


@pytest.mark.parametrize(("slots", "updates"), [(20, 8), (5_000, 8), (20_000, 2)])
def test_metrics_of_many_slots_are_made_anew_less_often(slots: int, updates: int, clock: FakeClock) -> None:
    outside = FleetMetrics(Settings(slots=SlotsSettings(count=slots)), clock)
    made = 0
    for _ in range(80):
        before = outside.targets
        outside.on_heartbeat(beat(f"edge-{clock.now}"), record(HEARTBEATS, clock.now), old=False)
        outside.export({}, clock.monotonic())
        made += outside.targets is not before
        clock.now += 0.1
    assert made == updates
