"""What the P-SORT paper says of its figure 11 and table 1, and what Tsunagi is held to, judged from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.bench.findings import EQUAL, Claim

PAPER = {
    ("full", 8): 3.9,
    ("full", 12): 6.0,
    ("full", 16): 6.1,
    ("basic", 8): 6.1,
    ("basic", 16): 6.5,
    ("optimised", 12): 9.8,
    ("optimised", 16): 13.0,
    ("none", 12): 11.0,
    ("none", 16): 14.0,
}
"""Figure 11's speed-ups, (method, cores) -> times one core."""
TABLE_1 = {"full": (8.5, 100.0), "basic": (17.0, 0.0), "optimised": (6.9, 17.0)}
"""Per cent: the busiest core's share of the rows, and the share that is merged."""
LEAST = {("optimised", 16): 13.0, ("none", 16): 14.0, ("optimised", 12): 9.8}
OF_NONE = 0.9
OF_BOUND = 0.9
ASSIGN_S = 0.25
WALL = 1.05


class Row(NamedTuple):
    """A method on so many cores: medians over the repetitions, and the spread of the speed-up (max - min).

    Attributes:
        zipf: exponent of the sensors' rates; 0 = lock-step.
        speed_up: one core's busy time over the busiest core's.
        predicted: by the law.
        max_load, merged_share: 0..1.
        largest: share of the sensor with most rows, 0..1, which no assignment gets below.
        bound: the speed-up that the largest sensor and the merge leave possible.
        busiest_s: CPU seconds of the busiest core; task_s: of all tasks.
    """

    zipf: float
    method: str
    cores: int
    processing: int
    speed_up: float
    spread: float
    predicted: float
    max_load: float
    merged_share: float
    largest: float
    bound: float
    busiest_s: float
    task_s: float
    split_s: float
    order_s: float
    merge_s: float


class _Table:
    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.zipf, row.method, row.cores): row for row in rows}

    def get(self, method: str, cores: int, zipf: float = 0.0) -> Row | None:
        return self._rows.get((zipf, method, cores))


def figure_11(rows: Sequence[Row]) -> list[Claim]:
    """Judge the speed-ups of the lock-step day; what was not run is not judged."""
    table = _Table(rows)
    found = []
    for (method, cores), paper in PAPER.items():
        row = table.get(method, cores)
        if row is not None:
            says = f"{method} on {cores} cores is {paper:g} times as fast as one"
            held = abs(row.speed_up / paper - 1) <= EQUAL
            found.append(Claim("figure 11", says, held, f"{row.speed_up:.2f}"))
    for (method, cores), least in LEAST.items():
        row = table.get(method, cores)
        if row is not None:
            says = f"held to: {method} on {cores} cores is at least {least:g} times as fast as one"
            found.append(Claim("figure 11", says, row.speed_up >= least, f"{row.speed_up:.2f}"))
    both = [table.get(method, 16) for method in ("optimised", "none")]
    if both[0] is not None and both[1] is not None:
        share = both[0].speed_up / both[1].speed_up
        says = f"held to: on 16 cores optimised has at least {OF_NONE:.0%} of what unordered has"
        found.append(Claim("figure 11", says, share >= OF_NONE, f"{share:.1%}"))
    basic = [table.get("basic", cores) for cores in (8, 16)]
    if basic[0] is not None and basic[1] is not None:
        gain = basic[1].speed_up / basic[0].speed_up - 1
        found.append(Claim("figure 11", "basic gains nothing beyond 8 cores", gain <= EQUAL, f"{gain:+.1%}"))
    full = [table.get("full", cores) for cores in (12, 16)]
    if full[0] is not None and full[1] is not None:
        gain = full[1].speed_up / full[0].speed_up - 1
        found.append(Claim("figure 11", "full gains nothing beyond 12 cores", gain <= EQUAL, f"{gain:+.1%}"))
    return found


def predictions(rows: Sequence[Row]) -> list[Claim]:
    """Judge the law on rows that it was not fitted to."""
    off = [(abs(row.predicted / row.speed_up - 1), row) for row in rows if row.cores > 1]
    if not off:
        return []
    worst, row = max(off, key=lambda item: item[0])
    says = f"held to: predicted and measured speed-up agree within {EQUAL:.0%}"
    where = f"{row.method} on {row.cores} cores, zipf {row.zipf:g}: {row.predicted:.2f} against {row.speed_up:.2f}"
    within = sum(item[0] <= EQUAL for item in off)
    return [Claim("law", says, worst <= EQUAL, f"{within} of {len(off)} rows; the worst {worst:.1%}: {where}")]


def uneven(rows: Sequence[Row]) -> list[Claim]:
    """Judge days whose sensors have rates of their own."""
    found = []
    for row in rows:
        if row.zipf and row.method == "optimised" and row.cores > 1:
            share = row.speed_up / row.bound
            says = f"held to: zipf {row.zipf:g}, optimised on {row.cores} cores has {OF_BOUND:.0%} of what can be had"
            what = f"{row.speed_up:.2f} of {row.bound:.2f}: {share:.1%}"
            found.append(Claim("zipf", says, share >= OF_BOUND, what))
    return found


def table_1(found: Mapping[str, tuple[float, float]], assign_s: float) -> list[Claim]:
    """Judge table 1: method -> (busiest core's share, merged share), per cent; and the time of a large assignment."""
    claims = []
    for method, (load, merged) in TABLE_1.items():
        digits = 1 if load % 1 else 0
        mine = found[method]
        held = f"{mine[0]:.{digits}f}" == f"{load:.{digits}f}" and round(mine[1]) == round(merged)
        says = f"{method}: at most {load:g} % of the rows on a core, {merged:g} % merged"
        claims.append(Claim("table 1", says, held, f"{mine[0]:.2f} %, {mine[1]:.1f} %"))
    says = f"held to: 1,000 SPKs, 17,000 OPKs and 256 cores are assigned in {ASSIGN_S} s"
    claims.append(Claim("table 1", says, assign_s < ASSIGN_S, f"{assign_s:.3f} s CPU"))
    return claims


def wall(seconds: Mapping[str, float]) -> list[Claim]:
    """Judge the clock: method -> seconds on this machine's cores."""
    ratio = seconds["optimised"] / seconds["none"]
    says = f"held to: by the clock optimised takes at most {WALL:g} times what unordered does"
    full = f"full {seconds['full'] / seconds['none']:.2f}" if "full" in seconds else "full not run"
    return [Claim("wall", says, ratio <= WALL, f"{ratio:.3f} ({full})")]
