"""The input of the experiments: a curve with bursts, made by hand as the paper's, and curves like it for the past.

Minutes are the paper's: a TimeSlot has five. The system runs `speed` times as fast, by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Floats

BASE = 1000.0
"""Tuples/s between the bursts."""
MINUTE_S = 60.0
_GRID = 60
"""Points in a span that a mean is taken over; the curve is made of straight lines minutes long."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Minutes at which it rises, is at its height for the first and the last time, and is over; tuples/s at most."""

    rises: float
    high: float
    falls: float
    over: float
    rate: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Arrival rates over time: straight lines up and down, `BASE` in between."""

    bursts: tuple[Burst, ...]
    minutes: float

    def at(self, minute: float) -> float:
        """Return the rate; before the beginning and after the end as there."""
        return float(self.rates(np.array([minute]))[0])

    def rates(self, minutes: Floats) -> Floats:
        """Return the rates at some times."""
        found = np.full(minutes.shape, BASE)
        for burst in self.bursts:
            line = (burst.rises, burst.high, burst.falls, burst.over)
            height = np.interp(minutes, line, (0.0, 1.0, 1.0, 0.0), left=0.0, right=0.0)
            found += (burst.rate - BASE) * height
        return found

    def means(self, first: float, width: float, count: int) -> Floats:
        """Return the mean rates of spans, `width` minutes each, from a minute on."""
        offsets = (np.arange(_GRID) + 0.5) / _GRID * width
        starts = first + width * np.arange(count)
        return np.asarray(self.rates(starts[:, None] + offsets).mean(axis=1))

    def steps(self, step_s: float) -> Floats:
        """Return the mean rates of the whole curve in steps of so many of the paper's seconds."""
        width = step_s / MINUTE_S
        return self.means(0.0, width, round(self.minutes / width))


PAPER = Curve(
    (
        Burst(5.0, 20.0, 24.0, 30.0, 2000.0),
        Burst(35.0, 50.0, 54.0, 60.0, 2300.0),
        Burst(66.0, 69.0, 69.0, 72.0, 2900.0),
    ),
    80.0,
)
"""Two bursts that rise over several TimeSlots, and the last one: the highest, up and down again in about one."""

SHORT = Curve((Burst(3.0, 13.0, 16.0, 20.0, 2000.0), Burst(26.0, 29.0, 29.0, 32.0, 2900.0)), 40.0)
"""The same with one burst before the last, to see that all of it runs."""


def like(curve: Curve, count: int, seed: int = 1) -> list[Curve]:
    """Draw curves of the same length with as many bursts, of other times and heights."""
    draw = np.random.default_rng(seed)
    length = curve.minutes / len(curve.bursts)
    found = []
    for _ in range(count):
        bursts = []
        for number in range(len(curve.bursts)):
            parts = draw.uniform((0.0, 0.1, 0.0, 0.1), (0.15, 0.5, 0.15, 0.2)) * length
            rises, high, falls, over = (float(minute) for minute in number * length + np.cumsum(parts))
            bursts.append(Burst(rises, high, falls, over, float(draw.uniform(1.6, 2.9)) * BASE))
        found.append(Curve(tuple(bursts), curve.minutes))
    return found
