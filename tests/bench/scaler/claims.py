"""What the ElasticStream paper says of its figures 4 to 6, and what Tsunagi is held to, judged from the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.bench.findings import EQUAL, Claim

SAVED = 0.80
"""Of the always-on score, the paper says."""
THIRD = 1 / 3
KEPT = 0.01
"""Latency counts as kept where no larger share of the tuples is late."""


class Row(NamedTuple):
    """A scenario in figures.

    Attributes:
        score: the paper's, in its currency; paid: where begun hours are paid whole.
        saved: share of the always-on score that was not spent.
        late: share of the tuples later than promised, before_last: of those before the last burst.
        most_s: longest latency, of all tuples; last_most_s: of those from the last burst on.
        median_s: median latency before the last burst.
        wrong: tuples lost, doubled or out of order.
    """

    scenario: str
    score: float
    paid: float
    saved: float
    late: float
    before_last: float
    most_s: float
    before_most_s: float
    last_most_s: float
    median_s: float
    wrong: int


def figure_4(rows: Mapping[str, Row], slo_s: float) -> list[Claim]:
    """Judge the latencies; what was not run is not judged."""
    found = []
    local, always, elastic = (rows.get(name) for name in ("local", "always-on", "elasticstream"))
    if local is not None:
        says = "Local: latency diverges in the bursts"
        found.append(Claim("figure 4", says, local.late > KEPT, f"{local.late:.1%} late, {local.most_s:.2f} s at most"))
    if always is not None:
        says = f"Local+Cloud: latency never diverges (at most {KEPT:.0%} later than {slo_s:g} s)"
        what = f"{always.late:.2%} late, {always.most_s:.2f} s at most"
        found.append(Claim("figure 4", says, always.late <= KEPT, what))
    if elastic is not None:
        says = f"ElasticStream: latency is kept before the last burst (at most {KEPT:.0%} later than {slo_s:g} s)"
        what = f"{elastic.before_last:.2%} late, {elastic.before_most_s:.2f} s at most"
        found.append(Claim("figure 4", says, elastic.before_last <= KEPT, what))
        says = "ElasticStream: latency is not kept in the last burst, which is higher than its TimeSlot's mean"
        what = f"{elastic.last_most_s:.2f} s at most"
        found.append(Claim("figure 4", says, elastic.last_most_s > slo_s, what))
    if elastic is not None and local is not None:
        share = elastic.most_s / local.most_s if local.most_s else 0.0
        says = "ElasticStream: latency grows to a third at most of what it is with Local"
        found.append(Claim("figure 4", says, share <= THIRD * (1 + EQUAL), f"{share:.0%}"))
    if elastic is not None and always is not None:
        says = "ElasticStream: before the last burst latency is that of Local+Cloud (medians)"
        held = elastic.median_s <= (1 + EQUAL) * always.median_s
        what = f"{elastic.median_s * 1e3:.0f} ms against {always.median_s * 1e3:.0f} ms"
        found.append(Claim("figure 4", says, held, what))
    return found


def figure_5(rows: Mapping[str, Row], bound_saved: float, slo_s: float) -> list[Claim]:
    """Judge the scores; `bound_saved` is what a clairvoyant can save at most, of the always-on score."""
    found = []
    elastic = rows.get("elasticstream")
    most = f"a clairvoyant saves {bound_saved:.1%}"
    says = f"{SAVED:.0%} below always-on can be had at all with every tuple within {slo_s:g} s"
    found.append(Claim("bound", says, bound_saved >= SAVED, most))
    if elastic is not None and "always-on" in rows:
        says = f"ElasticStream: the score is about {SAVED:.0%} below always-on"
        what = f"{elastic.saved:.1%} below, {elastic.late:.1%} late; {most}"
        found.append(Claim("figure 5", says, elastic.saved >= SAVED * (1 - EQUAL), what))
    return found


def held_to(rows: Mapping[str, Row]) -> list[Claim]:
    """Judge what Tsunagi is held to."""
    found = []
    elastic, ours = rows.get("elasticstream"), rows.get("ours")
    if elastic is not None and ours is not None:
        says = "held to: ours has no more late tuples than ElasticStream"
        found.append(Claim("ours", says, ours.late <= elastic.late, f"{ours.late:.2%} against {elastic.late:.2%}"))
        says = f"held to: ours costs no more than ElasticStream (within {EQUAL:.0%})"
        held = ours.score <= (1 + EQUAL) * elastic.score
        found.append(Claim("ours", says, held, f"{ours.score:.4f} against {elastic.score:.4f}"))
    for row in rows.values():
        says = f"held to: {row.scenario}: no tuple is lost, doubled or out of order"
        found.append(Claim("outputs", says, row.wrong == 0, f"{row.wrong} are"))
    return found


class Width(NamedTuple):
    """A policy on a trace with a TimeSlot of so many minutes, in the simulator."""

    trace: str
    policy: str
    minutes: float
    cost: float
    bound: float
    cost_over_bound: float
    late_share: float
    changes_per_day: float
    most_workers: int


def widths(rows: list[Width]) -> list[Claim]:
    """Judge what the paper's discussion expects of the TimeSlot's width."""
    found = []
    for trace, policy in dict.fromkeys((row.trace, row.policy) for row in rows):
        mine = sorted((row for row in rows if (row.trace, row.policy) == (trace, policy)), key=lambda row: row.minutes)
        if len(mine) < 2:
            continue
        late = ", ".join(f"{row.minutes:g} min {row.late_share:.2%}" for row in mine)
        says = f"{trace}, {policy}: a shorter TimeSlot follows bursts better (fewest late with the shortest)"
        held = mine[0].late_share <= min(row.late_share for row in mine)
        found.append(Claim("width", says, held, late))
        cost = ", ".join(f"{row.minutes:g} min {row.cost_over_bound:.2f} x" for row in mine)
        says = f"{trace}, {policy}: too short a TimeSlot is wasteful (the shortest is not the cheapest)"
        held = mine[0].cost > min(row.cost for row in mine)
        found.append(Claim("width", says, held, cost))
    return found
