"""The fleet and the failures of the paper's experiments (Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 5.1).

The paper says: 20 sensors an edge, 50 a slot, variances 1, strong correlation inside an edge, weak across, strong
across for some; 2,880 tuples, windows of 10 that slide by 2; an edge fails with probability r_f a unit of time and is
back t_f units later. It gives no numbers for "strong", "weak" and "some", and none for the correlation in time. Taken
here: (eps .25, delta .9) asks for a variance of .0231, so a value can be told from others only if "strong" is above
.977; it is .985, "weak" .1. A quarter of each edge's sensors stand in another edge's area: these are the "some".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

EDGE, SLOT = 20, 50
WINDOW, SLIDE = 10, 2
UNIT_S = 0.1
EPS, DELTA = 0.25, 0.9
CAP = 150
"""Sensors of a slot and its helpers together, at most."""
WEAK, NOISE = 0.1, 0.015
"""Correlation across areas; what a sensor shares with none: 1 - NOISE is the correlation inside an area."""
STRAYS = EDGE // 4
PERSISTENCE = 0.9
"""Correlation of neighbouring steps: Sigma''_AB = PERSISTENCE Sigma."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Fleet:
    """n sensors.

    Attributes:
        correlation: float64[n, n]: Sigma, since all variances are 1.
        edges: intp[n]: each sensor's edge.
    """

    correlation: Floats
    edges: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def slots(self) -> int:
        """How many slots of `SLOT` sensors."""
        return max(1, len(self) // SLOT)


@dataclass(frozen=True)
class Scenario:
    """How edges fail: the paper's r_f and t_f, and for how long it is watched."""

    fail: float = 0.01
    down: int = 10
    units: int = 2880

    @property
    def steps(self) -> int:
        """Steps of the gateway: one a slide."""
        return self.units // SLIDE


def make_fleet(n: int, seed: int) -> Fleet:
    """Return a fleet.

    Raises:
        ValueError: n does not fill edges and slots.
    """
    if n < SLOT or n % EDGE or n % SLOT:
        raise ValueError(f"sensors: found {n}, expected a multiple of {np.lcm(EDGE, SLOT)}")
    draw = np.random.default_rng(seed)
    edges = np.arange(n) // EDGE
    places = draw.permuted(np.arange(n).reshape(-1, EDGE), axis=1)[:, :STRAYS]
    strays = draw.permutation(places.ravel())
    areas = edges.copy()
    areas[strays] = np.roll(edges[strays], 1)
    correlation = np.full((n, n), WEAK)
    correlation[areas[:, None] == areas] = 1.0 - NOISE
    np.fill_diagonal(correlation, 1.0)
    return Fleet(correlation, edges)


def gaussian(correlation: Floats) -> Model:
    """Return the model of these sensors: F = PERSISTENCE I, so that Q = (1 - PERSISTENCE^2) Sigma."""
    n = len(correlation)
    names = tuple(f"s{place}" for place in range(n))
    zeros = np.zeros(n)
    noise = (1 - PERSISTENCE**2) * correlation
    return Model(names, zeros, zeros + 1, np.full(n, PERSISTENCE), noise, correlation, zeros)


def joint(correlation: Floats) -> Floats:
    """Return Sigma'' of the paper, float64[2n, 2n]."""
    cross = PERSISTENCE * correlation
    return np.block([[correlation, cross], [cross, correlation]])


def draw_readings(fleet: Fleet, steps: int, seed: int) -> Floats:
    """Return float64[steps, n]: what would be read, less its mean, which the model knows."""
    draw = np.random.default_rng((seed, 1))
    shocks = draw.normal(size=(steps, len(fleet))) @ np.linalg.cholesky(fleet.correlation).T
    values = np.empty_like(shocks)
    values[0] = shocks[0]
    for step in range(1, steps):
        values[step] = PERSISTENCE * values[step - 1] + np.sqrt(1 - PERSISTENCE**2) * shocks[step]
    return values


def draw_outages(fleet: Fleet, scenario: Scenario, seed: int) -> Flags:
    """Return bool[steps, edges]: which edges are down when a step closes. All live at first."""
    draw = np.random.default_rng((seed, 2))
    left = np.zeros(int(fleet.edges.max()) + 1, dtype=np.intp)
    found = np.zeros((scenario.steps, len(left)), dtype=bool)
    for unit in range(scenario.steps * SLIDE):
        left = np.maximum(left - 1, 0)
        left[(left == 0) & (draw.random(len(left)) < scenario.fail)] = scenario.down
        if unit % SLIDE == SLIDE - 1:
            found[unit // SLIDE] = left > 0
    return found


def responses(slot_s: Floats) -> Floats:
    """Return float64[steps], seconds from the oldest reading of a window to its step's output.

    Args:
        slot_s: float64[steps, slots], what each slot takes for each step. Slots work side by side, each on its steps
            one after the other; a slot that takes longer than a slide falls behind (the paper's t_o - t_i).
    """
    closes = np.arange(1, len(slot_s) + 1) * SLIDE * UNIT_S
    done = np.zeros(slot_s.shape[1])
    found = np.empty(len(slot_s))
    for step, at in enumerate(closes):
        done = np.maximum(done, at) + slot_s[step]
        found[step] = done.max() - at
    return found + WINDOW * UNIT_S
