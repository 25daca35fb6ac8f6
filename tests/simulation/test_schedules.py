"""Seeded fault schedules over the real hosts and the real scaler; a failing run prints its seed and events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.simulation.run import BATCH, make_pool, run_seed, submit

SCHEDULES = int(os.environ.get("TSUNAGI_SIMULATIONS", "300"))
"""`make simulation` runs 10,000. A schedule costs most of a second of a core."""

FIRST = int(os.environ.get("TSUNAGI_SIMULATION_SEED", "1"))
SEEDS = range(FIRST, FIRST + SCHEDULES)

FOUND = (9323, 54652, 60829, 65166, 65200, 69039, 71634, 77026)
"""Seeds beyond the usual ones that found something: a takeover that told 64 records one by one, slowly; a deadly
reading that waited for settings, so that each owner that brought them died; an edge that began anew at a lower step;
two that had caught up only just when they were judged; a standby that believed an owner's position before that owner
had appended its Quarantine, and died of the record; an acknowledgement of a record that was quarantined later; a
standby without a state that waited for a batch for ever."""

Outcomes = list[Future[list[tuple[int, str]]]]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """All schedules, under way on all cores from the first test on."""
    with make_pool() as pool:
        yield submit(pool, SEEDS)
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("place", range(-(-SCHEDULES // BATCH)), ids=lambda place: f"from-{FIRST + place * BATCH}")
def test_schedules(outcomes: Outcomes, place: int) -> None:
    wrong = [text for _, text in outcomes[place].result() if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert run_seed(seed) == ""
