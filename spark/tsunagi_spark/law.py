"""Which order pays: the law of P-SORT, with the costs that the job measures of itself.

    speed-up = P / max(max load x P, merged share x M)

P and M are CPU seconds for a row that is processed and for one that is merged. The law is of cores that work side by
side, as in the paper. In a batch of Spark merging begins when the last core has finished, so a batch takes the sum of
the two and not the greater of them: `batch_speed_up`, and what `auto` goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tsunagi_spark.layout import Ints, Layout, Order, assigned

WORTH = 0.1
"""By which share a batch must become shorter for a change of the table to be made."""


@dataclass(slots=True)
class Costs:
    """What a row costs, CPU seconds, as measured; older batches count less.

    Attributes:
        process_s: P, all of a core's work on a row.
        merge_s: M, of a row of a cut group in addition.
    """

    process_s: float = 1.0e-6
    merge_s: float = 0.6e-6

    def measured(self, process: tuple[int, float], merge: tuple[int, float]) -> None:
        """Take in (rows, CPU seconds) of a batch; a batch of few rows tells more of Spark than of rows."""
        if process[0] >= _ROWS:
            self.process_s += _NEW * (process[1] / process[0] - self.process_s)
        if merge[0] >= _ROWS:
            self.merge_s += _NEW * (merge[1] / merge[0] - self.merge_s)


_ROWS = 1000
_NEW = 0.1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a table should come to.

    Attributes:
        max_load: the busiest core's share of all rows.
        merged_share: share of all rows that is merged.
        speed_up: against one core, by the law.
        batch_speed_up: the same in a batch, where merging waits for processing.
    """

    order: Order
    max_load: float
    merged_share: float
    speed_up: float
    batch_speed_up: float
    sensor_core: Ints


def predict(
    order: Order, group_of: Ints, sensor_core: Ints, cores: int, rates: Mapping[int, float], costs: Costs
) -> Prediction:
    """Predict what a table comes to."""
    rate = np.array([rates[sensor] for sensor in range(len(group_of))])
    total = float(rate.sum())
    loads = np.bincount(sensor_core, weights=rate, minlength=cores) / total
    groups = int(group_of.max()) + 1
    holds = np.zeros((groups, cores), dtype=np.bool_)
    holds[group_of, sensor_core] = True
    cut = np.full(groups, order == "full") if order in ("none", "full") else holds.sum(axis=1) > 1
    share = float(rate[cut[group_of]].sum()) / total
    process, merge = float(loads.max()) * costs.process_s, share * costs.merge_s
    return Prediction(
        order,
        float(loads.max()),
        share,
        costs.process_s / max(process, merge),
        costs.process_s / (process + merge),
        sensor_core,
    )


def candidates(
    orders: tuple[Order, ...], group_of: Ints, cores: int, rates: Mapping[int, float], costs: Costs
) -> list[Prediction]:
    """Predict what each order comes to, the best table of each, the best order first; of equals the first named."""
    found = [predict(order, group_of, assigned(group_of, cores, rates, order), cores, rates, costs) for order in orders]
    return sorted(found, key=lambda item: -item.batch_speed_up)


def standing(layout: Layout, rates: Mapping[int, float], costs: Costs) -> Prediction:
    """Predict what the table in force comes to."""
    return predict(layout.order, layout.group_of, layout.sensor_core, layout.cores, rates, costs)
