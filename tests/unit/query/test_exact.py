from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsunagi.query.exact import add_up, joined, of_cells, squares, to_doubles

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(st.lists(FLOATS.filter(lambda x: abs(x) < 1e306), min_size=1, max_size=30))
def test_a_sum_is_the_exact_one_rounded_once(values: list[float]) -> None:
    found, rest = to_doubles(add_up(np.array(values), np.zeros(len(values), np.int64), 1), (1,))
    exact = sum((Fraction(value) for value in values), Fraction(0))
    assert found[0] == float(exact)
    assert abs(exact - Fraction(float(found[0]))) <= abs(Fraction(float(rest[0]))) * Fraction(1001, 1000) + Fraction(
        5e-324
    )


@pytest.mark.parametrize("small", [2.6817893400240365e-305, -2.6817893400240365e-305])
def test_a_remainder_beside_a_great_sum_is_not_lost(small: float) -> None:
    great, ulp = 2.0**900, 2.0**848
    for values in ([great, small], [great, ulp / 2, small], [great, -ulp / 4, small]):
        found, rest = to_doubles(add_up(np.array(values), np.zeros(len(values), np.int64), 1), (1,))
        assert found[0] == float(sum(map(Fraction, values)))
        assert rest[0] != 0


def test_a_tie_is_decided_by_what_is_far_smaller() -> None:
    values = np.array([2.6319417537584798e-177] * 3 + [-1.0995143039138291e-231])
    found = to_doubles(add_up(values, np.zeros(4, np.int64), 1), (1,))[0]
    assert found[0] == float(sum(map(Fraction, values.tolist()), Fraction(0)))


@given(st.lists(FLOATS, min_size=2, max_size=20), st.integers(0, 20), st.randoms(use_true_random=False))
def test_order_and_cut_do_not_change_a_bit(values: list[float], cut: int, chance) -> None:
    cells = np.zeros(len(values), np.int64)
    whole = to_doubles(add_up(np.array(values), cells, 1), (1,))[0]
    shuffled = chance.sample(values, len(values))
    parts = [np.array(part) for part in (shuffled[:cut], shuffled[cut:])]
    found = joined(*(add_up(part, cells[: len(part)], 1) for part in parts))
    assert to_doubles(found, (1,))[0].tobytes() == whole.tobytes()


def test_what_is_taken_away_again_leaves_nothing() -> None:
    chance = np.random.default_rng(1)
    values = chance.normal(size=1000) * 10.0 ** chance.integers(-12, 12, 1000)
    cells = np.zeros(2000, np.int64)
    found = to_doubles(add_up(np.concatenate((values, -values)), cells, 1), (1,))
    assert (found[0][0], found[1][0]) == (0.0, 0.0)


@pytest.mark.parametrize("value", [5e-324, 2.2e-308, -1.7e308, 0.1, -0.0, np.inf, -np.inf])
def test_a_value_alone_comes_back(value: float) -> None:
    assert to_doubles(of_cells(np.array([value])), (1,))[0][0] == value


def test_infinities_that_contradict_each_other_are_no_number() -> None:
    found = to_doubles(add_up(np.array([np.inf, -np.inf, 1.0, np.nan, 2.0]), np.array([0, 0, 1, 2, 3]), 4), (4,))[0]
    assert np.isnan(found[[0, 2]]).all()
    assert found[[1, 3]].tolist() == [1.0, 2.0]


def test_squares_are_exact() -> None:
    values = np.random.default_rng(2).normal(size=500) * 1e5
    found = to_doubles(squares(values, np.zeros(500, np.int64), 1), (1,))[0][0]
    assert found == float(sum(Fraction(float(value)) ** 2 for value in values))


def test_more_rows_than_are_added_at_once() -> None:
    values = np.full(2_100_000, 0.1)
    found = to_doubles(add_up(values, np.zeros(len(values), np.int64), 1), (1,))[0][0]
    assert found == float(Fraction(0.1) * len(values))
