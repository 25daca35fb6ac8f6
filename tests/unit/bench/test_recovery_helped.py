from collections.abc import Callable

import numpy as np
import pytest

from tests.bench.recovery.helped import HelpedSlot
from tests.bench.recovery.scenario import draw_readings, gaussian, make_fleet
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.forms import Places

FLEET = make_fleet(100, 1)
MEMBERS = np.arange(0, 100, 4)
NOBODY = np.empty(0, dtype=np.intp)


def compare(helpers_at: Callable[[int], Places], steps: int = 25) -> None:
    """Step a slot beside a filter over its sensors and all that ever help, of which those not read are missing."""
    everybody = np.unique(np.concatenate([helpers_at(step) for step in range(steps)])).astype(np.intp)
    whole = np.concatenate([MEMBERS, everybody])
    slot, oracle = HelpedSlot(FLEET.correlation, MEMBERS), Recovery(gaussian(FLEET.correlation[np.ix_(whole, whole)]))
    readings = draw_readings(FLEET, steps, 2)
    draw = np.random.default_rng(3)
    for step in range(steps):
        lost = np.zeros(100, dtype=bool)
        lost[MEMBERS] = draw.random(len(MEMBERS)) < 0.4
        read = ~lost
        read[np.setdiff1d(everybody, helpers_at(step))] = False
        sensors, mean, variance = slot.step(readings[step], lost, helpers_at(step))
        found = oracle.step(np.where(read, readings[step], np.nan)[whole])
        assert np.array_equal(sensors, MEMBERS[lost[MEMBERS]])
        places = np.searchsorted(MEMBERS, sensors)
        assert mean == pytest.approx(found.mean[places], abs=1e-8)
        assert np.sqrt(variance) == pytest.approx(found.sd[places], abs=1e-8)


def test_agrees_with_the_filter_without_helpers():
    compare(lambda _: NOBODY)


def test_agrees_with_the_filter_while_its_helpers_stay():
    compare(lambda _: np.array([1, 22, 63]))


def test_agrees_with_the_filter_when_helpers_are_added():
    compare(lambda step: np.array([1, 22, 63])[: 1 + step // 8] if step > 4 else NOBODY)


def test_helpers_take_off_variance_from_their_first_step_on():
    without, with_ = HelpedSlot(FLEET.correlation, MEMBERS), HelpedSlot(FLEET.correlation, MEMBERS)
    readings = np.zeros(100)
    lost = FLEET.edges == 0
    others = np.setdiff1d(np.flatnonzero(~lost), MEMBERS)
    for step in range(4):
        _, _, alone = without.step(readings, lost, NOBODY)
        _, _, helped = with_.step(readings, lost, others if step == 3 else NOBODY)
        if step < 3:
            assert helped == pytest.approx(alone)
    assert helped.sum() < 0.5 * alone.sum()
    assert (helped <= alone + 1e-12).all()
