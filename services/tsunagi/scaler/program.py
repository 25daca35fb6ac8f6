"""The paper's integer program (figure 1): the cheapest workers that carry what the local machines cannot.

Data-parallel: minimise sum (P_type + P_Nin D_type) x_type over whole x_type >= 0, so that sum D_type x_type >= D_next -
D_local. Task-parallel (section 4.1): D counts the tasks that a worker can run on the whole stream; every worker gets a
copy of the stream, and all copies together stay within the bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulp
from pulp.apis.coin_api import pulp_cbc_path  # the solver in PuLP's wheel

from tsunagi.scaler.policy import HOUR_S, WorkerType

_GIGABYTE = 1e9
"""Bytes in a gigabyte, as clouds sell traffic."""


class ProgramError(RuntimeError):
    """The program has no solution, or none was found in time. The message says which."""


@dataclass(frozen=True, slots=True)
class Size:
    """A type as the program sees it.

    Attributes:
        amount: D_type: tuples/s, or number of tasks.
        price: P_type and the price of its traffic, for an hour.
        limit: most workers; None means any number.
        traffic: bytes/s that are sent to one worker.
    """

    name: str
    amount: float
    price: float
    limit: int | None
    traffic: float


def data_sizes(types: Sequence[WorkerType], tuple_bytes: float, hour_s: float = HOUR_S) -> list[Size]:
    """Return the sizes of data-parallel workers: each is sent as much as it can process."""
    return [
        Size(
            kind.name,
            kind.rate,
            kind.price_h + _traffic(kind, kind.rate * tuple_bytes, hour_s),
            kind.limit,
            kind.rate * tuple_bytes,
        )
        for kind in types
    ]


def task_sizes(types: Sequence[WorkerType], rate: float, tuple_bytes: float, hour_s: float = HOUR_S) -> list[Size]:
    """Return the sizes of task-parallel workers at a stream's rate; a type that cannot run one task is left out."""
    sent = rate * tuple_bytes
    sizes = [
        Size(
            kind.name,
            float(math.floor(kind.rate / rate + 1e-9)) if rate > 0 else math.inf,
            kind.price_h + _traffic(kind, sent, hour_s),
            kind.limit,
            sent,
        )
        for kind in types
    ]
    return [size for size in sizes if size.amount >= 1]


def _traffic(kind: WorkerType, bytes_s: float, hour_s: float) -> float:
    return kind.price_gb * bytes_s * hour_s / _GIGABYTE


def solve(need: float, sizes: Sequence[Size], bandwidth: float = math.inf, limit_s: float = 5.0) -> dict[str, int]:
    """Return the cheapest workers whose amounts add up to `need`.

    Raises:
        ProgramError: there is no solution, or the solver took longer than `limit_s`.
    """
    if need <= 0:
        return {size.name: 0 for size in sizes}
    if not sizes:
        raise ProgramError(f"no optimum: no type can carry any of {need:g}")
    problem = pulp.LpProblem("elasticstream", pulp.LpMinimize)
    most = [math.ceil(need / size.amount) if size.limit is None else size.limit for size in sizes]
    counts = [problem.add_variable(f"x{i}", 0, limit, pulp.LpInteger) for i, limit in enumerate(most)]
    problem += pulp.lpSum(size.price * count for size, count in zip(sizes, counts, strict=True))
    problem += pulp.lpSum(size.amount * count for size, count in zip(sizes, counts, strict=True)) >= need
    if math.isfinite(bandwidth):
        problem += pulp.lpSum(size.traffic * count for size, count in zip(sizes, counts, strict=True)) <= bandwidth
    # With cuts CBC takes one answer in 250 for optimal that is not (test_program has some); these programs are small.
    solver = pulp.COIN_CMD(path=pulp_cbc_path, msg=False, timeLimit=limit_s, gapRel=0.0, gapAbs=0.0, cuts=False)
    try:
        status = problem.solve(solver)
    except (pulp.PulpSolverError, OSError) as error:
        raise ProgramError(f"the solver failed: {error}") from None
    if problem.sol_status != pulp.LpSolutionOptimal:
        raise ProgramError(
            f"no optimum: {pulp.LpStatus[status]} (need {need:g}, bandwidth {bandwidth:g} B/s, {limit_s:g} s)"
        )
    return {size.name: round(count.value()) for size, count in zip(sizes, counts, strict=True)}


class Cover:
    """Solves the data-parallel program for one list of sizes, and keeps each solution for all needs that it fits.

    An optimal solution for a need stays optimal for needs up to its own amount: it is still enough, and a greater need
    never has a cheaper solution.
    """

    def __init__(self, sizes: Sequence[Size], limit_s: float = 5.0) -> None:
        self._sizes = list(sizes)
        self._limit_s = limit_s
        self._known: list[tuple[float, float, dict[str, int]]] = []

    def __call__(self, need: float) -> Mapping[str, int]:
        """Return the cheapest workers for a need.

        Raises:
            ProgramError: as in `solve`.
        """
        for low, high, workers in self._known:
            if low <= need <= high:
                return workers
        workers = solve(need, self._sizes, limit_s=self._limit_s)
        amount = sum(size.amount * workers[size.name] for size in self._sizes)
        self._known.append((need, amount, workers))
        return workers


def spread(need: float, sizes: Sequence[Size], bandwidth: float = math.inf) -> dict[str, int]:
    """Return workers by a simple rule where the program fails: the types that are cheapest for their amount come first.

    Of two types with one price the larger comes first, since it needs the stream once for more tasks.

    If all types together are not enough, it returns all that there are.
    """
    workers = {size.name: 0 for size in sizes}
    for size in sorted(sizes, key=lambda size: (round(size.price / size.amount, 12), -size.amount)):
        if need <= 0:
            break
        count = math.ceil(need / size.amount - 1e-9)
        count = count if size.limit is None else min(count, size.limit)
        if math.isfinite(bandwidth) and size.traffic > 0:
            count = min(count, math.floor(bandwidth / size.traffic))
        workers[size.name] = count
        need -= count * size.amount
        bandwidth -= count * size.traffic
    return workers
