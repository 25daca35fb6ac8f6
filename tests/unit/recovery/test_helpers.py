import numpy as np
import numpy.typing as npt
import pytest

from tests.bench.recovery.list_order import ListOrder
from tests.bench.recovery.splits import split
from tests.unit.recovery.fields import paper_field, spatial_field
from tsunagi.recovery.helpers import HelpersError, best_variance, choose_helpers, variance_threshold
from tsunagi.runtime.columns import Floats


def given(covariance: Floats, read: npt.ArrayLike, targets: npt.NDArray[np.intp]) -> Floats:
    """Equation (7) with a plain inverse."""
    seen = np.asarray(read, dtype=np.intp)
    own = np.diag(covariance)[targets]
    if not len(seen):
        return np.asarray(own)
    cross = covariance[np.ix_(targets, seen)]
    inverse = np.linalg.inv(covariance[np.ix_(seen, seen)])
    return np.asarray(own - np.einsum("ti,ij,tj->t", cross, inverse, cross))


@pytest.fixture(scope="module")
def fleet():
    correlation, edges = paper_field(300, np.random.default_rng(1), edge_size=10)
    return correlation, edges, split(correlation, edges, 10, "proposed")


def test_threshold_is_equation_6():
    assert variance_threshold(1.6448536, 0.9) == pytest.approx(1.0, abs=1e-6)
    for wrong in [(0, 0.9), (1, 1.0), (1, 0)]:
        with pytest.raises(HelpersError, match="expected eps > 0"):
            variance_threshold(*wrong)


@pytest.mark.slow
def test_variances_are_those_of_the_equations(fleet):
    correlation, edges, of = fleet
    lost = np.flatnonzero(np.isin(edges, [3, 7]))
    slot = np.flatnonzero(of == 2)
    found = choose_helpers(correlation, slot, lost, 0.3)
    assert np.array_equal(found.targets, np.intersect1d(slot, lost))
    read = np.concatenate([np.setdiff1d(slot, lost), found.chosen])
    assert found.variance == pytest.approx(given(correlation, read, found.targets), abs=1e-9)
    assert not np.isin(found.chosen, np.concatenate([slot, lost])).any()
    assert np.array_equal(found.satisfied, found.variance <= 0.3)


@pytest.mark.slow
def test_every_value_that_can_be_satisfied_is(fleet):
    correlation, edges, of = fleet
    precision = np.linalg.inv(correlation)
    rng = np.random.default_rng(2)
    few, by_list = [], []
    order = ListOrder(correlation, edges, of, 0.35)
    for _ in range(60):
        down = rng.choice(30, size=rng.integers(1, 4), replace=False)
        lost = np.flatnonzero(np.isin(edges, down))
        slot = np.flatnonzero(of == rng.integers(10))
        alive = np.setdiff1d(np.arange(300), lost)
        targets = np.intersect1d(slot, lost)
        reachable = given(correlation, alive, targets) <= 0.35
        found = choose_helpers(correlation, slot, lost, 0.35, precision=precision)
        assert found.satisfied[reachable].all()
        assert (found.reason == "satisfied") == bool(found.satisfied.all())
        if not reachable.all():
            assert found.reason == "no helper"
        few.append(len(found.chosen))
        listed = order.choose(int(of[slot[0]]), down.tolist())
        by_list.append(len(listed.chosen))
    assert np.mean(few) < np.mean(by_list)


@pytest.mark.parametrize("looks", [(3, 300), (3, 60), (20, 100)])
def test_looks_at_some_candidates_are_only_an_abbreviation(fleet, monkeypatch, looks):
    correlation, edges, of = fleet
    lost, slot = np.flatnonzero(edges == 4), np.flatnonzero(of == 1)
    whole = choose_helpers(correlation, slot, lost, 0.2)
    monkeypatch.setattr("tsunagi.recovery.helpers.LOOKS", looks)
    short = choose_helpers(correlation, slot, lost, 0.2)
    assert np.array_equal(short.satisfied, whole.satisfied)


def test_the_cap_is_kept_and_named(fleet):
    correlation, edges, of = fleet
    lost = np.flatnonzero(np.isin(edges, [1, 2, 3]))
    slot = next(m for s in range(10) if np.isin(m := np.flatnonzero(of == s), lost).sum() > 3)
    free = choose_helpers(correlation, slot, lost, 0.38, precision=np.linalg.inv(correlation))
    assert len(free.chosen) > 1
    tight = choose_helpers(correlation, slot, lost, 0.38, cap=1, precision=np.linalg.inv(correlation))
    assert len(tight.chosen) == 1
    assert tight.reason == "cap"
    assert not len(choose_helpers(correlation, slot, lost, 0.38, cap=0).chosen)


def test_nothing_is_asked_for_where_nothing_is_lost_or_all_is_well(fleet):
    correlation, edges, of = fleet
    slot = np.flatnonzero(of == 1)
    assert not len(choose_helpers(correlation, slot, [], 0.2).chosen)
    assert not len(choose_helpers(correlation, slot, np.flatnonzero(edges == 4), 2.0).chosen)


def test_a_slot_that_reads_nothing_itself(fleet):
    correlation, edges, _ = fleet
    slot = np.flatnonzero(edges == 4)
    found = choose_helpers(correlation, slot, slot, 0.6, precision=np.linalg.inv(correlation))
    assert found.variance == pytest.approx(given(correlation, found.chosen, slot), abs=1e-9)
    assert len(found.chosen)


def test_sensors_that_tell_the_same_are_no_trouble():
    correlation, edges = spatial_field(60, np.random.default_rng(3), regions=9)
    twin = np.block([[correlation, correlation], [correlation, correlation]])
    found = choose_helpers(twin, np.arange(20), np.arange(10), 1e-6)
    assert set(range(60, 70)) <= set(found.chosen.tolist())
    assert found.reason == "satisfied"
    edges = np.tile(edges, 2)


def test_a_large_fleet_in_which_nobody_tells_of_anybody_is_searched_to_the_end():
    found = choose_helpers(np.eye(700), np.arange(10), np.arange(3), 0.5)
    assert found.reason == "no helper"
    assert not len(found.chosen)


@pytest.mark.slow
def test_list_order_is_the_papers(fleet):
    correlation, edges, of = fleet
    order = ListOrder(correlation, edges, of, 0.4, cap=60, at_a_time=1)
    slot = 4
    members = np.flatnonzero(of == slot)
    gains = {
        x: sum(correlation[x, a] ** 2 for a in members if edges[a] != edges[x]) for x in range(300) if of[x] != slot
    }
    best = order.lists[slot].tolist()
    assert sorted(best) == sorted(gains)
    values = [gains[x] for x in best]
    assert values == sorted(values, reverse=True)
    edge = int(edges[members[0]])
    alone = order.choose(slot, [edge])
    assert set(order.first[slot][edge].tolist()) == set(alone.chosen.tolist())
    assert len(alone.chosen) + len(members) <= 60


def test_refusals(fleet):
    correlation, _, _ = fleet
    with pytest.raises(HelpersError, match="slot: found sensor 300"):
        choose_helpers(correlation, [300], [0], 0.2)
    with pytest.raises(HelpersError, match="cap: found -1"):
        choose_helpers(correlation, [1], [0], 0.2, cap=-1)


def test_an_edge_without_known_sensors_needs_no_helpers_and_no_complaint_of_lapack(
    capfd: pytest.CaptureFixture[str],
) -> None:
    nobody = np.empty(0, dtype=np.intp)
    assert len(best_variance(np.eye(3), nobody, nobody)) == 0
    assert capfd.readouterr() == ("", "")
