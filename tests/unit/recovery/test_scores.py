"""Candidates are judged by the errors of what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from tsunagi.recovery.estimation import halves
from tsunagi.recovery.moments import Structure
from tsunagi.recovery.scores import USUAL_MISSING, WHOLE_WEIGHT, Scores
from tsunagi.recovery.search import Candidate

QUICK = Candidate(Structure("diagonal", 0.1, 0.5), False, (0.01, 0.01, 0.01), (0.4, 0.4, 0.4))
STEADY = Candidate(Structure("diagonal", 0.1, 0.9), False, (0.04, 0.04, 0.04), (0.1, 0.1, 0.1))


def scores(edges: int = 4, values: float = 1000.0) -> Scores:
    return Scores([QUICK, STEADY], edges, values)


def test_until_anything_was_missing_one_edge_out_decides():
    assert scores().now() == pytest.approx(np.log([0.1, 0.2]))


def test_what_is_best_with_half_of_the_edges_out_wins_while_they_are():
    found = scores()
    for _ in range(20):
        found.saw_missing(0.5)
    assert found.now()[1] < found.now()[0]
    for _ in range(1000):
        found.saw_missing(0.25)
    assert found.now()[0] < found.now()[1]


def test_shares_between_count_for_both():
    found, one, half = scores(), scores(), scores()
    for _ in range(2000):
        found.saw_missing(0.375)
        one.saw_missing(0.25)
        half.saw_missing(0.5)
    # Of squared errors, not of their logarithms: what is lost is the sum of both.
    between = np.log(np.sqrt((np.exp(2 * one.now()) + np.exp(2 * half.now())) / 2))
    assert found.now() == pytest.approx(between, abs=0.01 * USUAL_MISSING)


def test_an_error_weighs_most_where_as_much_was_missing():
    found = scores()
    found.add(10, 0.5, np.array([0.0, 90.0]), 100)
    risen = found.means()[:2, 1, 1] - [STEADY.squares[1], STEADY.half[1]]
    assert risen[1] > 2 * risen[0] > 0
    assert found.means()[:, 1, 0] == pytest.approx([0.04, 0.1, 0.1])  # of other lengths it says nothing


def test_what_was_seen_fades():
    found = scores()
    found.add(3, 0.25, np.array([1000.0, 0.0]), 1000)
    kept = found.means()
    found.fade(0.25)
    assert found.means() == pytest.approx(kept)  # all alike
    found.add(3, 0.25, np.array([0.0, 0.0]), 1000)
    assert (found.means()[:, 0, 0] < kept[:, 0, 0]).all()


def test_a_file_of_before_has_no_trials_with_half_of_the_edges():
    about = {"candidates": [{key: value for key, value in QUICK.written().items() if key not in ("half", "whole")}]}
    (old,) = Candidate.of(about)
    assert old.half == old.whole == ()
    found = Scores([old], 4, 10.0).means()
    assert found[1, 0] == pytest.approx(old.squares)
    assert Candidate.of({"candidates": [QUICK.written()]}) == [QUICK]


def test_a_single_edge_is_one_half_and_all_of_them():
    found = scores(edges=1)
    found.saw_missing(1.0)
    found.saw_missing(0.0)
    found.add(3, 1.0, np.array([1.0, 1.0]), 10)
    assert np.isfinite(found.now()).all()


def test_with_all_edges_out_the_shortest_outages_speak_for_all():
    found = Scores([replace(QUICK, whole=(0.9,)), STEADY], 4, 1000.0)
    assert found.means()[2, 0] == pytest.approx([0.9, 0.9, 0.9])
    for _ in range(20):
        found.saw_missing(1.0)
    assert found.now()[1] < found.now()[0]


def test_all_edges_out_rests_little_on_the_fit():
    found = scores()
    found.add(3, 1.0, np.array([500.0, 500.0]), 500)
    seen = 500 * 1.5
    prior = WHOLE_WEIGHT * 1000 * 3 / 43
    assert found.means()[2, 0, 0] == pytest.approx((750 + prior * 0.4) / (seen + prior))


def test_halves_are_of_whole_edges_from_all_round():
    found = halves(["c", "a", "b", "a", "e", "d"])
    assert [sorted(part.tolist()) for part in found] == [[0, 1, 2, 3], [0, 2, 5], [0, 4, 5], [1, 2, 3, 4]]
    assert [part.tolist() for part in halves(["b", "a"])] == [[1], [0]]
    assert [part.tolist() for part in halves(["a", "a"])] == [[0, 1]]
