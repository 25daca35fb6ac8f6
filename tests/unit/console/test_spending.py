"""What the scaler says of load and workers becomes costs: what was paid, and the least that was possible."""

from __future__ import annotations

import math

from tsunagi.console.asking import LOOK_S
from tsunagi.console.spending import BOUND_S, Spending
from tsunagi.runtime.settings import ScalerSettings, Settings, SizeSettings

METRICS = """\
# TYPE tsunagi_slot_arrival_tuples_per_second gauge
tsunagi_slot_arrival_tuples_per_second{slot="0"} 30.0
tsunagi_slot_arrival_tuples_per_second{slot="1"} 50.0
# TYPE tsunagi_scaler_planned_tuples_per_second gauge
tsunagi_scaler_planned_tuples_per_second{what="forecast"} 90.0
tsunagi_scaler_planned_tuples_per_second{what="capacity"} 120.0
# TYPE tsunagi_scaler_workers_of_type gauge
tsunagi_scaler_workers_of_type{type="small",state="have"} 3.0
tsunagi_scaler_workers_of_type{type="small",state="wanted"} 4.0
tsunagi_scaler_workers_of_type{type="local",state="have"} 1.0
"""


def priced() -> Settings:
    sizes = {"small": SizeSettings(rate=40.0, price_h=0.36), "local": SizeSettings(rate=0.001)}
    return Settings(scaler=ScalerSettings(sizes=sizes))


def test_a_text_of_metrics_is_a_look() -> None:
    look = Spending(priced()).look_of(METRICS, 5.0)
    assert (look.time_s, look.rate, look.forecast, look.capacity) == (5.0, 80.0, 90.0, 120.0)
    assert math.isnan(look.quantile)
    assert look.workers == {"small": 3, "local": 1}
    assert look.price_h == 3 * 0.36


def test_what_was_paid_is_by_the_second_and_never_less_than_the_least_possible() -> None:
    spending = Spending(priced())
    looks = round(600 / LOOK_S)
    for number in range(looks + 1):
        spending.take(spending.look_of(METRICS, number * LOOK_S))
    spending.compare(0.0)
    view = spending.view()
    assert view["paid"] == round(3 * 0.36 * 600 / 3600, 4)
    assert view["least"] is not None
    assert 0.9 * 2 * 0.36 * 600 / 3600 < view["least"] < view["paid"]  # 80 tuples/s are two small workers' work
    assert view["quantile"] == [None] * (looks + 1)


def test_the_least_possible_is_computed_now_and_then_and_only_with_prices() -> None:
    free = Spending(Settings())
    free.take(free.look_of(METRICS, 0.0))
    free.compare(0.0)
    assert (free.view()["least"], free.view()["priced"]) == (None, False)
    spending = Spending(priced())
    spending.take(spending.look_of(METRICS, 0.0))
    spending.compare(0.0)
    first = spending.view()["least"]
    for number in range(1, 20):  # what the promised delay allows to wait costs nothing yet
        spending.take(spending.look_of(METRICS, number * LOOK_S))
    spending.compare(BOUND_S / 2)
    assert spending.view()["least"] == first
    spending.compare(BOUND_S)
    assert spending.view()["least"] > first
