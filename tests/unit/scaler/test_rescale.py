"""Workers come and go in order: start, wait until ready, move, stop. The world is the test's, and so is time."""

from __future__ import annotations

from collections.abc import Mapping

from tsunagi.runtime.settings import LOCAL
from tsunagi.scaler.rescale import GATHER_S, HUNG_S, LOST_S, QUIET_S, RETRY_S, Rescale, Todo, WorkerSlots

BOOT_S = 20.0
SETTLE_S = 8.0
TURN_S = 0.1


class World:
    """Workers that boot for `boot_s`, own what a test says, and stop when they are told to."""

    def __init__(self, least: int = 2, wanted: Mapping[str, int] | None = None) -> None:
        self.now = 100.0
        self.rescale = self.new_scaler(least)
        self.rescale.wanted = wanted
        self.running: dict[str, tuple[str, float]] = {}  # name -> (type, since)
        self.hosts: dict[str, int] = {}
        self.boot_s = 3.0
        self.refuses = False
        self.dies_at_once = False
        self.history: list[tuple[str, str]] = []
        self.known: set[str] = set()
        self.todo = Todo()

    def new_scaler(self, least: int) -> Rescale:
        return Rescale(least, lambda _kind: BOOT_S, 0.0, self.now)

    def alive(self) -> dict[str, WorkerSlots]:
        ready = [name for name, (_, since) in self.running.items() if self.now - since >= self.boot_s]
        return {name: WorkerSlots(self.hosts.get(name, 0), self.hosts.get(name, 0)) for name in ready}

    def turn(self) -> None:
        self.now += TURN_S
        alive = self.alive()
        self.known |= set(alive)
        todo = self.todo = self.rescale.step(
            alive, {name: kind for name, (kind, _) in self.running.items()}, self.known, self.now
        )
        for name, kind in todo.launch:
            self.history.append(("launch", name))
            if self.refuses:
                self.rescale.refused(name, self.now)
            elif not self.dies_at_once:
                self.running[name] = kind, self.now
        for name in todo.stop:
            self.history.append(("stop", name))
            self.running.pop(name, None)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TURN_S)):
            self.turn()

    def done(self, what: str) -> list[str]:
        return [name for event, name in self.history if event == what]


def started(workers: int = 2, **hosts: int) -> World:
    world = World(wanted={LOCAL: workers})
    world.run(6.0)
    world.hosts = dict(hosts)
    world.run(2.0)
    world.history.clear()
    return world


def test_what_is_missing_is_launched_once() -> None:
    world = World(least=2)
    world.run(6.0)
    assert world.history == [("launch", "worker-1"), ("launch", "worker-2")]
    assert world.todo.placed == {"worker-1", "worker-2"}


def test_others_have_their_time_to_start_workers_first() -> None:
    scaler = Rescale(2, lambda _kind: BOOT_S, SETTLE_S, 0.0)
    assert scaler.step({}, {}, (), SETTLE_S - 0.1).launch == []
    assert len(scaler.step({}, {}, (), SETTLE_S).launch) == 2


def test_a_worker_that_somebody_else_starts_is_counted_while_it_boots() -> None:
    scaler = Rescale(2, lambda _kind: BOOT_S, 0.0, 0.0)
    assert scaler.step({}, {"gw-1": LOCAL}, (), 1.0).launch == [("worker-1", LOCAL)]


def test_on_a_slow_machine_workers_get_more_time_until_one_is_ready() -> None:
    world = World(least=2)
    world.boot_s = 6.5 * BOOT_S  # which is more than three times what two that boot together get
    world.run(40 * BOOT_S)
    assert len(world.alive()) == 2
    before = list(world.history)
    assert len(world.done("stop")) <= 6
    world.run(40 * BOOT_S)
    assert world.history == before


def test_a_slow_worker_that_somebody_starts_again_is_replaced_by_one_that_gets_more_time() -> None:
    world = started(2)
    del world.running["worker-1"]
    world.boot_s = 1.6 * BOOT_S
    world.run(8 * BOOT_S)
    assert len(world.alive()) == 2


def test_once_boots_are_quick_again_a_hung_one_is_stopped_as_soon_as_before() -> None:
    world = World(least=1)
    world.boot_s = 3.0 * BOOT_S
    world.run(10 * BOOT_S)
    assert len(world.alive()) == 1
    world.boot_s = 0.1
    for _ in range(3):
        world.running.clear()
        world.run(4 * RETRY_S)
        assert len(world.alive()) == 1
    world.boot_s = 1000.0
    world.running.clear()
    world.history.clear()
    world.run(BOOT_S + 4 * RETRY_S)
    assert len(world.done("stop")) == 1


