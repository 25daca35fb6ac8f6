"""What was found of a fleet: its sensors, how often they send, in which range, on which edges."""

from __future__ import annotations

import math
import re
import statistics
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tsunagi.project.units import unit_in_name
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.naming import edge_fault
from tsunagi.runtime.tables.block import ReadingBlock

Ints = npt.NDArray[np.int64]

_USUAL_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Intervals that sensors usually have, in seconds."""
_SLOW = 1.5
"""A sensor whose interval is longer than this many usual ones reports seldom, or on change."""
_HOLDS = 3
"""A reading of such a sensor holds for this many of its own intervals."""
_INTERVALS = 1000
"""The interval of a sensor of a file is the median of about so many, from the first."""
_NEVER_US = np.iinfo(np.int64).min
"""The time of a sensor's last reading while it has none."""
SEPARATORS = (r"[./:]", r"_", r"[- ]")
"""What stands between the parts of a sensor's name, the strongest first."""


@dataclass(slots=True)
class Series:
    """A sensor, and what it has sent.

    Attributes:
        levels: the levels of its topic; () if there is none.
        times_us, values: its readings, in the order in which they came; of a sensor of a file they are not kept.
        file_interval_s: of a sensor of a file, what `interval_s` is.
        units: the units that messages tell.
    """

    name: str
    levels: tuple[str, ...] = ()
    times_us: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    count: int = 0
    least: float = math.inf
    greatest: float = -math.inf
    file_interval_s: float | None = None
    units: set[str] = field(default_factory=set)

    def add(self, time_us: int, value: float) -> None:
        """Take in a reading."""
        self.times_us.append(time_us)
        self.values.append(value)
        self.count += 1
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)

    @property
    def interval_s(self) -> float | None:
        """The median time between two of its readings, in seconds; None if there are not two."""
        times = sorted(set(self.times_us))
        if len(times) < 2:
            return self.file_interval_s
        return statistics.median(later - earlier for earlier, later in pairwise(times)) / 1e6

    @property
    def unit(self) -> str:
        """The unit that its messages tell, or else its name; "" if there is none, or if they contradict each other."""
        if not self.units:
            return unit_in_name(self.name)
        return next(iter(self.units)) if len(self.units) == 1 else ""


class TableSeries:
    """Takes in the readings of a table, and says what is known of each sensor.

    Attributes:
        backwards: how many readings have an earlier time than a reading before them. Edges need the order of time.
    """

    def __init__(self) -> None:
        self.backwards = 0
        self._newest_us: int | None = None
        self._count: Ints = np.zeros(0, dtype=np.int64)
        self._least: Floats = np.zeros(0)
        self._greatest: Floats = np.zeros(0)
        self._last_us: Ints = np.zeros(0, dtype=np.int64)
        self._apart: list[list[Ints]] = []

    def add(self, block: ReadingBlock, sensors: int) -> None:
        """Take in readings; `sensors` is how many there are so far."""
        more = sensors - len(self._count)
        self._count = np.concatenate([self._count, np.zeros(more, dtype=np.int64)])
        self._least = np.concatenate([self._least, np.full(more, np.inf)])
        self._greatest = np.concatenate([self._greatest, np.full(more, -np.inf)])
        self._last_us = np.concatenate([self._last_us, np.full(more, _NEVER_US)])
        self._apart += [[] for _ in range(more)]
        if not len(block.rows):
            return
        before = block.times_us[0] if self._newest_us is None else self._newest_us
        newest = np.maximum.accumulate(np.concatenate([[before], block.times_us]))
        self.backwards += int((block.times_us < newest[:-1]).sum())
        self._newest_us = int(newest[-1])
        finite = block.chosen(np.isfinite(block.values))
        self._count += np.bincount(finite.sensors, minlength=sensors)
        np.minimum.at(self._least, finite.sensors, finite.values)
        np.maximum.at(self._greatest, finite.sensors, finite.values)
        order = np.lexsort((finite.times_us, finite.sensors))
        bounds = np.flatnonzero(np.diff(finite.sensors[order])) + 1
        for part in np.split(order, bounds) if len(order) else ():
            sensor, times = int(finite.sensors[part[0]]), finite.times_us[part]
            if self._last_us[sensor] != _NEVER_US:
                times = np.concatenate([self._last_us[sensor : sensor + 1], times])
            self._last_us[sensor] = times[-1]
            known = self._apart[sensor]
            if sum(map(len, known)) < _INTERVALS:
                different: Ints = np.unique(times)
                known.append(different[1:] - different[:-1])

    def series(self, names: Sequence[str]) -> dict[str, Series]:
        """Return what is known of the sensors, by name."""
        found: dict[str, Series] = {}
        for number, name in enumerate(names):
            apart = np.concatenate([np.zeros(0, dtype=np.int64), *self._apart[number]])
            found[name] = Series(
                name,
                count=int(self._count[number]),
                least=float(self._least[number]),
                greatest=float(self._greatest[number]),
                file_interval_s=float(np.median(apart)) / 1e6 if len(apart) else None,
            )
        return found


