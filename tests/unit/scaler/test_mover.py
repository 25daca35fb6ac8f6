from __future__ import annotations

import pytest

from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.messages import Heartbeat, Placement, SlotBeat
from tsunagi.runtime.moving import AGREED, DONE, HELD
from tsunagi.scaler.mover import READ_BACK_S, Mover, boundary_ahead, lead_steps, newest_step

SLIDE_US = 200_000
BOUNDARY_US = 100 * SLIDE_US


def placement(phase: str = HELD, from_us: int = BOUNDARY_US) -> Placement:
    return Placement(
        serial=7,
        slots=3,
        slot=pack_sensors([0, 2, 1]),
        before=pack_sensors([0, 0, 1]),
        from_us=from_us,
        move=phase,
    )


def worker(name: str, *parts: tuple[int, int, int], role: str = "primary", epoch: int = 1) -> Heartbeat:
    """Return the heartbeat of a worker with (slot, last step, the boundary that it is ready for) of its slots."""
    slots = [SlotBeat(slot=slot, role=role, epoch=epoch, step=step, move_us=us) for slot, step, us in parts]
    return Heartbeat(node=name, role="worker", slots=slots)


def edge(step: int) -> Heartbeat:
    return Heartbeat(node="e", role="edge", step=step)


def phase_of(found: Placement | None) -> str:
    return "" if found is None else found.move


READY = (worker("a", (0, 80, BOUNDARY_US)), worker("b", (2, 80, BOUNDARY_US)))


def test_it_is_agreed_once_every_slot_concerned_is_ready() -> None:
    assert phase_of(Mover(SLIDE_US).turn(placement(), [*READY, edge(80)], 0.0)) == AGREED
    assert Mover(SLIDE_US).turn(placement(), [READY[0], edge(80)], 0.0) is None
    other = worker("b", (2, 80, BOUNDARY_US - SLIDE_US))
    assert Mover(SLIDE_US).turn(placement(), [READY[0], other, edge(80)], 0.0) is None
    standby = worker("b", (2, 80, BOUNDARY_US), role="standby")
    assert Mover(SLIDE_US).turn(placement(), [READY[0], standby, edge(80)], 0.0) is None


def test_of_two_that_claim_a_slot_the_newer_one_counts() -> None:
    beats = [*READY, worker("c", (2, 80, 0), epoch=2), edge(80)]
    assert Mover(SLIDE_US).turn(placement(), beats, 0.0) is None


@pytest.mark.parametrize("beats", [READY, READY[:1]])
def test_what_is_not_agreed_in_time_is_put_off(beats: tuple[Heartbeat, ...]) -> None:
    newest = 101 - lead_steps(SLIDE_US)
    found = Mover(SLIDE_US).turn(placement(), [*beats, edge(newest)], 0.0)
    assert found is not None
    assert (found.move, found.from_us) == (HELD, boundary_ahead(newest, SLIDE_US))
    assert found.from_us > BOUNDARY_US
    assert (found.slot, found.before, found.slots) == (placement().slot, placement().before, 3)


def test_it_is_done_once_every_slot_concerned_is_past_it() -> None:
    agreed = placement(AGREED)
    near = [worker("a", (0, 101, 0)), worker("b", (2, 100, 0)), edge(500)]
    assert Mover(SLIDE_US).turn(agreed, near, 0.0) is None
    far = [worker("a", (0, 101, 0)), worker("b", (2, 101, 0))]
    assert phase_of(Mover(SLIDE_US).turn(agreed, far, 0.0)) == DONE
    assert Mover(SLIDE_US).turn(placement(DONE), far, 0.0) is None
    assert Mover(SLIDE_US).turn(Placement(serial=1, slots=2, slot=pack_sensors([0])), far, 0.0) is None


def test_it_is_said_again_only_if_it_does_not_come_back() -> None:
    mover, beats = Mover(SLIDE_US), [*READY, edge(80)]
    assert phase_of(mover.turn(placement(), beats, 0.0)) == AGREED
    assert mover.turn(placement(), beats, READ_BACK_S / 2) is None
    assert phase_of(mover.turn(placement(), beats, READ_BACK_S)) == AGREED


def test_the_newest_step_is_that_of_edges_and_owners() -> None:
    assert newest_step([]) == 0
    assert newest_step([edge(5), worker("a", (0, 7, 0))]) == 7
    assert newest_step([edge(9), worker("a", (0, 7, 0)), worker("b", (1, 11, 0), role="standby")]) == 9


@pytest.mark.parametrize("slide_s", [0.2, 1.0, 3.0, 60.0])
def test_slots_have_a_step_at_least_to_get_ready(slide_s: float) -> None:
    slide_us, newest = round(slide_s * 1e6), 1000
    found = boundary_ahead(newest, slide_us)
    beats = [worker("a", (0, newest, found)), worker("b", (2, newest, found)), edge(newest + 1)]
    asked = placement(HELD, found)
    assert phase_of(Mover(slide_us).turn(asked, beats, 0.0)) == AGREED
    assert found - (newest + 1) * slide_us >= 2e6, "edges have time to read it"
