"""P-SORT: which core works on which sensor, so that results come out in time order where order is asked for.

OPK (operator partition key, here the sensor): rows of different OPKs may be worked on apart. SPK (sorting partition
key, here the sensors table's group): results are in time order within one SPK. A core that holds a whole SPK orders it
alone; an SPK that is cut over several cores has to be merged afterwards. Source: Katsunuma, Imaki, Nishizawa, Fujiwara,
DEIM 2010, sections 3.2 (basic), 3.3 (optimised), 3.3.4 (loads that differ), figure 8, table 1.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Opk = TypeVar("Opk", bound=Hashable)
Spk = TypeVar("Spk", bound=Hashable)
Method = Literal["basic", "optimised", "full"]

_SLACK = 1e-9  # relative: loads are sums of floating-point rates
_HALVINGS = 12


@dataclass(frozen=True, slots=True)
class Assignment(Generic[Opk, Spk]):
    """Who works on what.

    Attributes:
        core_of: core that runs the queries of an OPK, 0 <= core < cores.
        merge_core_of: core that merges a cut SPK; only cut SPKs stand here. It is `cores`: one more than process.
        max_load: the busiest core's share of all rows, 0..1 (table 1, first row).
        merged_share: share of all rows that is merged, 0..1 (table 1, second row).
    """

    core_of: dict[Opk, int]
    merge_core_of: dict[Spk, int]
    max_load: float
    merged_share: float


def assign(
    spk_of: Mapping[Opk, Spk], cores: int, rates: Mapping[Opk, float] | None = None, method: Method = "optimised"
) -> Assignment[Opk, Spk]:
    """Assign every OPK to a core.

    Args:
        spk_of: the attribute table, OPK -> SPK.
        cores: cores that process; merging is done by one more.
        rates: rows a second of each OPK (any unit); None = all alike. An OPK that is not named has rate 1.
        method: `basic`: each SPK whole on one core, the largest first to the least loaded core. `optimised`: whole SPKs
            best-fit decreasing under the least cap that can be met; an SPK over the cap is cut. `full`: OPKs spread
            evenly and everything merged, which is what data parallelism does without P-SORT.

    Raises:
        ValueError: no cores, an empty table, or a rate that is not a positive number.
    """
    if cores < 1:
        raise ValueError(f"cores: found {cores}, expected at least 1")
    if not spk_of:
        raise ValueError("the attribute table is empty; expected at least one OPK")
    rate_of = {opk: 1.0 if rates is None else float(rates.get(opk, 1.0)) for opk in spk_of}
    for opk, rate in rate_of.items():
        if not 0 < rate < float("inf"):
            raise ValueError(f"rate of {opk!r}: found {rate}, expected a finite number above zero")
    members: dict[Spk, list[Opk]] = {}
    for opk, spk in spk_of.items():
        members.setdefault(spk, []).append(opk)
    if method == "basic":
        core_of = _basic(members, rate_of, cores)
    elif method == "full":
        core_of = _largest_first({opk: rate_of[opk] for opk in spk_of}, cores)
    elif method == "optimised":
        core_of = _optimised(members, rate_of, cores)
    else:
        raise ValueError(f"method: found {method!r}, expected basic, optimised or full")
    return _measured(core_of, spk_of, rate_of, cores, merge_all=method == "full")


def extend(core_of: Mapping[Spk, int], load_of: Mapping[Spk, float], cores: int) -> dict[Spk, int]:
    """Place SPKs that are new without moving one that has a core: order across a move would need a barrier.

    Args:
        core_of: SPK -> core, of the SPKs that stand.
        load_of: SPK -> rows a second, of all SPKs, old and new.

    Returns:
        SPK -> core for all of `load_of`.
    """
    placed = dict(core_of)
    loads = [0.0] * cores
    for spk, core in placed.items():
        loads[core] += load_of.get(spk, 0.0)
    heap = [(load, core) for core, load in enumerate(loads)]
    heapq.heapify(heap)
    fresh = [spk for spk in load_of if spk not in placed]
    for spk in sorted(fresh, key=lambda item: -load_of[item]):
        load, core = heapq.heappop(heap)
        placed[spk] = core
        heapq.heappush(heap, (load + load_of[spk], core))
    return placed


def _largest_first(load_of: Mapping[Opk, float], cores: int) -> dict[Opk, int]:
    """Longest processing time first: each item to the core with the least so far."""
    return extend({}, load_of, cores)


def _basic(members: Mapping[Spk, list[Opk]], rate_of: Mapping[Opk, float], cores: int) -> dict[Opk, int]:
    core_of_spk = _largest_first({spk: sum(rate_of[opk] for opk in opks) for spk, opks in members.items()}, cores)
    return {opk: core_of_spk[spk] for spk, opks in members.items() for opk in opks}


def _optimised(members: Mapping[Spk, list[Opk]], rate_of: Mapping[Opk, float], cores: int) -> dict[Opk, int]:
    """Find the least cap under which best-fit decreasing places everything; section 3.3.2, steps 1-3."""
    total = sum(rate_of.values())
    low = max(total / cores, *rate_of.values())
    unit = next(iter(rate_of.values()))
    if all(rate == unit for rate in rate_of.values()):
        low = math.ceil(low / unit * (1 - _SLACK)) * unit  # the paper's step 1: sensors / cores, rounded up
    found = _fit(members, rate_of, cores, low)
    if found is not None:
        return found
    # Not heavier than what largest-first reaches SPK by SPK or OPK by OPK: a method that cuts must not lose to either.
    fallbacks = [_basic(members, rate_of, cores), _largest_first(rate_of, cores)]
    best = min(fallbacks, key=lambda core_of: _heaviest(core_of, rate_of, cores))
    high = _heaviest(best, rate_of, cores)
    cap = high
    for _ in range(_HALVINGS):
        found = _fit(members, rate_of, cores, cap)
        if found is None:
            low = cap
        else:
            best, high = found, min(cap, _heaviest(found, rate_of, cores))
        if high - low <= high * _SLACK:
            break
        cap = (low + high) / 2
    return best


def _fit(
    members: Mapping[Spk, list[Opk]], rate_of: Mapping[Opk, float], cores: int, cap: float
) -> dict[Opk, int] | None:
    """Place whole SPKs, largest first, each where least room is left over; cut those above the cap. None = no room."""
    cap *= 1 + _SLACK
    core_of: dict[Opk, int] = {}
    load_of = {spk: sum(rate_of[opk] for opk in opks) for spk, opks in members.items()}
    room = [(cap, core) for core in range(cores)]  # ascending by room left
    for spk in sorted(members, key=lambda item: -load_of[item]):
        if load_of[spk] <= cap:
            place = bisect_left(room, (load_of[spk], -1))
            if place == len(room):
                return None
            left, core = room.pop(place)
            insort(room, (left - load_of[spk], core))
            core_of.update(dict.fromkeys(members[spk], core))
            continue
        # A cut SPK fills one core after the other, so that it touches few of them and few runs are merged.
        pending = sorted(members[spk], key=lambda opk: -rate_of[opk])
        while pending:
            left, core = room.pop()
            kept = []
            for opk in pending:
                if rate_of[opk] <= left:
                    left -= rate_of[opk]
                    core_of[opk] = core
                else:
                    kept.append(opk)
            insort(room, (left, core))
            if len(kept) == len(pending):
                return None
            pending = kept
    return core_of


def _heaviest(core_of: Mapping[Opk, int], rate_of: Mapping[Opk, float], cores: int) -> float:
    loads = [0.0] * cores
    for opk, core in core_of.items():
        loads[core] += rate_of[opk]
    return max(loads)


def _measured(
    core_of: dict[Opk, int],
    spk_of: Mapping[Opk, Spk],
    rate_of: Mapping[Opk, float],
    cores: int,
    *,
    merge_all: bool,
) -> Assignment[Opk, Spk]:
    total = sum(rate_of.values())
    cores_of: dict[Spk, set[int]] = {}
    for opk, core in core_of.items():
        cores_of.setdefault(spk_of[opk], set()).add(core)
    merged = {spk: cores for spk, used in cores_of.items() if merge_all or len(used) > 1}
    share = sum(rate_of[opk] for opk, spk in spk_of.items() if spk in merged) / total
    return Assignment(core_of, merged, _heaviest(core_of, rate_of, cores) / total, share)
