"""A worker hears the cells of its slots, and judges each by its own heartbeats there."""

from __future__ import annotations

from tsunagi.runtime.cells import Cells
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import HEARTBEATS
from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.testing import MemoryLog
from tsunagi.worker.hearing import Hearing

INTERVAL_S = 0.1
ME, OTHER = ("me", 7), ("n1", 1)


class World:
    """A worker with slots 0 (cell 0) and 2 (cell 2) of 8 in four cells; another node owns both."""

    def __init__(self, cells: int = 4) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, {HEARTBEATS: 1 if cells == 1 else cells + 1})
        client = self.log.client("me")
        self.range = client.reader().range
        self.hearing = Hearing(client, *ME, INTERVAL_S)
        self.hearing.open(Cells(cells), self.range)
        self.sequence = 0
        self.read = 0

    def run(self, seconds: float, *, own: tuple[int, ...] = (1, 3), other: tuple[int, ...] = (1, 3)) -> None:
        """Let time pass while heartbeats come into these partitions, and the worker listens."""
        for _ in range(round(seconds / INTERVAL_S)):
            self.clock.advance(INTERVAL_S)
            self.sequence += 1
            for (node, incarnation), partitions in ((ME, own), (OTHER, other)):
                for at in partitions:
                    part = SlotBeat(slot=0 if at == 1 else 2, role="primary" if node == "n1" else "standby", epoch=1)
                    beat = Heartbeat(node=node, incarnation=incarnation, sequence=self.sequence, slots=[part])
                    self.log.append(HEARTBEATS, at, node.encode(), beat.SerializeToString())
            for record in self.hearing.read(1000):
                self.read += 1
                self.hearing.on_heartbeat(Heartbeat.FromString(record.value or b""), record.partition, self.now)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def silence(self, slot: int) -> float:
        return self.hearing.detector(slot).owner_silence("n1", slot, 0.0, self.now)


def both() -> World:
    world = World()
    world.hearing.follow({0, 2}, world.range)
    world.run(3.0)
    return world


def test_nothing_but_the_cells_of_ones_slots_is_read() -> None:
    world = both()
    before = world.read
    world.run(1.0, other=(1, 2, 3, 4))
    assert world.read - before == 10 * (2 + 2)


def test_a_silent_owner_is_suspected_in_the_cell_where_it_is_silent() -> None:
    world = both()
    world.run(1.0, other=(3,))
    assert world.silence(0) > 0.75
    assert world.silence(2) < 2 * INTERVAL_S


def test_silence_does_not_count_in_a_cell_that_stalls_alone() -> None:
    world = both()
    world.run(3.0, own=(3,), other=(3,))
    assert world.silence(0) == 0.0
    assert not world.hearing.detector(0).connected(world.now)
    assert world.hearing.detector(2).settled(world.now)


def test_a_cell_that_is_taken_up_later_judges_nobody_before_own_heartbeats_come_back() -> None:
    world = World()
    world.hearing.follow({2}, world.range)
    world.run(3.0)
    world.hearing.follow({0, 2}, world.range)
    assert not world.hearing.detector(0).connected(world.now)
    world.run(0.5, other=(3,))
    assert world.hearing.detector(0).connected(world.now)
    assert world.silence(0) <= 0.5, "what was heard before it listened counts from then on"


def test_a_cell_that_is_left_is_forgotten() -> None:
    world = both()
    left = world.hearing.detector(0)
    world.hearing.follow({2}, world.range)
    before = world.read
    world.run(1.0)
    assert world.read - before == 10 * 2
    assert world.hearing.detector(0) is not left


def test_a_cell_whose_partition_does_not_answer_is_tried_again() -> None:
    world = World()
    world.log.stop()
    world.hearing.follow({0}, world.range)
    world.log.start()
    world.run(0.5)
    assert world.read == 0
    world.hearing.follow({0}, world.range)
    world.run(0.5)
    assert world.read > 0


def test_an_ended_connection_is_a_hint_in_each_cell() -> None:
    world = both()
    world.hearing.hint(*OTHER, world.now)
    assert all(world.hearing.detector(slot).hinted("n1", world.now) for slot in (0, 2))
    beat = world.hearing.beat("n1")
    assert beat is not None
    assert beat.sequence == world.sequence
    assert world.hearing.beat("nobody") is None


def test_with_one_cell_all_is_read_from_the_start() -> None:
    world = World(cells=1)
    world.run(1.0, own=(0,), other=(0,))
    assert world.read == 20
    assert world.hearing.detector(0) is world.hearing.detector(7)
