"""The least cost that is possible if all rates are known beforehand; a policy's cost is compared with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import HOUR_S, WorkerType
from tsunagi.scaler.trace import MINUTE_S


class BoundError(RuntimeError):
    """The linear program has no solution: the types' limits are below the load."""


def cost_bound(
    rates: Floats,
    step_s: float,
    types: Sequence[WorkerType],
    local_rate: float,
    slo_s: float,
    hour_s: float = HOUR_S,
) -> float:
    """Return the least cost of keeping the delay of every tuple within `slo_s`, with all rates known beforehand.

    It is the solution of a linear program in which the number of workers may be fractional, may change every minute,
    and takes effect at once. The variables are the workers of each type in each minute, and the tuples processed by the
    end of each step.

    Raises:
        BoundError: the limits of the types leave too little capacity.
    """
    from scipy import sparse  # noqa: PLC0415 - the console starts without them
    from scipy.optimize import linprog  # noqa: PLC0415

    steps = len(rates)
    per_minute = max(1, round(MINUTE_S / step_s))
    minutes = -(-steps // per_minute)
    arrived = np.cumsum(rates) * step_s
    usable = _cheapest(types)
    columns = minutes * len(usable)
    minute_of = np.arange(steps) // per_minute
    # Constraint: done[k] - done[k-1] - step * sum(rate * workers[minute of k]) <= step * local
    rows, cols, values = (
        [np.arange(steps), np.arange(1, steps)],
        [columns + np.arange(steps), columns + np.arange(steps - 1)],
        [np.ones(steps), -np.ones(steps - 1)],
    )
    for index, kind in enumerate(usable):
        rows.append(np.arange(steps))
        cols.append(index * minutes + minute_of)
        values.append(np.full(steps, -kind.rate * step_s))
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols))), shape=(steps, columns + steps)
    )
    price = np.concatenate([np.full(minutes, kind.price_h * MINUTE_S / hour_s) for kind in usable] + [np.zeros(steps)])
    due = np.interp(np.arange(1, steps + 1) * step_s - slo_s, np.arange(steps + 1) * step_s, np.r_[0.0, arrived])
    lower = np.concatenate((np.zeros(columns), due))
    upper = np.concatenate(
        [np.full(minutes, np.inf if kind.limit is None else float(kind.limit)) for kind in usable] + [arrived]
    )
    found = linprog(
        price,
        A_ub=matrix,
        b_ub=np.full(steps, local_rate * step_s),
        bounds=np.column_stack((lower, upper)),
        method="highs",
    )
    if not found.success:
        raise BoundError(f"the clairvoyant bound: {found.message}; expected types whose limits can carry the load")
    return float(found.fun)


def _cheapest(types: Sequence[WorkerType]) -> list[WorkerType]:
    """Leave out each type that is never better than fractional workers of another type without a limit."""
    ordered = sorted(types, key=lambda kind: kind.price_h / kind.rate)
    first_unlimited = next((i for i, kind in enumerate(ordered) if kind.limit is None), len(ordered) - 1)
    return ordered[: first_unlimited + 1]
