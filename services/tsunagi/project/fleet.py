"""What was found of a fleet: its sensors, how often they send, in which range, on which edges."""

from __future__ import annotations

import math
import re
import statistics
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import Floats
from tsunagi.runtime.naming import edge_fault

Ints = npt.NDArray[np.int64]

_USUAL_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Intervals that sensors usually have, in seconds."""
_SLOW = 1.5
"""A sensor whose interval is longer than this many usual ones reports seldom, or on change."""
_HOLDS = 3
"""A reading of such a sensor holds for this many of its own intervals."""
_SEPARATORS = (r"[./:]", r"_", r"[- ]")
"""What stands between the parts of a sensor's name, the strongest first."""


@dataclass(slots=True)
class Series:
    """A sensor, and what it has sent.

    Attributes:
        levels: the levels of its topic; () if there is none.
        times_us: the times of its readings, in the order in which they came; of a sensor of a file they are not kept.
        file_interval_s: of a sensor of a file, what `interval_s` is.
    """

    name: str
    levels: tuple[str, ...] = ()
    times_us: list[int] = field(default_factory=list)
    count: int = 0
    least: float = math.inf
    greatest: float = -math.inf
    file_interval_s: float | None = None

    @staticmethod
    def of_column(name: str, times_us: Ints, values: Floats) -> Series:
        """Return the sensor of a column of a file.

        Args:
            times_us: int64[rows], ascending.
            values: float64[rows]; NaN = no reading.
        """
        there = ~np.isnan(values)
        apart = np.diff(times_us[there])
        found = Series(name, count=int(there.sum()))
        if found.count:
            found.least, found.greatest = float(values[there].min()), float(values[there].max())
        if len(apart):
            found.file_interval_s = float(np.median(apart)) / 1e6
        return found

    def add(self, time_us: int, value: float) -> None:
        """Take in a reading."""
        self.times_us.append(time_us)
        self.count += 1
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)

    @property
    def interval_s(self) -> float | None:
        """The median time between two of its readings, in seconds; None if there are not two."""
        times = sorted(set(self.times_us))
        if len(times) < 2:
            return self.file_interval_s
        return statistics.median(later - earlier for earlier, later in pairwise(times)) / 1e6


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

    Of topics alike it is the first level in which they differ, if sensors share it; else the first level of all. Of
    names it is the first part, if sensors share it.
    """
    if not all(item.levels for item in series):
        for separators in _SEPARATORS:
            found = _first_shared({item.name: re.split(separators, item.name) for item in series})
            if found:
                return found
        return {item.name: "plant" for item in series}
    alike: dict[tuple[int, str], dict[str, tuple[str, ...]]] = {}
    for item in series:
        alike.setdefault((len(item.levels), item.levels[0]), {})[item.name] = item.levels
    areas: dict[str, str] = {}
    for (_, first), some in alike.items():
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
        plain = unicodedata.normalize("NFKD", area.lower()).encode("ascii", "ignore").decode()
        name = re.sub(r"[^a-z0-9_.-]+", "-", plain).strip("-.")[:90]
        if not name or edge_fault(name):
            name = f"edge-{name}".rstrip("-") if name else "edge"
        while name in named.values():
            name += "-2"
        named[area] = name
    return {name: named[area] for name, area in areas.items()}
