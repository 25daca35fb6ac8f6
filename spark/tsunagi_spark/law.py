"""Which order of results pays: the law of P-SORT, with the costs that the job measures.

    speed-up = P / max(max load x P, merged share x M)

P and M are the CPU seconds for a row that is processed and for one that is merged. The law is about cores that work at
the same time, as in the paper. In a batch of Spark merging begins when the last core has finished, so a batch takes the
sum of both and not the greater one: `batch_speed_up`, by which `auto` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tsunagi_spark.layout import Ints, Layout, Order, assigned

WORTH = 0.1
"""A change of the table must make a batch shorter by at least this share."""


@dataclass(slots=True)
class RowCosts:
    """CPU seconds for a row, as measured; older batches count less.

    Attributes:
        process_s: P, the whole work of a core on a row.
        merge_s: M, the additional work on a row of a cut group.
    """

    process_s: float = 1.0e-6
    merge_s: float = 0.6e-6

    def measured(self, process: tuple[int, float], merge: tuple[int, float]) -> None:
        """Add (rows, CPU seconds) of a batch; one with few rows is left out: it tells about Spark, not about rows."""
        if process[0] >= _ROWS:
            self.process_s += _NEW * (process[1] / process[0] - self.process_s)
        if merge[0] >= _ROWS:
            self.merge_s += _NEW * (merge[1] / merge[0] - self.merge_s)


_ROWS = 1000
"""A batch with fewer rows than this is not measured."""
_NEW = 0.1
"""Weight of the newest batch in the measured costs."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a table is expected to give.

    Attributes:
        max_load: share of all rows on the busiest core.
        merged_share: share of all rows that is merged.
        speed_up: speed-up over one core, by the law.
        batch_speed_up: the same for a batch, in which merging waits for processing.
    """

    order: Order
    max_load: float
    merged_share: float
    speed_up: float
    batch_speed_up: float
    sensor_core: Ints


def predict(
    order: Order, group_of: Ints, sensor_core: Ints, cores: int, rates: Mapping[int, float], costs: RowCosts
) -> Prediction:
    """Return what a table is expected to give."""
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
    orders: tuple[Order, ...], group_of: Ints, cores: int, rates: Mapping[int, float], costs: RowCosts
) -> list[Prediction]:
    """Return what the best table of each order is expected to give, the best first; of equals the one named first."""
    found = [predict(order, group_of, assigned(group_of, cores, rates, order), cores, rates, costs) for order in orders]
    return sorted(found, key=lambda item: -item.batch_speed_up)


def standing(layout: Layout, rates: Mapping[int, float], costs: RowCosts) -> Prediction:
    """Return what the table in force is expected to give."""
    return predict(layout.order, layout.group_of, layout.sensor_core, layout.cores, rates, costs)
