"""Rates, backlogs and delays from heartbeats alone."""

from __future__ import annotations

import math

import pytest

from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.settings import ScalerSettings, SizeSettings
from tsunagi.scaler.capacity import BOUNDS, LEAST, SAFE, Capacities
from tsunagi.scaler.load import LOOK_S, WINDOW_S, Delays, Saturation, SlotLoad, SlotView, WorkerLatency
from tsunagi.scaler.thinning import MOST

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


def test_an_owner_that_stalled_is_seen_when_it_is_heard_again_whatever_its_clock_says() -> None:
    load = SlotLoad()
    an_hour = 3600 * 10**6

    def beat(turn: int, wait_ms: int, epoch: int, clock_us: int) -> None:
        said = SlotBeat(slot=0, role="primary", epoch=epoch, position=turn, wait_us=clock_us + 1000 * wait_ms)
        load.on_beat(said, turn / 10)

    for turn in range(20):
        beat(turn, 2 + turn % 3, epoch=1, clock_us=-an_hour)
    assert load.view(1.9).wait_s == pytest.approx(0.002)
    beat(26, 640, epoch=1, clock_us=-an_hour)
    view = load.view(2.7)
    assert view.delay_s == 0.0
    assert view.wait_s == pytest.approx(0.638)
    assert load.view(3.7).wait_s == 0.0
    for turn in range(40, 45):  # another owner's clock is not compared with it
        beat(turn, 5, epoch=2, clock_us=an_hour)
    assert load.view(4.4).wait_s == 0.0


def test_the_longest_wait_is_that_since_the_view_before() -> None:
    load = SlotLoad()
    for turn, wait_ms in enumerate((1, 90, 1, 1, 1)):
        load.on_beat(SlotBeat(slot=0, role="primary", epoch=1, position=turn, wait_us=1000 * wait_ms), float(turn))
        if not turn:
            load.view(0.5)
    seldom = load.view(4.5)
    assert seldom.wait_s == pytest.approx(0.089)
    assert seldom.late_share(0.049) == pytest.approx(0.04 / 4)
    load.on_beat(SlotBeat(slot=0, role="primary", epoch=1, position=5, wait_us=1000), 5.0)
    assert load.view(5.5).wait_s == 0.0


def test_of_a_stall_that_is_over_those_are_late_that_came_in_its_beginning() -> None:
    assert SlotView(delay_s=3.0, wait_s=0.1).late_share(2.0) == 1.0
    assert SlotView(delay_s=0.1, wait_s=0.5).late_share(0.3) == pytest.approx(0.2)
    assert SlotView(delay_s=0.1, wait_s=0.2).late_share(0.3) == 0.0


@pytest.mark.parametrize("every_s", [0.1, 1.0])
def test_what_is_kept_of_a_slot_that_keeps_up_is_its_window(every_s: float) -> None:
    load = SlotLoad()
    for turn in range(5000):
        load.on_beat(part(turn, 0), turn * every_s)
        load.on_beat(part(turn, 1, "standby"), (turn + 0.5) * every_s)
    assert load.view(5000 * every_s).rate == pytest.approx(TUPLES / every_s, rel=0.05)
    assert len(load._ends) <= WINDOW_S / LOOK_S + 3
    assert len(load._ends) <= 2 * (WINDOW_S / every_s + 3)


def test_a_delay_of_hours_is_known_and_costs_little_memory() -> None:
    load, hours = SlotLoad(), 3
    for second in range(3600 * hours):
        load.on_beat(part(second, second), float(second))  # two records come in a second, and one is served
    view = load.view(3600.0 * hours - 1)
    assert view.delay_s == pytest.approx(1800.0 * hours, rel=0.02)
    assert view.rate == pytest.approx(2 * TUPLES, rel=0.05)
    assert len(load._ends) <= MOST
    for second in range(1000):  # it has caught up
        load.on_beat(part(10**6 + 2 * second, 0), 3600.0 * hours + second)
    view = load.view(3600.0 * hours + 999)
    assert view.delay_s == 0.0
    assert view.rate == pytest.approx(2 * TUPLES, rel=0.05)


def test_after_a_rest_the_rate_is_that_of_the_window() -> None:
    load = SlotLoad()
    for second in range(1000):
        load.on_beat(part(7, 0), float(second))
    assert load.view(999.0).rate == 0.0
    for second in range(1000, 1005):
        load.on_beat(part(7 + 10 * (second - 999), 0), float(second))
    assert load.view(1004.0).rate == pytest.approx(5 * TUPLES)
    assert len(load._ends) < 20


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


KINDS = {"small-1": "small", "small-2": "small", "big-1": "big", "idle-1": "idle"}
FULL = {"small": 500.0, "big": 500.0, "idle": 500.0}


def looked_at(delays: Delays, now: float, views: dict[int, SlotView], **owned: tuple[int, ...]) -> None:
    alive = {
        name: Heartbeat(node=name, slots=[part(0, 0, slot=slot) for slot in slots])
        for name, slots in ((name.replace("_", "-"), slots) for name, slots in owned.items())
    }
    delays.update(alive, views, now, KINDS.__getitem__, FULL.__getitem__)


