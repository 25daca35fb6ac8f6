"""P-SORT: decides which core works on which sensor, so that results come out in time order where that is needed.

OPK (operator partition key, here the sensor): rows of different OPKs may be processed on different cores. SPK (sorting
partition key, here the group of the sensors table): results are in time order within one SPK. A core that holds a whole
SPK orders it alone; an SPK that is cut over several cores must be merged afterwards. Source: Katsunuma, Imaki,
Nishizawa, Fujiwara, DEIM 2010, sections 3.2 (basic), 3.3 (optimised), 3.3.4 (loads that differ), figure 8, table 1.
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

_SLACK = 1e-9
"""Two loads count as equal if they differ by less than this share: they are sums of floating-point rates."""
_HALVINGS = 12
"""Most caps that are tried: two are given, and then the interval between them is halved, down to a thousandth of it."""


@dataclass(frozen=True, slots=True)
class Assignment(Generic[Opk, Spk]):
    """Which core works on what.

    Attributes:
        core_of: the core that runs the queries of an OPK, 0 <= core < cores.
        merge_core_of: the core that merges a cut SPK; other SPKs are missing. It is always `cores`, one more than
            process.
        max_load: share of all rows on the busiest core, 0..1 (table 1, first row).
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
    """Return an assignment of every OPK to a core.

    Args:
        spk_of: the attribute table, OPK -> SPK.
        cores: number of cores that process; one more core merges.
        rates: rows a second of each OPK, in any unit; None means that all are equal. An OPK that is missing has the
            rate 1.
        method: `basic`: each SPK is whole on one core; the largest comes first, to the least loaded core. `optimised`:
            whole SPKs are placed best-fit decreasing under the least possible cap; an SPK above the cap is cut, and so
            is one for which no core has room (which never happens in the paper's table). `full`: OPKs are spread evenly
            and everything is merged, which is what data parallelism does without P-SORT.
        handing_on: cost for a core to hand a row of a cut SPK on to the merge, as a share of the cost of processing it.
            With it, cores that hand rows on get fewer rows if others have room; the paper only counts rows (0).

    Raises:
        ValueError: there are no cores, the table is empty, or a rate is not a positive number.
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
    """Place new SPKs without moving one that has a core: a move would need a barrier to keep the order.

    Args:
        core_of: the core of each SPK that is placed already.
        load_of: rows a second of all SPKs, old and new.

    Returns:
        The core of every SPK in `load_of`.
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
    """Longest processing time first: each item goes to the core that has least so far."""
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
    # The cap is not above what largest-first reaches by SPK or by OPK: a method that cuts must not be worse.
    whole, spread = _basic(members, rate_of, cores), _largest_first(rate_of, cores)
    uncut = _heaviest(whole, rate_of, cores)
    best = min(whole, spread, key=lambda core_of: _heaviest(core_of, rate_of, cores))
    high = _heaviest(best, rate_of, cores)
    caps = [low, high]  # first the paper's cap, then the one that is to be beaten, then caps in between
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
        return whole  # without a gain nothing is merged
    if best is spread:  # everything is cut: keep whole what can be
        more = 1
        while more < len(members) and best is spread:
            best = _fit(members, rate_of, cores, high, more) or spread
            more += max(1, len(members) // 16)
    return best


def _fit(
    members: Mapping[Spk, list[Opk]], rate_of: Mapping[Opk, float], cores: int, cap: float, more: int = 0
) -> dict[Opk, int] | None:
    """Place whole SPKs, largest first, each where least room is left; cut those above the cap and those without room.

    What is cut comes last and fills the room that whole SPKs leave. Among the whole ones the small ones come last, so
    that little more is merged than must be.

    Args:
        more: this many of the smallest SPKs are cut too, which leaves more ways to fill the cores.

    Returns:
        The assignment; or None if there is no room for an OPK.
    """
    cap *= 1 + _SLACK
    core_of: dict[Opk, int] = {}
    load_of = {spk: sum(rate_of[opk] for opk in opks) for spk, opks in members.items()}
    room = [(cap, core) for core in range(cores)]  # ascending by the room that is left
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
    """Fill one core after the other, so that a cut SPK is on few cores and few runs are merged."""
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
    """Give the OPKs of cut SPKs, largest first, to the core with most room: more runs, but it fits more often."""
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
    """Move OPKs of cut SPKs from the busiest cores, which also hand rows on, to the least busy ones.

    Neither the greatest load in rows nor the merged share grows by this, only the number of runs.
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
    """Return the cores that hold OPKs of each SPK; more than one means that the SPK is cut."""
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
