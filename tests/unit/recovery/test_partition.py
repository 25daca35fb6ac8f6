from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.recovery.splits import SPLITS, Split, split
from tests.unit.recovery.fields import paper_field, spatial_field
from tsunagi.recovery.low_rank import LowRank
from tsunagi.recovery.partition import PartitionError, Slots, objective, partition, partition_by_causes
from tsunagi.runtime.columns import Floats

BOTH: tuple[Split, Split] = ("proposed", "proposed-swap")


def best_by_trial(correlation: Floats, edges: Slots, slots: int) -> float:
    """Every split into slots of two, tried."""
    n = len(correlation)

    def pairings(left: list[int]) -> Iterator[list[tuple[int, int]]]:
        if not left:
            yield []
            return
        first, *rest = left
        for other in rest:
            for tail in pairings([x for x in rest if x != other]):
                yield [(first, other), *tail]

    best = 0.0
    for pairs in pairings(list(range(n))):
        of = np.empty(n, dtype=int)
        for slot, pair in enumerate(pairs):
            of[list(pair)] = slot
        best = max(best, objective(correlation, edges, of))
    return best


@pytest.mark.slow
@pytest.mark.parametrize("method", SPLITS)
@pytest.mark.parametrize(("n", "slots"), [(60, 6), (61, 7), (10, 10), (8, 1)])
def test_slots_differ_by_one_sensor_at_most(method, n, slots):
    correlation, edges = paper_field(n, np.random.default_rng(1), edge_size=5)
    of = split(correlation, edges, slots, method)
    assert of.shape == (n,)
    sizes = np.bincount(of, minlength=slots)
    if method == "single":
        assert sizes[0] == n
    else:
        assert set(sizes.tolist()) <= {n // slots, -(-n // slots)}


@pytest.mark.parametrize("method", SPLITS)
def test_the_same_arguments_give_the_same_slots(method):
    correlation, edges = spatial_field(60, np.random.default_rng(2), regions=9)
    assert np.array_equal(split(correlation, edges, 6, method), split(correlation, edges, 6, method))


def test_objective_counts_pairs_of_one_slot_and_two_edges_once():
    correlation = np.array([[1.0, 0.5, 0.9, 0.3], [0.5, 1, 0.2, 0.1], [0.9, 0.2, 1, 0.6], [0.3, 0.1, 0.6, 1]])
    assert objective(correlation, ["a", "b", "a", "b"], [0, 0, 0, 1]) == pytest.approx(0.5**2 + 0.2**2)
    assert objective(correlation, ["a", "a", "a", "a"], [0, 0, 0, 0]) == 0


def test_greedy_is_figure_3_with_equation_12_to_the_letter():
    correlation, edges = paper_field(24, np.random.default_rng(3), edge_size=4)
    variances = 1 + np.random.default_rng(4).random(24)
    matrix = correlation.copy()
    matrix[np.diag_indices(24)] = variances
    slots = [[int(x)] for x in np.argsort(-variances)[:4]]
    free = set(range(24)) - {x for slot in slots for x in slot}
    while free:
        for slot in slots:
            gains = {x: sum(matrix[x, a] ** 2 for a in slot if edges[a] != edges[x]) for x in sorted(free)}
            best = max(gains, key=gains.__getitem__)
            slot.append(best)
            free.remove(best)
    of = split(matrix, edges, 4, "proposed")
    assert [sorted(np.flatnonzero(of == slot)) for slot in range(4)] == [sorted(slot) for slot in slots]


def test_vanilla_is_figure_3_with_equations_10_and_11_to_the_letter():
    rng = np.random.default_rng(5)
    correlation, edges = paper_field(24, rng, edge_size=4)
    size = 1 + rng.random(24)
    covariance = correlation * np.outer(size, size)

    def worst(members: list[int]) -> float:
        found = []
        for x in members:
            others = [a for a in members if edges[a] != edges[x]]
            value = covariance[x, x]
            if others:
                row = covariance[x, others]
                value -= row @ np.linalg.solve(covariance[np.ix_(others, others)], row)
            found.append(value)
        return float(max(found))

    slots = [[int(x)] for x in np.argsort(-np.diag(covariance))[:4]]
    free = set(range(24)) - {x for slot in slots for x in slot}
    while free:
        for slot in slots:
            scores = {x: worst([*slot, x]) for x in sorted(free)}
            best = min(scores, key=lambda x: (round(scores[x], 12), x))
            slot.append(best)
            free.remove(best)
    of = split(covariance, edges, 4, "vanilla")
    assert [sorted(np.flatnonzero(of == slot)) for slot in range(4)] == [sorted(slot) for slot in slots]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), slots=st.integers(1, 6), n=st.integers(6, 30))
def test_exchanges_never_lose(seed, slots, n):
    rng = np.random.default_rng(seed)
    correlation, edges = paper_field(n, rng, edge_size=3)
    greedy, better = (objective(correlation, edges, split(correlation, edges, slots, m)) for m in BOTH)
    assert better >= greedy - 1e-9


def test_exchanges_find_the_best_pairs():
    for seed in range(10):
        correlation, edges = paper_field(8, np.random.default_rng(seed), edge_size=2)
        found = objective(correlation, edges, partition(correlation, edges, 4))
        assert found >= 0.95 * best_by_trial(correlation, edges, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "least"),
    [(lambda rng: paper_field(1000, rng), 1.10), (lambda rng: spatial_field(1000, rng, regions=50), 1.20)],
)
def test_exchanges_gain_over_the_greedy(field, least):
    correlation, edges = field(np.random.default_rng(6))
    greedy = objective(correlation, edges, split(correlation, edges, 20, "proposed"))
    assert objective(correlation, edges, partition(correlation, edges, 20)) >= least * greedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3), ["a"] * 2, 2), "found 2 edges for 3 sensors"),
        ((np.ones((2, 3)), ["a"] * 2, 2), r"found shape \(2, 3\)"),
        ((np.full((2, 2), np.nan), ["a"] * 2, 2), "found NaN"),
        ((np.array([[1, 0.5], [0.1, 1]]), ["a"] * 2, 2), "asymmetric"),
        ((np.eye(3), ["a"] * 3, 4), "found 4, expected 1 to"),
        ((np.eye(3), ["a"] * 3, 2, "best"), "found 'best'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(PartitionError, match=message):
        split(*arguments)


@pytest.mark.parametrize("slots", [1, 3, 7])
def test_a_covariance_of_low_rank_is_split_as_its_matrix_is(slots):
    rng = np.random.default_rng(3)
    loadings = rng.choice([0.0, 0.25, 0.5, 1.0], size=(60, 3))
    covariance = LowRank(loadings, 4.0 - np.square(loadings).sum(axis=1))  # all variances are 4: no number is rounded
    edges = rng.integers(0, 12, 60)
    by_causes = partition_by_causes(covariance, edges, slots)
    assert by_causes.tolist() == partition(covariance.dense() / 4.0, edges, slots).tolist()


def test_a_covariance_of_low_rank_that_does_not_fit_is_refused():
    covariance = LowRank(np.ones((4, 1)), np.ones(4))
    with pytest.raises(PartitionError, match="found 3 edges for 4 sensors"):
        partition_by_causes(covariance, [0, 1, 2], 2)
    with pytest.raises(PartitionError, match="slots: found 5"):
        partition_by_causes(covariance, [0, 1, 2, 3], 5)
