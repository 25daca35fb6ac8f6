"""How slots are divided into cells, and which partitions a heartbeat goes to."""

from __future__ import annotations

from collections import Counter

import pytest

from tsunagi.runtime.beat_routes import LEAVE_S, CellRoutes, EdgeRoutes
from tsunagi.runtime.cells import SUMMARY, SUMMARY_S, Cells, cells_for, cells_made, partitions_for, read_cells
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import HEARTBEATS
from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.testing import MemoryLog

INTERVAL_S = 0.1
EVERY = round(SUMMARY_S / INTERVAL_S)


@pytest.mark.parametrize(("slots", "count"), [(1, 1), (7, 3), (32, 1), (100, 2), (20_000, 625), (5, 5)])
def test_cells_are_equally_large(slots: int, count: int) -> None:
    cells = Cells(count)
    sizes = Counter(cells.of(slot) for slot in range(slots))
    assert sizes.keys() == set(range(count))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    in_turn = cells.in_turn(slots)
    assert sorted(in_turn) == list(range(slots))
    assert [cells.of(slot) for slot in in_turn] == sorted(cells.of(slot) for slot in in_turn)


def test_a_small_fleet_has_one_cell_which_is_the_summary() -> None:
    assert [cells_for(slots) for slots in (1, 32, 63, 64, 20_000)] == [1, 1, 1, 2, 625]
    assert cells_for(8, asked=3) == 3
    assert cells_for(2, asked=3) == 2
    one = Cells(1)
    assert one.partition(0) == SUMMARY
    assert one.cell_of(SUMMARY) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 625])
def test_a_running_system_tells_its_cells_by_the_partitions(count: int) -> None:
    assert cells_made(partitions_for(count)) == count
    log = MemoryLog(ManualClock(), {HEARTBEATS: partitions_for(count)})
    cells = read_cells(log.client("a"))
    assert cells == Cells(count)
    places = {cells.partition(cell) for cell in range(count)}
    assert len(places) == count
    assert places <= set(range(partitions_for(count)))
    assert all(cells.cell_of(cells.partition(cell)) == cell for cell in range(count))


def beat(*slots: int, leaving: bool = False) -> Heartbeat:
    return Heartbeat(node="w", role="worker", leaving=leaving, slots=[SlotBeat(slot=slot) for slot in slots])


def sent(routes: CellRoutes, message: Heartbeat) -> dict[int, list[int]]:
    """Return the slots of which each partition hears."""
    return {at: [part.slot for part in Heartbeat.FromString(value).slots] for at, value in routes.split(message)}


def test_a_cell_hears_of_its_slots_and_the_summary_of_all_once_a_second() -> None:
    routes = CellRoutes(Cells(4), INTERVAL_S)
    assert sent(routes, beat(0, 4, 3)) == {SUMMARY: [0, 4, 3], 1: [0, 4], 4: [3]}
    for _ in range(EVERY - 1):
        assert sent(routes, beat(0, 4, 3)) == {1: [0, 4], 4: [3]}
    assert SUMMARY in sent(routes, beat(0))
    assert SUMMARY in sent(routes, beat(0, leaving=True)), "a last word goes everywhere"


def test_with_one_cell_nothing_is_sent_twice() -> None:
    routes = CellRoutes(Cells(1), INTERVAL_S)
    assert all(sent(routes, beat(0, 7)) == {SUMMARY: [0, 7]} for _ in range(2 * EVERY))


def test_a_worker_without_slots_speaks_to_the_summary_alone() -> None:
    routes = CellRoutes(Cells(4), INTERVAL_S)
    found = [sent(routes, beat()) for _ in range(2 * EVERY)]
    assert sum(map(len, found)) == 2
    assert found[0] == found[EVERY] == {SUMMARY: []}


def test_a_cell_hears_for_a_while_that_a_worker_has_no_slot_of_it_any_more() -> None:
    routes = CellRoutes(Cells(4), INTERVAL_S)
    sent(routes, beat(0, 3))
    found = [sent(routes, beat(3)) for _ in range(2 * EVERY)]
    assert [said[1] for said in found if 1 in said] == [[]] * (round(LEAVE_S / INTERVAL_S) - 1)
    assert all(said[4] == [3] for said in found)


class _Placed:
    def __init__(self) -> None:
        self.slots: list[int] = []


def test_an_edge_speaks_to_the_cells_of_its_slots_once_it_is_placed() -> None:
    log, placed = MemoryLog(ManualClock(), {HEARTBEATS: 5}), _Placed()
    routes = EdgeRoutes(log.client("e"), placed, SUMMARY_S / 4)
    edge = Heartbeat(node="e", role="edge")
    assert [at for at, _ in routes.split(edge)] == [SUMMARY]
    placed.slots = [1, 5]
    log.stop()
    assert [at for at, _ in routes.split(edge)] == [SUMMARY], "how slots are divided is not known yet"
    log.start()
    assert [[at for at, _ in routes.split(edge)] for _ in range(5)] == [[SUMMARY, 2], [2], [2], [2], [SUMMARY, 2]]
    assert routes.partition == 2
