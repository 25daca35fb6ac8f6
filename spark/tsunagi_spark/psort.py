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
from collections.abc import Hashable, Mapping, Sequence
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
    spk_of: Mapping[Opk, Spk],
    cores: int,
    rates: Mapping[Opk, float] | None = None,
    method: Method = "optimised",
    *,
    handing_on: float = 0.0,
) -> Assignment[Opk, Spk]:
    """Assign every OPK to a core.

    Args:
        spk_of: the attribute table, OPK -> SPK.
        cores: cores that process; merging is done by one more.
        rates: rows a second of each OPK (any unit); None = all alike. An OPK that is not named has rate 1.
        method: `basic`: each SPK whole on one core, the largest first to the least loaded core. `optimised`: whole SPKs
            best-fit decreasing under the least cap that can be met; an SPK over the cap is cut, and one that finds no
            room beside the others (the paper's table never has one). `full`: OPKs spread
            evenly and everything merged, which is what data parallelism does without P-SORT.
        handing_on: what it costs a core to hand a row of a cut SPK on to the merge, in parts of what processing costs.
            With it, cores that hand on get fewer rows where others have room; the paper counts rows alone (0).

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
        if handing_on:
            core_of = _relieved(core_of, spk_of, rate_of, cores, handing_on)
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
    # Not heavier than what largest-first reaches SPK by SPK or OPK by OPK: a method that cuts must not lose to either.
    whole, spread = _basic(members, rate_of, cores), _largest_first(rate_of, cores)
    uncut = _heaviest(whole, rate_of, cores)
    best = min(whole, spread, key=lambda core_of: _heaviest(core_of, rate_of, cores))
    high = _heaviest(best, rate_of, cores)
    caps = [low, high]  # first what the paper tries first, then what is to be beaten, then between
    for _ in range(_HALVINGS):
        cap = caps.pop(0) if caps else (low + high) / 2
        found = _fit(members, rate_of, cores, cap)
        if found is None:
            low = cap
        else:
            best, high = found, min(cap, _heaviest(found, rate_of, cores))
        if high - low <= high * _SLACK:
            break
    if uncut <= high * (1 + _SLACK):
        return whole  # nothing is merged for nothing
    if best is spread:  # all cut: leave whole what can be
        more = 1
        while more < len(members) and best is spread:
            best = _fit(members, rate_of, cores, high, more) or spread
            more += max(1, len(members) // 16)
    return best


def _fit(
    members: Mapping[Spk, list[Opk]], rate_of: Mapping[Opk, float], cores: int, cap: float, more: int = 0
) -> dict[Opk, int] | None:
    """Place whole SPKs, largest first, each where least room is left over; cut what is above the cap or finds no room.

    What is cut comes last: it fills the room that whole SPKs leave over, and of these the small ones come last, so that
    little more is merged than must be.

    Args:
        more: so many of the smallest SPKs are cut too, which leaves more room to choose from.

    Returns:
        None: an OPK finds no room.
    """
    cap *= 1 + _SLACK
    core_of: dict[Opk, int] = {}
    load_of = {spk: sum(rate_of[opk] for opk in opks) for spk, opks in members.items()}
    room = [(cap, core) for core in range(cores)]  # ascending by room left
    cut = []
    for rank, spk in enumerate(sorted(members, key=lambda item: -load_of[item])):
        place = bisect_left(room, (load_of[spk], -1))
        if place == len(room) or rank >= len(members) - more:
            cut.append(spk)
            continue
        left, core = room.pop(place)
        insort(room, (left - load_of[spk], core))
        core_of.update(dict.fromkeys(members[spk], core))
    return _filled_in_turn(members, rate_of, core_of, cut, room) or _filled_evenly(members, rate_of, core_of, cut, room)


def _filled_in_turn(
    members: Mapping[Spk, list[Opk]],
    rate_of: Mapping[Opk, float],
    whole: Mapping[Opk, int],
    cut: Sequence[Spk],
    room: Sequence[tuple[float, int]],
) -> dict[Opk, int] | None:
    """Fill one core after the other, so that a cut SPK touches few of them and few runs are merged."""
    core_of, room = dict(whole), list(room)
    for spk in cut:
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


def _filled_evenly(
    members: Mapping[Spk, list[Opk]],
    rate_of: Mapping[Opk, float],
    whole: Mapping[Opk, int],
    cut: Sequence[Spk],
    room: Sequence[tuple[float, int]],
) -> dict[Opk, int] | None:
    """Give the OPKs of all that is cut, largest first, to the core with most room: more runs, fits more often."""
    core_of = dict(whole)
    heap = [(-left, core) for left, core in room]
    heapq.heapify(heap)
    for opk in sorted((opk for spk in cut for opk in members[spk]), key=lambda item: -rate_of[item]):
        left, core = heap[0]
        if rate_of[opk] > -left:
            return None
        heapq.heapreplace(heap, (left + rate_of[opk], core))
        core_of[opk] = core
    return core_of


def _relieved(
    core_of: Mapping[Opk, int],
    spk_of: Mapping[Opk, Spk],
    rate_of: Mapping[Opk, float],
    cores: int,
    handing_on: float,
) -> dict[Opk, int]:
    """Move OPKs of cut SPKs off the busiest cores, which hand rows on beside processing them, to those least busy.

    Neither the greatest load in rows nor what is merged grows by this, only the number of runs.
    """
    core_of = dict(core_of)
    used = _cores_of(core_of, spk_of)
    rows, work = [0.0] * cores, [0.0] * cores
    movable: list[list[Opk]] = [[] for _ in range(cores)]
    for opk in sorted(core_of, key=lambda item: -rate_of[item]):
        core, rate = core_of[opk], rate_of[opk]
        cut = len(used[spk_of[opk]]) > 1
        rows[core] += rate
        work[core] += rate * (1 + handing_on * cut)
        if cut:
            movable[core].append(opk)
    cap = max(rows) * (1 + _SLACK)
    for _ in range(4 * cores):
        busiest, idlest = work.index(max(work)), work.index(min(work))
        if not movable[busiest]:
            break
        opk = movable[busiest][-1]
        rate = rate_of[opk]
        cost = rate * (1 + handing_on)
        if work[idlest] + cost >= work[busiest] * (1 - _SLACK) or rows[idlest] + rate > cap:
            break
        movable[busiest].pop()
        insort(movable[idlest], opk, key=lambda item: -rate_of[item])
        core_of[opk] = idlest
        for core, sign in ((busiest, -1), (idlest, 1)):
            rows[core] += sign * rate
            work[core] += sign * cost
    return core_of


def _cores_of(core_of: Mapping[Opk, int], spk_of: Mapping[Opk, Spk]) -> dict[Spk, set[int]]:
    """Return the cores that hold OPKs of each SPK; more than one = the SPK is cut."""
    found: dict[Spk, set[int]] = {}
    for opk, core in core_of.items():
        found.setdefault(spk_of[opk], set()).add(core)
    return found


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
    merged = {spk: cores for spk, used in _cores_of(core_of, spk_of).items() if merge_all or len(used) > 1}
    share = sum(rate_of[opk] for opk, spk in spk_of.items() if spk in merged) / total
    return Assignment(core_of, merged, _heaviest(core_of, rate_of, cores) / total, share)
