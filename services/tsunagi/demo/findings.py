"""What a run is judged against, and what the checker found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tsunagi.demo.truth import Truth
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Steps

VALUE_TOLERANCE = 1e-9
"""Share by which a measured value may differ from the CSV's mean: the checker sums in another order."""
_PROBLEMS = 50
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class World:
    """What the outputs are judged against.

    Attributes:
        truth: the windows of the CSV.
        modelled: ids of the sensors that the model knows.
        range_us: the range of q1 and q2.
        unknown_group: group of sensors that name none.
        restart_us: how long the process of a restarted edge may take until it reads its source.
        scale: float64[n], each sensor's standard deviation over the stream, its unit in NRMSE.
        delta: probability with which a bound must hold.
        undisturbed: nothing but the run's own kills and outages disturbed it: late batches, dead letters, changes of
            owner and bounds are judged too.
    """

    table: SensorTable
    truth: Truth
    steps: Steps
    modelled: frozenset[int]
    range_us: int
    unknown_group: str = "ungrouped"
    restart_us: int = 10_000_000
    scale: Floats = field(default_factory=lambda: np.empty(0))
    delta: float = 0.9
    undisturbed: bool = True

    def group(self, sensor: int) -> str:
        """Return a sensor's group, its SPK."""
        return self.table.sensors[sensor].group or self.unknown_group

    def back_us(self, started_us: int) -> int:
        """Return when an edge whose process was started at that time (0 = never) must have whole windows again."""
        return (started_us or 1 << 62) + self.restart_us + self.steps.window_us + self.steps.slide_us


@dataclass(slots=True)
class Findings:
    """What the checker found; `ok` is the verdict.

    Attributes:
        tuples_in: tuples in the slots' logs, repeats included.
        rows_out: rows of the results for the CSV's steps, after de-duplication; rows_outside: before and after those.
        late, dead: tuples that went to `late` and `dead-letters`.
        slow: tuples of `late` that came into the log after their steps had waited for them as long as they must.
        wrong: everything that is neither lost, doubled nor out of order, by kind.
    """

    tuples_in: int = 0
    rows_out: int = 0
    rows_outside: int = 0
    lost: int = 0
    duplicates: int = 0
    inversions: dict[str, int] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    not_sent: list[dict[str, object]] = field(default_factory=list)
    late: int = 0
    dead: int = 0
    slow: int = 0
    repeats: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Note what was wrong and where; the first ones are kept, all are counted."""
        if len(self.problems) < _PROBLEMS:
            self.problems.append(text)

    @property
    def ok(self) -> bool:
        """Nothing lost, doubled, out of order or wrong."""
        return not (self.lost or self.duplicates or sum(self.inversions.values()) or sum(self.wrong.values()))


def close(found: npt.ArrayLike, expected: npt.ArrayLike) -> Mask:
    """Return where two columns are equal up to the rounding of another order of summation."""
    return np.isclose(found, expected, rtol=VALUE_TOLERANCE, atol=1e-12, equal_nan=True)
