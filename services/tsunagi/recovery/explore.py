"""What eps, delta, helpers and slots cost and what they give, before they are changed: `tsunagi recovery explore`.

Edges fail at random as in section 5.1 of Takao et al. (DEIM 2023): each with probability `fail` at each step, for
`steps` steps. Whether a lost value meets (eps, delta) depends only on which sensors are read (equation (7)) and on how
long ago it was read itself. What is met in a long outage, when the past has been forgotten, is met in an outage of any
length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tsunagi.installation import missing
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.helpers import best_variance, choose_helpers, persistence_share, steps_within
from tsunagi.recovery.model import Model, half_width
from tsunagi.recovery.numbering import numbered
from tsunagi.recovery.partition import partition
from tsunagi.runtime.columns import Floats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUE_BYTES = 16
"""Bytes of one helper's value in a TupleBatch: sensor, value and count."""
TIMED_STEPS = 5
"""Number of steps of each scenario whose time is measured."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """How edges fail.

    Attributes:
        fail: probability that a living edge fails at a step (r_f in the paper).
        steps: length of an outage in steps (t_f in the paper).
        draws: number of sets of dead edges that are tried.
        seed: seed of these draws.
    """

    fail: float = 0.01
    steps: int = 10
    draws: int = 30
    seed: int = 1

    def dead(self, edges: int) -> Iterator[npt.NDArray[np.intp]]:
        """Yield sets of dead edges; an empty set is left out, since it would show nothing."""
        share = self.fail * self.steps / (1 + self.fail * self.steps)
        draw = np.random.default_rng(self.seed)
        for _ in range(self.draws):
            dead = np.flatnonzero(draw.random(edges) < share)
            yield dead if len(dead) else draw.integers(0, edges, 1)


@dataclass(frozen=True, slots=True)
class ExploredChoice:
    """The cost and the benefit of one choice.

    Attributes:
        slots, cap, eps, delta: the choice; cap is the most helpers of a slot.
        meanwhile: share of lost values that meet (eps, delta), as the mean over an outage of the scenario's length; it
            is an approximation (`helpers.steps_within`).
        satisfied: the same share in a long outage; `reachable`: the share that could if everything alive were read.
        helpers: number of helpers of all slots together, on average.
        helper_bytes: bytes that edges send for them at each step.
        step_ms: CPU time of a step, all slots together; `worst_slot_ms`: of the slowest slot, which must fit into a
            step.
    """

    slots: int
    cap: int
    eps: float
    delta: float
    meanwhile: float
    satisfied: float
    reachable: float
    helpers: float
    helper_bytes: float
    step_ms: float
    worst_slot_ms: float


def explore(
    model: Model,
    edge_of: Sequence[str],
    *,
    slots: Sequence[int] = (1,),
    caps: Sequence[int] = (0, 20, 100),
    eps: Sequence[float] = (0.25, 0.5, 1.0),
    delta: float = 0.9,
    scenario: Scenario | None = None,
) -> list[ExploredChoice]:
    """Try every choice of slots, cap and eps.

    Args:
        edge_of: the edge of each sensor of the model.

    Raises:
        ModelError: an argument is out of range.
    """
    n = len(model)
    if len(edge_of) != n:
        raise ModelError(f"explore: found {len(edge_of)} edges for the model's {n} sensors")
    wrong = [count for count in slots if not 1 <= count <= n]
    if wrong:
        raise ModelError(f"explore: slots: found {wrong[0]}, expected 1 to the model's {n} sensors")
    scenario = scenario or Scenario()
    edges, names = numbered(edge_of)
    lost = [np.flatnonzero(np.isin(edges, dead)) for dead in scenario.dead(len(names))]
    size = np.sqrt(np.diag(model.prior))
    correlation = model.prior / np.outer(size, size)
    precision = np.asarray(np.linalg.inv(model.prior + 1e-10 * np.eye(n)), dtype=np.float64)
    multiple = half_width(delta) * model.inflation(delta)
    rows = []
    for count in slots:
        of = partition(correlation, edges, count)
        members = [np.flatnonzero(of == slot) for slot in range(count)]
        taken = _time(model, members, lost)
        for cap in caps:
            for tolerated in eps:
                threshold = (tolerated / multiple) ** 2
                meanwhile, satisfied, reachable, values, helpers = _tried(
                    model, members, lost, threshold, cap, precision, scenario.steps
                )
                rows.append(
                    ExploredChoice(
                        slots=count,
                        cap=cap,
                        eps=tolerated,
                        delta=delta,
                        meanwhile=meanwhile / values,
                        satisfied=satisfied / values,
                        reachable=reachable / values,
                        helpers=helpers / len(lost),
                        helper_bytes=VALUE_BYTES * helpers / len(lost),
                        step_ms=1000 * float(taken.sum(axis=1).mean()),
                        worst_slot_ms=1000 * float(taken.max(axis=1).mean()),
                    )
                )
    return rows


def _tried(
    model: Model,
    members: Sequence[npt.NDArray[np.intp]],
    lost: Sequence[npt.NDArray[np.intp]],
    threshold: float,
    cap: int,
    precision: Floats,
    steps: int,
) -> tuple[float, int, int, int, int]:
    """Return counts over all draws: values satisfied meanwhile, for good, and reachable; values lost; helpers."""
    meanwhile, share = 0.0, persistence_share(model)
    satisfied = reachable = values = helpers = 0
    for gone in lost:
        best = best_variance(precision, gone, gone)
        reachable += int((best <= threshold).sum())
        values += len(gone)
        for group in members:
            found = choose_helpers(model.prior, group, gone, threshold, cap=cap, precision=precision)
            satisfied += int(found.satisfied.sum())
            within = steps_within(found.variance, threshold, share[found.targets])
            meanwhile += float(np.minimum(within, steps).sum()) / steps
            helpers += len(found.chosen)
    return meanwhile, satisfied, reachable, values, helpers


def _time(model: Model, members: Sequence[npt.NDArray[np.intp]], lost: Sequence[npt.NDArray[np.intp]]) -> Floats:
    """Return the seconds of a step, float64[draws, slots], while outages last."""
    result = np.zeros((min(len(lost), TIMED_STEPS), len(members)))
    for slot, group in enumerate(members):
        part = model.select([model.names[place] for place in group])
        recovery = Recovery(part)
        for row, gone in enumerate(lost[:TIMED_STEPS]):
            values = part.mean.copy()
            values[np.isin(group, gone)] = np.nan
            recovery.step(values)
            begun = time.perf_counter()
            recovery.step(values)
            result[row, slot] = time.perf_counter() - begun
    return result


def draw(rows: Sequence[ExploredChoice], path: Path) -> None:
    """Draw the share of lost values that is satisfied, over its cost, and save the picture.

    Raises:
        ModelError: the package matplotlib is not installed (`pip install 'tsunagi-stream[report]'`).
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra of the package
    except ImportError:
        raise ModelError(f"explore: --picture needs matplotlib: {missing('report')}") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for eps in sorted({row.eps for row in rows}):
        mine = [row for row in rows if row.eps == eps]
        left.scatter([row.helper_bytes for row in mine], [row.satisfied for row in mine], s=18, label=f"eps {eps:g}")
        right.scatter([row.worst_slot_ms for row in mine], [row.satisfied for row in mine], s=18)
    left.set_xlabel("helpers, bytes a step")
    right.set_xlabel("slowest slot, ms a step")
    left.set_ylabel(f"lost values within the bound, delta {rows[0].delta:g}")
    left.set_ylim(0, 1.02)
    left.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