def test_nobody_is_stopped_unless_somebody_says_how_many() -> None:
    scaler = Rescale(2, lambda _kind: BOOT_S, 0.0, 0.0)
    alive = {name: WorkerSlots() for name in "abcde"}
    assert scaler.step(alive, dict.fromkeys("abcde", LOCAL), (), 1.0).stop == []
    assert scaler.retiring == set()


def test_a_dead_worker_is_replaced_under_a_fresh_name_and_counted() -> None:
    world = started(2)
    del world.running["worker-1"]
    world.run(LOST_S - 2 * TURN_S)
    assert world.done("launch") == [], "its slots are being taken over, and a start would take the core that this needs"
    world.run(4 * TURN_S)
    assert world.done("launch") == ["worker-3"]
    lost = Rescale(1, lambda _kind: BOOT_S, 0.0, 0.0)
    lost.step({"a": WorkerSlots()}, {"a": LOCAL}, (), 1.0)
    assert lost.step({}, {}, (), 2.0).lost == 1


def test_more_are_wanted_and_slots_move_when_all_are_ready() -> None:
    world = started(2)
    world.rescale.wanted = {LOCAL: 4}
    world.run(0.1)
    assert len(world.done("launch")) == 2
    world.running["worker-3"] = LOCAL, world.now - world.boot_s  # the first is ready earlier
    world.run(1.0)
    assert world.todo.usable == {"worker-1", "worker-2", "worker-3"}
    assert world.todo.placed == {"worker-1", "worker-2"}
    world.run(3.0)
    assert world.todo.placed == {f"worker-{number}" for number in range(1, 5)}


def test_one_that_boots_for_long_does_not_hold_the_others_up() -> None:
    world = started(2)
    world.rescale.wanted = {LOCAL: 4}
    world.run(0.1)
    world.running["worker-3"] = LOCAL, world.now - world.boot_s
    world.running["worker-4"] = LOCAL, world.now + 100
    world.run(GATHER_S + 1)
    assert "worker-3" in world.todo.placed


def test_fewer_are_wanted_and_none_stops_that_has_a_slot() -> None:
    world = started(4, **{"worker-1": 1, "worker-2": 1, "worker-3": 1, "worker-4": 1})
    world.rescale.wanted = {LOCAL: 2}
    world.run(5.0)
    assert world.done("stop") == []
    assert world.todo.usable == {"worker-1", "worker-2"}
    world.hosts = {"worker-1": 2, "worker-2": 2, "worker-3": 1}
    world.run(QUIET_S + 0.5)
    assert world.done("stop") == ["worker-4"]
    world.hosts = {"worker-1": 2, "worker-2": 2}
    world.run(QUIET_S + 0.5)
    assert world.done("stop") == ["worker-4", "worker-3"]
    assert world.done("launch") == []


def test_one_that_has_had_nothing_to_do_for_a_moment_only_is_not_stopped() -> None:
    world = started(2, **{"worker-1": 1, "worker-2": 1})
    world.rescale.wanted = {LOCAL: 1}
    world.run(1.0)
    for _ in range(5):
        world.hosts["worker-2"] = 0
        world.run(QUIET_S / 2)
        world.hosts["worker-2"] = 1
        world.run(0.2)
    assert world.done("stop") == []


def test_the_ones_to_follow_are_ready_before_one_is_drained() -> None:
    world = started(2, **{"worker-1": 1, "worker-2": 1})
    world.rescale.wanted = {LOCAL: 0, "big": 1}
    world.boot_s = 5.0
    world.run(4.0)
    assert world.done("launch") == ["big-1"]
    assert world.rescale.retiring == set()
    world.run(3.0)
    assert world.todo.usable == {"big-1"}
    world.hosts = {"big-1": 2}
    world.run(QUIET_S + 1.0)
    assert sorted(world.done("stop")) == ["worker-1", "worker-2"]
    assert set(world.running) == {"big-1"}


def test_while_a_launch_is_refused_nothing_is_drained() -> None:
    world = started(2, **{"worker-1": 1, "worker-2": 1})
    world.refuses = True
    world.rescale.wanted = {LOCAL: 0, "big": 1}
    world.run(20.0)
    assert world.rescale.retiring == set()
    assert 2 <= len(world.done("launch")) <= 7  # it is tried again, ever less often
    world.refuses = False
    world.run(60.0)
    assert "big" in {kind for kind, _ in world.running.values()}


