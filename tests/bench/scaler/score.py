"""What workers cost: the paper's score, and what a provider would ask who counts begun hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tsunagi.runtime.columns import Floats


class Life(NamedTuple):
    """A worker's process: its type, and when it was there, seconds since the curve's beginning."""

    kind: str
    since_s: float
    until_s: float


def score(lives: Iterable[Life], prices: Mapping[str, float], hour_s: float, at_s: float) -> float:
    """Return the paper's score until a moment: what each worker costs an hour, times how long it has been there.

    It is there from its launch until its process has ended; before the curve begins nothing is counted. Types without
    a price cost nothing.
    """
    return sum(prices.get(life.kind, 0.0) * _used(life, at_s) / hour_s for life in lives)


def paid(lives: Iterable[Life], prices: Mapping[str, float], hour_s: float, at_s: float) -> float:
    """Return the same where begun hours are paid whole."""
    return sum(prices.get(life.kind, 0.0) * math.ceil(_used(life, at_s) / hour_s - 1e-9) for life in lives)


def _used(life: Life, at_s: float) -> float:
    return max(0.0, min(life.until_s, at_s) - max(life.since_s, 0.0))


def count(lives: Iterable[Life], kind: str, at_s: float) -> int:
    """Return how many workers of a type are there at a moment."""
    return sum(life.kind == kind and life.since_s <= at_s < life.until_s for life in lives)


def by_second(times: Floats, values: Floats, seconds: int) -> list[tuple[float, float, float]]:
    """Return mean, 99th percentile and maximum of the values of each second; NaN where there are none."""
    order = np.argsort(times, kind="stable")
    cuts = np.searchsorted(times[order], np.arange(1, seconds))
    rows = []
    for part in np.split(values[order], cuts):
        found = (part.mean(), np.percentile(part, 99), part.max()) if len(part) else (math.nan,) * 3
        rows.append((float(found[0]), float(found[1]), float(found[2])))
    return rows
