"""Decides when to change the table of cores: rates are measured while the job runs, and an outdated table is replaced.

The paper leaves this open (section 3.3.4). A table is changed only if a batch becomes shorter by a tenth, and at most
once in a set time. It leaves as many sensors on their cores as it can, because another core must read the state of a
sensor that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import structlog
from scipy.optimize import linear_sum_assignment

from tsunagi.runtime.columns import Floats
from tsunagi_spark.law import WORTH, Prediction, RowCosts, candidates, standing
from tsunagi_spark.layout import Ints, Layout, Order, reassigned

Setting = Literal["auto", "none", "basic", "optimised", "full"]
ReadRates = Callable[[], Floats]
"""Returns the number of rows delivered lately for each sensor of the layout, float64[sensors]."""

_UNEVEN = 1.05
"""Tables are compared only if the busiest core has more than this many times the mean of the rows."""
_UNSEEN = 1e-3
"""A sensor without rows lately counts with this share of the greatest rate: it may have rows again."""


def orders_of(setting: Setting) -> tuple[Order, ...]:
    """Return the orders among which a setting lets the job choose; `basic` comes first, since it merges nothing."""
    return ("basic", "optimised") if setting == "auto" else (setting,)


def first_order(setting: Setting, group_of: Ints, cores: int, rates: Mapping[int, float], costs: RowCosts) -> Order:
    """Return the order to begin with, by the rates in the sensors table."""
    found = candidates(orders_of(setting), group_of, cores, rates, costs)
    chosen = found[0]
    basic = next((item for item in found if item.order == "basic"), chosen)
    if chosen.batch_speed_up < basic.batch_speed_up / (1 - WORTH):
        chosen = basic
    tell("order chosen", found, chosen, costs)
    return chosen.order


class Balancer:
    """Measures the load of the cores and proposes tables.

    Args:
        every_s: shortest time between two changes, in seconds; 0 means that the table never changes.
    """

    def __init__(self, setting: Setting, every_s: float) -> None:
        self.costs = RowCosts()
        self._setting = setting
        self._every_s = every_s
        self._since_s: float | None = None
        self._rows: Floats = np.zeros(0)

    def observe(self, cores: Sequence[Mapping[str, Any]], merged: Sequence[Mapping[str, Any]]) -> None:
        """Take note of the reports of the cores of a batch, and of the merge core if there was one."""
        taken = np.array([report["taken"] for report in sorted(cores, key=lambda item: item["core"])], dtype=np.float64)
        self._rows = taken if len(self._rows) != len(taken) else self._rows + taken
        self.costs.measured(
            (int(taken.sum()), sum(report["cpu_s"] for report in cores)),
            (sum(report["rows"] for report in merged), sum(report["cpu_s"] for report in merged)),
        )

    def propose(self, layout: Layout, read_rates: ReadRates, now_s: float) -> Layout | None:
        """Return the next layout, if it is worth replacing the one in force now; else None.

        Raises:
            LayoutError: the setting asks for an order that the checkpoint does not allow.
        """
        orders = orders_of(self._setting)
        if layout.order not in orders:
            self.check(layout)
        elif layout.order == "none" or not self._due(now_s):
            return None
        rates = _rates(read_rates(), len(layout))
        found = candidates(orders, layout.group_of, layout.cores, rates, self.costs)
        best, present = found[0], standing(layout, rates, self.costs)
        if layout.order in orders and best.batch_speed_up < present.batch_speed_up / (1 - WORTH):
            return None
        kept = keep_in_place(layout, best.sensor_core, rates)
        tell("table changed", [present, *found], best, self.costs)
        return reassigned(layout, kept, best.order)

    def check(self, layout: Layout) -> None:
        """Check that the setting fits the order with which the checkpoint was made.

        Raises:
            LayoutError: it does not fit.
        """
        orders = orders_of(self._setting)
        if layout.order not in orders:
            reassigned(layout, layout.sensor_core, orders[0])

    def _due(self, now_s: float) -> bool:
        """Return whether it is time to compare tables, and the loads of the cores differ."""
        if self._since_s is None:
            self._since_s = now_s
        if not self._every_s or now_s - self._since_s < self._every_s:
            return False
        self._since_s = now_s
        rows, self._rows = self._rows, np.zeros(0)
        return len(rows) > 1 and float(rows.max()) > _UNEVEN * float(rows.mean()) > 0


def keep_in_place(layout: Layout, sensor_core: Ints, rates: Mapping[int, float]) -> Ints:
    """Number the cores of a new table so that as few rows as possible change cores."""
    rate = np.array([rates[sensor] for sensor in range(len(layout))])
    stays = np.zeros((layout.cores, layout.cores))
    np.add.at(stays, (sensor_core, layout.sensor_core), rate)
    new, old = linear_sum_assignment(-stays)
    number = np.empty(layout.cores, dtype=np.int64)
    number[new] = old
    return number[sensor_core]


def tell(event: str, found: Sequence[Prediction], chosen: Prediction, costs: RowCosts) -> None:
    """Log the law's figures for every table that was compared, and which one was chosen."""
    logger = structlog.get_logger("tsunagi.spark")
    for item in found:
        logger.info(
            event if item is chosen else "order compared",
            order=item.order,
            process_us=round(costs.process_s * 1e6, 3),
            merge_us=round(costs.merge_s * 1e6, 3),
            max_load=round(item.max_load, 4),
            merged_share=round(item.merged_share, 4),
            speed_up=round(item.speed_up, 2),
            batch_speed_up=round(item.batch_speed_up, 2),
        )


def _rates(rows: Floats, sensors: int) -> dict[int, float]:
    """Return the rate of each sensor, all above zero: a sensor without rows lately may have rows again."""
    found = np.ones(sensors) if not rows.any() else np.maximum(rows, _UNSEEN * float(rows.max()))
    return dict(enumerate(found.tolist()))
