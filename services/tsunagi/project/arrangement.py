"""Divides the sensors that were found into edges and groups, and says how long a step is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tsunagi.project.fleet import SEPARATORS, Series, areas_of, edges_of, usual_interval_s


class Arrangement(NamedTuple):
    """On which edge and in which group each sensor is, by name, and how long a step is.

    Attributes:
        interval_s: the usual time between two readings of a sensor, in seconds.
        window: readings of a sensor in a step.
        grouped_by: what divides sensors into groups, as the screen says it.
    """

    edge_of: dict[str, str]
    group_of: dict[str, str]
    interval_s: float
    window: int
    grouped_by: str

    @property
    def step_s(self) -> float:
        """Length of a step in seconds."""
        return self.window * self.interval_s


class Division(NamedTuple):
    """A way to divide sensors.

    Attributes:
        title: by what they are divided.
        part_of: the part in which each sensor is, by the sensor's name.
    """

    title: str
    part_of: dict[str, str]


def arrange(series: Sequence[Series], edges: int | None = None) -> Arrangement:
    """Return the arrangement that topics, names and times suggest.

    Args:
        edges: how many edges there are; None = one for each area of the plant.
    """
    proposed = divisions(series)[0]
    interval_s = usual_interval_s(series)
    window = max(1, round(1 / interval_s))  # a step is a second at least
    return Arrangement(edges_of(proposed.part_of, edges), proposed.part_of, interval_s, window, proposed.title)


def divisions(series: Sequence[Series]) -> list[Division]:
    """Return ways to divide sensors that differ from each other. The first one is what `arrange` proposes."""
    areas = areas_of(series)
    found: dict[frozenset[frozenset[str]], Division] = {}
    for division in [
        *_by_topic(series),
        *_by_name(series),
        Division("none: all are in one", dict.fromkeys(areas, "plant")),
    ]:
        found.setdefault(_parts(division.part_of), division)
    alike = found.pop(_parts(areas), None)
    if alike is not None and alike.part_of == areas:
        return [alike, *found.values()]
    return [Division("what topics and names suggest", areas), *found.values()]


def _by_topic(series: Sequence[Series]) -> Iterator[Division]:
    for place in range(min((len(item.levels) for item in series), default=0)):
        division = Division(f"level {place + 1} of topics", {item.name: item.levels[place] for item in series})
        if _divides(division):
            yield division


def _by_name(series: Sequence[Series]) -> Iterator[Division]:
    for separators in SEPARATORS:
        parts = {item.name: re.split(separators, item.name) for item in series}
        shortest = min(map(len, parts.values()), default=0)
        places = [(f"part {place + 1} of names", place) for place in range(shortest)]
        made = [
            Division(title, {name: of[place] for name, of in parts.items()})
            for title, place in [*places, ("last part of names", -1)]
        ]
        if shortest > 1:
            yield from filter(_divides, made)
            return


def _divides(division: Division) -> bool:
    """Return whether there are several parts with names, and sensors that share one."""
    parts = set(division.part_of.values())
    return 1 < len(parts) < len(division.part_of) and all(parts)


def _parts(part_of: dict[str, str]) -> frozenset[frozenset[str]]:
    """Return the sensors of each part."""
    members: dict[str, set[str]] = {}
    for name, part in part_of.items():
        members.setdefault(part, set()).add(name)
    return frozenset(map(frozenset, members.values()))
