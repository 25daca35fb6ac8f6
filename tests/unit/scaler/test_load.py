"""Rates, backlogs and delays from heartbeats alone."""

from __future__ import annotations

import pytest

from services.runtime.messages import Heartbeat, SlotBeat
from services.runtime.settings import Scaler, Size
from services.scaler.capacity import BOUNDS, Capacities
from services.scaler.load import KEEP_S, Delays, Saturation, SlotLoad, SlotView

TUPLES = 10.0


def part(position: int, lag: int, role: str = "primary", tuples: float = TUPLES, slot: int = 0) -> SlotBeat:
    return SlotBeat(slot=slot, role=role, position=position, lag=lag, record_tuples=tuples)


def fed(*, rate: float, served: float, seconds: float, begin: int = 1000) -> tuple[SlotLoad, float]:
    """Records arrive and are served at these rates a second."""
    load, now = SlotLoad(), 50.0
    for turn in range(round(seconds * 10) + 1):
        end, position = begin + int(rate * turn / 10), begin + int(min(served, rate) * turn / 10)
        load.on_beat(part(position, end - position), now + turn / 10)
    return load, now + seconds


def test_what_stood_in_the_log_before_has_not_arrived_just_now() -> None:
    load = SlotLoad()
    assert load.view(0.0).rate == 0.0
    load.on_beat(part(500, 0), 1.0)
    view = load.view(2.0)
    assert (view.rate, view.backlog, view.delay_s, view.arrived) == (0.0, 0.0, 0.0, 0.0)


def test_a_slot_that_keeps_up_has_a_rate_and_no_backlog() -> None:
    load, now = fed(rate=20.0, served=20.0, seconds=15.0)
    view = load.view(now)
    assert view.rate == pytest.approx(20.0 * TUPLES, rel=0.05)
    assert view.backlog == 0.0
    assert view.delay_s == 0.0
    assert view.served == pytest.approx(15 * 20.0 * TUPLES, rel=0.05)


def test_a_slot_that_falls_behind_is_as_late_as_its_oldest_record() -> None:
    load, now = fed(rate=20.0, served=10.0, seconds=20.0)
    view = load.view(now)
    assert view.backlog == pytest.approx(200 * TUPLES, rel=0.05)
    assert view.delay_s == pytest.approx(10.0, abs=0.3)  # it is at what came half-way


def test_a_standby_that_knows_the_end_better_is_believed_and_does_not_own() -> None:
    load = SlotLoad()
    load.on_beat(part(100, 0), 1.0)
    load.on_beat(part(90, 60, "standby"), 1.1)
    view = load.view(1.2)
    assert view.backlog == 50 * TUPLES
    load.on_beat(part(0, 0, "rebuilding"), 1.3)
    assert load.view(1.4).backlog == 50 * TUPLES


def test_the_history_does_not_grow_for_ever() -> None:
    load = SlotLoad()
    for turn in range(3 * round(KEEP_S)):
        load.on_beat(part(turn, 0), float(turn))
    assert len(load._ends) <= KEEP_S + 2


def saturated(rate: float, served: float, seconds: float) -> dict[str, float]:
    load, saturation = SlotLoad(), Saturation()
    found: dict[str, float] = {}
    for turn in range(round(seconds * 10)):
        now = turn / 10
        end, position = int(rate * now), int(min(served, rate) * now)
        beat = part(position, end - position)
        load.on_beat(beat, now)
        if turn % 10 == 0:
            saturation.update({"w": Heartbeat(node="w", slots=[beat])}, {0: load.view(now)}, now)
            found |= saturation.take()
    return found


def test_only_a_worker_that_is_never_idle_tells_its_capacity() -> None:
    assert saturated(rate=20.0, served=20.0, seconds=30.0) == {}
    assert saturated(rate=20.0, served=8.0, seconds=30.0)["w"] == pytest.approx(8.0 * TUPLES, rel=0.05)


def test_a_worker_with_other_slots_begins_anew() -> None:
    saturation = Saturation()
    load, other = SlotLoad(), SlotLoad()
    for turn in range(8):
        beats = [part(turn, 100 + turn)] + ([part(turn, 100 + turn, slot=1)] if turn == 6 else [])
        load.on_beat(beats[0], float(turn))
        other.on_beat(beats[-1], float(turn))
        views = {0: load.view(float(turn)), 1: other.view(float(turn))}
        saturation.update({"w": Heartbeat(node="w", slots=beats)}, views, float(turn))
    assert saturation.take() == {}


def test_delays_by_type_leave_out_what_a_handover_leaves_to_catch_up_with() -> None:
    delays = Delays()
    kinds = {"small-1": "small", "small-2": "small", "big-1": "big", "idle-1": "idle"}

    def update(now: float, owner_of_2: str) -> None:
        owned = {"small-1": (0,), "small-2": (1,), "big-1": (), "idle-1": ()}
        owned[owner_of_2] += (2,)
        alive = {
            name: Heartbeat(node=name, slots=[part(0, 0, slot=slot) for slot in slots]) for name, slots in owned.items()
        }
        views = {
            0: SlotView(rate=100.0, delay_s=0.2, served=100.0 * now),
            1: SlotView(rate=300.0, delay_s=0.4, served=300.0 * now),
            2: SlotView(rate=100.0, delay_s=9.0 if owner_of_2 == "big-1" else 0.2, served=100.0 * now),
        }
        delays.update(alive, views, now)

    for now in range(8):
        update(float(now), "small-1")
    found = delays.by_kind(kinds.__getitem__)
    assert found == {"small": pytest.approx((2 * 0.2 + 3 * 0.4) / 5)}
    assert delays.by_kind(kinds.__getitem__) == {}
    for now in range(8, 11):  # slot 2 is handed over: neither who gave it nor who takes it is counted for a while
        update(float(now), "big-1")
    assert delays.by_kind(kinds.__getitem__) == {"small": pytest.approx(0.4)}
    for now in range(11, 14):
        update(float(now), "big-1")
    assert delays.by_kind(kinds.__getitem__)["big"] == pytest.approx(9.0)


def test_a_types_capacity_follows_what_saturated_workers_do_within_bounds() -> None:
    capacities = Capacities(Scaler(sizes={"small": Size(rate=40.0), "big": Size(limit=90.0), "new": Size()}))
    assert (capacities.of("small"), capacities.of("big"), capacities.of("new")) == (40.0, 90.0, 65.0)
    for _ in range(50):
        capacities.correct("small", 34.0)
    assert capacities.of("small") == pytest.approx(34.0, rel=0.01)
    for _ in range(50):
        capacities.correct("small", 1.0)
        capacities.correct("small", 0.0)
    assert capacities.of("small") == pytest.approx(40.0 * BOUNDS[0])
    capacities.correct("new", 20.0)
    assert capacities.of("new") == 20.0
    assert Capacities(Scaler()).of("local") == 1.0