def test_one_that_was_to_go_stays_rather_than_that_another_one_is_launched() -> None:
    world = started(3, **{"worker-1": 1, "worker-2": 1, "worker-3": 1})
    world.rescale.wanted = {LOCAL: 2}
    world.run(1.0)
    assert len(world.rescale.retiring) == 1
    world.rescale.wanted = {LOCAL: 3}
    world.run(5.0)
    assert world.history == []
    assert world.rescale.retiring == set()


def test_who_owns_least_goes_first_or_who_is_named() -> None:
    world = started(3, **{"worker-1": 1, "worker-2": 3, "worker-3": 2})
    world.rescale.wanted = {LOCAL: 2}
    world.run(0.1)
    assert world.rescale.retiring == {"worker-1"}
    world = started(3, **{"worker-1": 1, "worker-2": 3, "worker-3": 2})
    world.rescale.prefer = {"worker-2"}
    world.rescale.wanted = {LOCAL: 2}
    world.run(0.1)
    assert world.rescale.retiring == {"worker-2"}


def test_one_that_boots_goes_before_any_that_is_ready() -> None:
    world = started(2, **{"worker-1": 1, "worker-2": 1})
    world.boot_s = 10.0
    world.running = {name: (kind, 0.0) for name, (kind, _) in world.running.items()}
    world.rescale.wanted = {LOCAL: 3}
    world.run(1.0)
    world.rescale.wanted = {LOCAL: 2}
    world.run(1.0)
    assert world.done("stop") == [] or world.done("stop") == ["worker-3"]
    world.run(15.0)
    assert set(world.running) == {"worker-1", "worker-2"}


def test_one_that_does_not_report_in_time_is_stopped_and_another_launched() -> None:
    world = World(least=1)
    world.boot_s = 1000.0
    world.run(BOOT_S)
    assert world.history == [("launch", "worker-1")]
    world.run(1.0 + LOST_S)
    assert world.history == [("launch", "worker-1"), ("stop", "worker-1"), ("launch", "worker-2")]


def test_one_that_dies_at_once_is_launched_again_but_ever_less_often() -> None:
    world = World(least=1)
    world.dies_at_once = True
    world.run(60.0)
    assert 4 <= len(world.done("launch")) <= 8


def test_a_process_that_runs_and_says_nothing_is_stopped() -> None:
    world = started(2)
    world.running["worker-1"] = LOCAL, world.now + 1000.0  # frozen
    world.run(1.0)
    assert world.done("launch") == ["worker-3"]
    world.run(BOOT_S + HUNG_S)
    assert world.done("stop") == ["worker-1"]


def test_a_scaler_that_starts_anew_goes_on_where_the_one_before_it_was() -> None:
    world = started(4, **{"worker-1": 1, "worker-2": 1, "worker-3": 1, "worker-4": 1})
    world.rescale.wanted = {LOCAL: 2}
    world.run(1.0)
    world.hosts = {"worker-1": 2, "worker-2": 2, "worker-3": 1}
    world.rescale = world.new_scaler(2)
    world.rescale.wanted = {LOCAL: 2}
    world.run(QUIET_S + 1.0)
    assert world.done("stop") == ["worker-4"]
    world.hosts = {"worker-1": 2, "worker-2": 2}
    world.run(QUIET_S + 1.0)
    assert set(world.running) == {"worker-1", "worker-2"}


def test_a_scaler_that_starts_anew_counts_what_the_one_before_it_has_launched() -> None:
    world = started(2)
    world.rescale.wanted = {LOCAL: 4}
    world.run(0.5)
    world.rescale = world.new_scaler(2)
    world.rescale.wanted = {LOCAL: 4}
    world.run(10.0)
    assert len(world.running) == 4


def test_without_a_launcher_workers_are_drained_and_nobody_is_launched() -> None:
    scaler = Rescale(2, lambda _kind: BOOT_S, 0.0, 0.0, launches=False)
    scaler.wanted = {LOCAL: 1}
    todo = scaler.step({"a": WorkerSlots(1, 1), "b": WorkerSlots()}, {}, (), 1.0)
    assert todo.usable == {"a"}
    scaler.wanted = {LOCAL: 5}
    todo = scaler.step({"a": WorkerSlots(1, 1), "b": WorkerSlots()}, {}, (), 2.0)
    assert todo.launch == []
    assert todo.usable == {"a", "b"}
