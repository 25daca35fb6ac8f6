from dataclasses import replace

import numpy as np
import pytest

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import COLUMNS, MOST_SHAPE, Factors, Traits
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.messages import Calibrated

MODEL = Model(
    ("a", "b"),
    np.zeros(2),
    np.ones(2),
    np.full(2, 0.9),
    0.19 * np.eye(2),
    np.eye(2),
    np.zeros(2),
    calibration=((0.9, 1.7),),
)


def traits(level: float = 0.0, sd: float = 1.0, age: float = 1.0) -> Traits:
    return Traits(np.full(2, level), np.full(2, sd), np.full(2, age))


def sloped(*slope: float, tried: float = np.inf) -> Factors:
    found = Factors.plain([1.0, 2.0])
    return replace(found, slope=np.array([slope]), tried=np.array([tried]))


def of(factors: Factors, which: Traits, share: float = 0.5) -> list[float]:
    return [float(factor) for factor in factors.of(np.arange(2), which, share, MODEL.inflation(0.9))]


def test_plain_factors_follow_no_trait() -> None:
    plain = Factors.plain([1.0, 2.0])
    assert of(plain, traits()) == of(plain, traits(3.0, 0.1, 500.0)) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("slope", "more"),
    [
        ((0.5, 0.0, 0.0, 0.0), traits(level=2.0)),
        ((0.0, 0.5, 0.0, 0.0), traits(level=-2.0)),
        ((0.0, 0.0, 0.5, 0.0), traits(sd=3.0)),
        ((0.0, 0.0, 0.0, 0.5), traits(age=20.0)),
    ],
)
def test_each_trait_has_its_slope(slope: tuple[float, ...], more: Traits) -> None:
    factors = sloped(*slope)
    less, wider = of(factors, traits()), of(factors, more)
    assert wider[0] > 1.3 * less[0]
    assert wider[1] == pytest.approx(2 * wider[0])


def test_no_trait_takes_a_factor_further_than_told() -> None:
    assert of(sloped(5.0, 0.0, 0.0, 0.0), traits(level=3.0)) == pytest.approx(
        [np.exp(MOST_SHAPE), 2 * np.exp(MOST_SHAPE)]
    )


def test_an_outage_longer_than_was_tried_has_the_fits_factor_at_least() -> None:
    factors = sloped(0.0, 0.0, 0.0, 0.0, tried=30.0)
    assert of(factors, traits(age=30.0)) == [1.0, 2.0]
    assert of(factors, traits(age=31.0)) == [1.7, 2.0]
    rising = sloped(0.0, 0.0, 0.0, 0.5, tried=30.0)
    assert of(rising, traits(age=300.0)) == of(rising, traits(age=31.0)), "no slope goes on past what was tried"


def test_where_next_to_nothing_is_read_no_factor_is_below_the_fits() -> None:
    factors = sloped(0.0, 0.0, -0.5, 0.0)
    assert of(factors, traits(), share=0.9) == [1.0, 2.0]
    assert of(factors, traits(), share=1.0) == [1.7, 2.0]
    assert of(factors, traits(sd=4.0), share=1.0) == [1.7, 1.7], "whatever the slopes say"


def test_a_record_says_all_of_them() -> None:
    factors = Factors(
        np.array([1.0, 2.0]),
        np.array([1, 0]),
        np.arange(8.0).reshape(2, COLUMNS),
        np.ones((2, COLUMNS)),
        np.array([np.inf, 30.0]),
    )
    record = factors.write(epoch=3, model="aa")
    assert (record.epoch, record.model) == (3, "aa")
    again = Factors.read(Calibrated.FromString(record.SerializeToString()))
    assert again.valid
    for name in ("base", "group", "slope", "centre", "tried"):
        np.testing.assert_array_equal(getattr(again, name), getattr(factors, name))


def test_a_record_of_before_there_were_traits_is_plain() -> None:
    old = Factors.read(Calibrated(factor=pack_floats([1.0, 2.0])))
    assert old.valid
    assert of(old, traits(2.0, 0.1, 99.0)) == [1.0, 2.0]


GOOD = sloped(0.0, 0.0, 0.0, 0.0, tried=30.0).write(epoch=1, model="aa")


@pytest.mark.parametrize(
    "odd",
    [
        {"factor": pack_floats([1.0, 0.0])},
        {"factor": pack_floats([1.0, np.nan])},
        {"factor": pack_floats([1.0])},
        {"group": pack_sensors([0, 1])},
        {"group": pack_sensors([0])},
        {"slope": pack_floats([1.0])},
        {"slope": pack_floats([np.inf] * COLUMNS)},
        {"centre": pack_floats([np.nan] * COLUMNS)},
        {"centre": b""},
        {"tried": pack_floats([np.nan])},
        {"tried": pack_floats([-1.0])},
        {"tried": pack_floats([1.0, 1.0])},
    ],
)
def test_odd_records_are_not_taken(odd: dict[str, bytes]) -> None:
    record = Calibrated.FromString(GOOD.SerializeToString())
    assert Factors.read(record).valid
    for name, column in odd.items():
        setattr(record, name, column)
    factors = Factors.read(record)
    assert not (factors.valid and factors.base.shape == (2,))
    with pytest.raises(ModelError, match="factors"):
        Recovery(MODEL).set_factors(factors)


def test_a_filter_that_is_resumed_knows_how_old_its_estimates_are() -> None:
    one, other = Recovery(MODEL), Recovery(MODEL)
    for filter_ in (one, other):
        filter_.set_factors(sloped(0.3, 0.1, 0.2, 0.4, tried=4.0))
    one.step(np.array([1.0, 2.0]))
    for _ in range(3):
        one.step(np.array([1.0, np.nan]))
    other.resume(one.context())
    for _ in range(4):  # past what was tried
        first, second = one.step(np.array([1.0, np.nan])), other.step(np.array([1.0, np.nan]))
        np.testing.assert_array_equal(first.bound, second.bound)
    assert one.longest_outage == other.longest_outage == 7
    assert other.context() == one.context()
    one.step(np.array([1.0, 1.0]))
    assert one.longest_outage == 0