def slot_view(now: float, rate: float, delay_s: float, *, arrived: float | None = None) -> SlotView:
    total = rate * now
    return SlotView(rate=rate, delay_s=delay_s, served=total, arrived=total if arrived is None else arrived)


def test_delays_by_type_leave_out_what_a_handover_leaves_to_catch_up_with() -> None:
    delays = Delays(slo_s=10.0)

    def update(now: float, owner_of_2: str) -> None:
        views = {
            0: slot_view(now, 100.0, 0.2),
            1: slot_view(now, 300.0, 0.4),
            2: slot_view(now, 100.0, 9.0 if owner_of_2 == "big-1" else 0.2),
        }
        to_big = owner_of_2 == "big-1"
        looked_at(
            delays,
            now,
            views,
            small_1=(0,) if to_big else (0, 2),
            small_2=(1,),
            big_1=(2,) if to_big else (),
            idle_1=(),
        )

    for now in range(8):
        update(float(now), "small-1")
    found = delays.take()
    assert set(found) == {"small"}
    assert found["small"].delay_s == pytest.approx((2 * 0.2 + 3 * 0.4) / 5)
    assert found["small"].late_share == 0.0
    assert found["small"].load == pytest.approx((200 * 0.4 + 300 * 0.6) / 500)
    assert delays.take() == {}
    for now in range(8, 11):  # slot 2 is handed over: neither who gave it nor who takes it is counted for a while
        update(float(now), "big-1")
    assert {kind: item.delay_s for kind, item in delays.take().items()} == {"small": pytest.approx(0.4)}
    for now in range(11, 14):
        update(float(now), "big-1")
    big = delays.take()["big"]
    assert big.delay_s == pytest.approx(9.0)
    assert math.isnan(big.late_share), "what a handover has left it is not the type's fault"


def test_a_type_is_judged_by_workers_that_were_not_given_too_much() -> None:
    delays = Delays(slo_s=2.0)
    for now in range(20):  # small-1 stalls for three of ten seconds, and is given half of what it can process
        at = float(now)
        looked_at(delays, at, {0: slot_view(at, 250.0, 2.5 if now % 10 > 6 else 0.0)}, small_1=(0,))
    small = delays.take()["small"]
    assert small.late_share == pytest.approx(6 / 17)
    assert small.load == pytest.approx(0.5)

    for now in range(20, 50):  # big-1 is given twice what it can process, and then works off what is left of that
        at = float(now)
        came = 100.0 * (now - 20) + 900.0 * min(max(0, now - 25), 5)
        looked_at(delays, at, {1: slot_view(at, 500.0, 5.0 if now > 26 else 0.0, arrived=came)}, big_1=(1,))
    assert delays.take()["big"].late_share == 0.0, "it was late for want of workers"


def test_a_type_that_stalls_is_asked_for_less_within_bounds_and_for_all_again_when_it_does_not() -> None:
    capacities = Capacities(ScalerSettings(sizes={"small": SizeSettings(rate=100.0), "big": SizeSettings(rate=200.0)}))
    for _ in range(3):
        capacities.on_latency("big", WorkerLatency(0.1, 0.0, 0.9))
        capacities.on_latency("big", WorkerLatency(9.0, math.nan, math.nan))
    assert capacities.within == {}
    for _ in range(50):
        capacities.on_latency("small", WorkerLatency(3.0, 0.05, 0.8))
    assert capacities.of("small") == pytest.approx(0.8 * SAFE * 100.0, rel=0.01)
    assert capacities.throughput("small") == 100.0
    idle, busy = Capacities(ScalerSettings()), Capacities(ScalerSettings())
    for one in (idle, busy):
        one.on_latency("small", WorkerLatency(3.0, 0.05, 0.0))
    for _ in range(10):  # on time with next to nothing to do says little
        idle.on_latency("small", WorkerLatency(0.1, 0.0, 0.1))
        busy.on_latency("small", WorkerLatency(0.1, 0.0, 0.9))
    assert 0.8 < idle.within["small"] < busy.within["small"]
    for _ in range(100):
        capacities.on_latency("small", WorkerLatency(0.1, 0.0, 0.2))
    assert capacities.of("small") == pytest.approx(100.0, rel=0.01)
    for _ in range(100):  # late however little it is given: no promise is chased without end
        capacities.on_latency("small", WorkerLatency(3.0, 0.9, 0.01))
    assert capacities.within["small"] == pytest.approx(LEAST)


def test_a_types_capacity_follows_what_saturated_workers_do_within_bounds() -> None:
    capacities = Capacities(
        ScalerSettings(sizes={"small": SizeSettings(rate=40.0), "big": SizeSettings(limit=90.0), "new": SizeSettings()})
    )
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
    assert Capacities(ScalerSettings()).of("local") == 1.0