def usual_interval_s(series: Sequence[Series]) -> float:
    """Return the interval that most sensors have, as people would call it; 1 s if none has sent twice."""
    found = [item.interval_s for item in series if item.interval_s]
    if not found:
        return 1.0
    middle = statistics.median_low(found)
    return float(min(_USUAL_S, key=lambda usual: abs(usual - middle) / usual))


def held_s(series: Series, interval_s: float) -> float | None:
    """Return how long a sensor's reading should hold, in seconds; None = for a window, as others do."""
    own = series.interval_s
    if own is None or own <= _SLOW * interval_s:
        return None
    return float(round(_HOLDS * own, 1))


def areas_of(series: Sequence[Series]) -> dict[str, str]:
    """Return the part of the plant in which each sensor is, by its topic or name; all are in one if nothing tells.

    Of topics with one first level it is the first other level in which they differ, if sensors share it; else that
    first level. Of names it is the first part, if sensors share it.
    """
    if not all(item.levels for item in series):
        for separators in SEPARATORS:
            found = _first_shared({item.name: re.split(separators, item.name) for item in series})
            if found:
                return found
        return {item.name: "plant" for item in series}
    alike: dict[str, dict[str, tuple[str, ...]]] = {}
    for item in series:
        alike.setdefault(item.levels[0], {})[item.name] = item.levels
    areas: dict[str, str] = {}
    for first, some in alike.items():
        areas |= _first_shared(some) or dict.fromkeys(some, first)
    return {item.name: areas[item.name] for item in series}


def _first_shared(parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the first part in which names differ, and which some of them share, for each name; {} = there is none."""
    for place in range(min(map(len, parts.values()), default=0)):
        found = {name: of[place] for name, of in parts.items()}
        if 1 < len(set(found.values())) < len(found) and all(found.values()):
            return found
    return {}


def edges_of(areas: Mapping[str, str], count: int | None = None) -> dict[str, str]:
    """Return an edge for each sensor: one for each area, or so many in all.

    Args:
        count: how many edges there are; sensors take turns. None = one for each area.
    """
    if count is not None:
        return {name: f"edge-{place % count + 1}" for place, name in enumerate(areas)}
    named: dict[str, str] = {}
    for area in dict.fromkeys(areas.values()):
        if not edge_fault(area) and area.lower() not in map(str.lower, named.values()):
            named[area] = area
            continue
        plain = unicodedata.normalize("NFKD", area.lower()).encode("ascii", "ignore").decode()
        name = re.sub(r"[^a-z0-9_.-]+", "-", plain).strip("-.")[:90]
        if not name or edge_fault(name):
            name = f"edge-{name}".rstrip("-") if name else "edge"
        while name in named.values():
            name += "-2"
        named[area] = name
    return {name: named[area] for name, area in areas.items()}


def own_topic(pattern: str, levels_of: Iterable[tuple[Sequence[str], str]]) -> str:
    """Return a pattern of topics by which each edge hears its own messages alone; the given one if there is none.

    Otherwise each edge would hear those of all others, too, so the cost would grow with edges times messages.

    Args:
        pattern: the pattern of all topics, with + and #.
        levels_of: the levels of the topic of each sensor, and its edge.
    """
    pairs = list(levels_of)
    levels = pattern.split("/")
    for place in range(min((len(given) for given, _ in pairs), default=0)):
        if not all(given[place] == edge for given, edge in pairs):
            continue
        if place < len(levels) and levels[place] == "+":
            return "/".join([*levels[:place], "{edge}", *levels[place + 1 :]])
        if levels[-1] == "#" and place >= len(levels) - 1:
            return "/".join([*levels[:-1], *["+"] * (place - len(levels) + 1), "{edge}", "#"])
    return pattern
