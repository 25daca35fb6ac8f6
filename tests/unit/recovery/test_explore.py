import numpy as np
import pytest

from tests.unit.recovery.fields import spatial_field
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.explore import Scenario, draw, explore
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.helpers import persistence_share, steps_within
from tsunagi.recovery.model import Model


@pytest.fixture(scope="module")
def fleet():
    correlation, edges = spatial_field(80, np.random.default_rng(1), regions=9)
    names = tuple(f"s{place}" for place in range(80))
    zeros = np.zeros(80)
    model = Model(names, zeros, zeros + 2, zeros + 0.9, 0.19 * correlation, correlation, zeros)
    return model, [f"e{edge}" for edge in edges]


def test_more_slots_satisfy_less_and_helpers_make_it_good(fleet):
    model, edges = fleet
    rows = {
        (row.slots, row.cap): row
        for row in explore(model, edges, slots=(1, 20), caps=(0, 50), eps=(1.6,), scenario=Scenario(draws=12))
    }
    assert rows[20, 0].satisfied < rows[1, 0].satisfied == rows[1, 0].reachable
    assert rows[20, 50].satisfied == pytest.approx(rows[20, 50].reachable)
    assert rows[1, 50].helpers == 0 == rows[1, 50].helper_bytes
    assert rows[20, 50].helpers > 0
    assert all(row.worst_slot_ms <= row.step_ms for row in rows.values())


def test_the_past_satisfies_more_in_short_outages(fleet):
    model, edges = fleet
    found = [
        explore(model, edges, caps=(0,), eps=(0.9,), scenario=Scenario(steps=steps, draws=8))[0]
        for steps in (2, 10, 500)
    ]
    assert [row.meanwhile for row in found] == sorted((row.meanwhile for row in found), reverse=True)
    assert found[0].meanwhile > found[0].satisfied + 0.1
    assert all(row.satisfied <= row.meanwhile <= 1 for row in found)
    assert found[2].meanwhile == pytest.approx(found[2].satisfied, abs=0.02)


def test_steps_within_a_bound_are_those_of_the_filter():
    share, variance, limit = np.array([0.81]), np.array([1.0]), 0.6
    steps = int(steps_within(variance, limit, share)[0])
    model = Model(("a",), np.zeros(1), np.ones(1), np.full(1, 0.9), 0.19 * np.eye(1), np.eye(1), np.zeros(1))
    assert persistence_share(model) == pytest.approx(share)
    recovery = Recovery(model)
    recovery.step(np.zeros(1))
    within = [recovery.step(np.full(1, np.nan)).sd[0] ** 2 <= limit for _ in range(2 * steps)]
    assert within == [True] * steps + [False] * steps
    assert np.isinf(steps_within(variance, 1.0, share)[0])


def test_the_scenario_is_the_papers():
    dead = [len(gone) for gone in Scenario(fail=0.1, steps=10, draws=400).dead(50)]
    assert np.mean(dead) == pytest.approx(25, abs=1)  # about half of the data is lost at r_f = 0.1
    assert min(len(gone) for gone in Scenario(fail=1e-9).dead(5)) == 1


def test_refusals(fleet):
    model, edges = fleet
    with pytest.raises(ModelError, match="found 3 edges for the model's 80"):
        explore(model, edges[:3])
    with pytest.raises(ModelError, match="slots: found 81"):
        explore(model, edges, slots=(81,))


@pytest.mark.slow
def test_a_picture_needs_rows(fleet, tmp_path):
    model, edges = fleet
    draw(explore(model, edges, caps=(0,), scenario=Scenario(draws=2)), tmp_path / "p.png")
    assert (tmp_path / "p.png").exists()
