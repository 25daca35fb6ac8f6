"""Finds sensors whose readings move together, and makes groups of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from tsunagi.project.arrangement import Arrangement
from tsunagi.project.finding import FoundFleet
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.settings import ConfigError, TableSettings
from tsunagi.runtime.tables.block import Ints
from tsunagi.runtime.tables.files import open_table

_LEAST_STEPS = 20
"""Two sensors are compared only if both have readings in so many steps: fewer move together by chance."""
_MOST_STEPS = 2000
"""Steps that are compared, from the first reading on."""
_MOST_SENSORS = 3000
"""Most sensors that are compared. Each is compared with all others, so memory and time grow with their square."""
_APART = 0.3
"""Groups are joined while the mean of 1 - |r| between their sensors is at most this: they explain half the variance."""
_STEADY = 1e-9
"""Readings whose variance in the common steps is below this share of the variance in all are steady: nothing moves."""


class _Readings(NamedTuple):
    """Some readings: the place of each sensor, int64[m]; times in microseconds, int64[m]; values, float64[m]."""

    sensors: Ints
    times_us: Ints
    values: Floats


def group_by_correlation(found: FoundFleet, arranged: Arrangement) -> Arrangement:
    """Return an arrangement in which sensors whose readings move together are one group.

    The means of readings in each step are compared. Groups come of hierarchical clustering by 1 - |r|, with average
    linkage. A sensor that moves with no other one, or has too few steps in common with others, keeps its group.

    Raises:
        ConfigError: there are too many sensors.
    """
    if len(found.series) > _MOST_SENSORS:
        raise ConfigError(
            f"--group correlation: found {len(found.series):,} sensors, expected {_MOST_SENSORS:,} at most"
        )
    names = list(found.series)
    clusters = _clusters(_step_means(found, round(arranged.step_s * 1e6)))
    members = Counter(clusters)
    taken = set(arranged.group_of.values())
    free = (group for group in map("correlated-{}".format, itertools.count(1)) if group not in taken)
    name_of: dict[int, str] = {}
    group_of = dict(arranged.group_of)
    for name, number in sorted(zip(names, clusters, strict=True)):
        if members[number] > 1:
            if number not in name_of:
                name_of[number] = next(free)
            group_of[name] = name_of[number]
    alone = sum(members[number] == 1 for number in clusters)
    kept = f"; of {len(names)} sensors {alone} move with no other one: these keep the group that they had" * (alone > 0)
    return arranged._replace(group_of=group_of, grouped_by=f"readings that move together{kept}")


def _clusters(means: Floats) -> list[int]:
    """Return the number of the cluster in which each sensor is.

    Args:
        means: float64[steps, sensors]; NaN where a sensor has no reading in a step.
    """
    sensors = means.shape[1]
    if sensors < 2:
        return [0] * sensors
    distances = 1 - np.abs(correlations(means))
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    return [int(number) for number in fcluster(tree, _APART, "distance")]


@np.errstate(over="ignore", invalid="ignore")  # of numbers near the largest float nothing is known
def correlations(means: Floats) -> Floats:
    """Return r of each two sensors over the steps that both have, 0 where it is not known; float64[sensors, sensors].

    Args:
        means: float64[steps, sensors]; NaN where a sensor has no reading in a step.
    """
    there = np.isfinite(means)
    counts = np.maximum(there.sum(axis=0), 1)
    centred = np.where(there, means, 0)
    centred = np.where(there, centred - centred.sum(axis=0) / counts, 0)
    scale = np.sqrt((centred**2).sum(axis=0) / counts)
    values = centred / np.where(scale > 0, scale, 1)
    flags = there.astype(float)
    common = flags.T @ flags
    several = np.maximum(common, 1)
    mean = values.T @ flags / several  # of the first sensor, over the steps that the second one has, too
    variances = (values**2).T @ flags / several - mean**2
    covariances = values.T @ values / several - mean * mean.T
    known = (common >= _LEAST_STEPS) & (variances > _STEADY) & (variances.T > _STEADY)
    spread = np.sqrt(np.where(known, variances * variances.T, 1))
    return np.clip(np.where(known, covariances / spread, 0), -1, 1)


def _step_means(found: FoundFleet, step_us: int) -> Floats:
    """Return the mean of each sensor's readings in each step, float64[steps, sensors]; NaN where there are none."""
    sums = np.zeros((_MOST_STEPS, len(found.series)))
    counts = np.zeros((_MOST_STEPS, len(found.series)))
    first: int | None = None
    for some in _readings(found):
        if not len(some.times_us):
            continue
        first = int(some.times_us.min()) // step_us if first is None else first
        steps = some.times_us // step_us - first
        near = (steps >= 0) & (steps < _MOST_STEPS)
        if not near.any():
            break
        where = steps[near], some.sensors[near]
        np.add.at(sums, where, some.values[near])
        np.add.at(counts, where, 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _readings(found: FoundFleet) -> Iterator[_Readings]:
    """Yield the readings of all sensors; those of a file come in parts, in its order."""
    if "path" not in found.source:
        parts = [
            (np.full(len(item.times_us), place), np.array(item.times_us, dtype=np.int64), np.array(item.values))
            for place, item in enumerate(found.series.values())
        ]
        sensors, times_us, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        yield _Readings(sensors, times_us, values)
        return
    form = TableSettings.model_validate(found.source.get("table", {}))
    for block in open_table(Path(found.source["path"]), form).blocks():
        used = block.chosen(np.isfinite(block.values) & ~block.missing & ~block.estimated)
        yield _Readings(used.sensors, used.times_us, used.values)
