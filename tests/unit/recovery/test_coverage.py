import numpy as np
import pytest

from tsunagi.recovery.coverage import KINDS, LEAST_OF_A_SENSOR, Coverage, ages
from tsunagi.recovery.factors import Traits


def test_each_truth_counts_once_in_each_kind_of_classes() -> None:
    rng = np.random.default_rng(1)
    coverage, n = Coverage(2, 6), 500
    places = rng.integers(0, 6, n)
    traits = Traits(2 * rng.normal(size=n), np.ones(n), np.exp(7 * rng.uniform(size=n)).round())
    coverage.add(places, places % 2, rng.uniform(size=n) < 0.9, traits, rng.uniform(size=n))
    begin = 0
    for classes in KINDS.values():
        truths, within = coverage.by_class[:, begin : begin + len(classes)]
        assert truths.sum() == n == coverage.truths.sum()
        assert (truths > 0).all()
        assert within.sum() == coverage.within.sum()
        begin += len(classes)
    assert coverage.by_sensor[0].sum() == n


@pytest.mark.parametrize(
    ("level", "age", "share", "classes"),
    [
        (-3.0, 1.0, 0.05, ("lowest", "1", "up to 10%")),
        (0.0, 2.0, 0.1, ("middle", "2-3", "up to 10%")),
        (0.5, 10.0, 0.2, ("high", "4-10", "10-25%")),
        (9.0, 5000.0, 1.0, ("highest", "over 100", "over 50%")),
    ],
)
def test_the_class_of_an_estimate(level: float, age: float, share: float, classes: tuple[str, ...]) -> None:
    coverage = Coverage(1, 1)
    one = np.zeros(1, dtype=np.intp)
    coverage.add(one, one, np.array([True]), Traits(np.array([level]), np.ones(1), np.array([age])), share)
    assert coverage.shares() == {kind: {name: 1.0} for kind, name in zip(KINDS, classes, strict=True)}


def test_the_worst_sensor_is_one_that_has_truths_enough() -> None:
    coverage = Coverage(1, 3)

    def tell(place: int, truths: int, within: int) -> None:
        of = np.full(truths, place)
        traits = Traits(np.zeros(truths), np.ones(truths), np.ones(truths))
        coverage.add(of, np.zeros(truths, dtype=np.intp), np.arange(truths) < within, traits, 0.1)

    tell(0, LEAST_OF_A_SENSOR - 1, 0)
    assert coverage.worst_sensor() is None
    tell(1, 100, 95)
    tell(2, 100, 80)
    assert coverage.worst_sensor() == (2, 0.8)


def test_the_estimates_of_a_table_of_steps() -> None:
    read = np.array([[1, 1], [0, 1], [0, 0], [1, 0], [0, 0]], dtype=bool)
    assert ages(~read).tolist() == [[0, 0], [1, 0], [2, 1], [0, 2], [1, 3]]
    coverage = Coverage(1, 2)
    where = ~read & (np.arange(5) != 3)[:, None]  # of the fourth step no truth is known
    coverage.add_table(~read, where, np.arange(5)[:, None] < [4, 2], np.zeros((5, 2)))
    assert coverage.by_sensor.tolist() == [[3, 2], [2, 0]]
    assert coverage.shares()["steps"] == {"1": round(1 / 3, 4), "2-3": 0.5}
    assert coverage.shares()["missing"] == {"25-50%": 1.0, "over 50%": 0.25}
