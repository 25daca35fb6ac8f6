"""Finds sensors that fail alone, and read wrong while their edge is well (Takao et al., DEIM 2023, future work).

The other sensors of a slot tell what a sensor should read at this very step: its conditional mean given all of them. A
sensor that is stuck, jumps or has an offset is far from it again and again. The past is left out on purpose: a filter
that takes every reading for exact would accept a stuck sensor after one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.low_rank import LowRank, LowRankInverse, block_of, variances_of
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

LIMIT = 6.0
"""A reading is suspect if it is further than this from what the other sensors tell, in usual distances of the
sensor."""
STRIKES = 5
"""After this many suspect steps in a row a sensor's readings are no longer used."""
PARDON = 20
"""After this many steps in a row that are not suspect the sensor is used again."""
HALF_LIFE = 500.0
"""Half-life of what counts as usual for a sensor, in steps."""
WARM_STEPS = 100
"""Number of steps before any sensor is judged: until then it is not known what is usual."""
CLIP = 3.0
"""A distance counts as this at most, in usual distances, where the usual is learnt: a slow fault must not become
usual."""
MOST = 0.2
"""If more than this share of the sensors is suspect at once, no sensor is judged: the world has changed, or the model
is wrong."""
STUCK_STEPS = 5
"""With this many equal readings in a row a fault counts as a stuck sensor."""


@dataclass(frozen=True, slots=True)
class SensorVerdict:
    """A sensor that is no longer used, or used again.

    Attributes:
        sensor: place of the sensor in the model.
        out: True if its readings are not used from now on; False if they are used again.
        reason: "stuck" or "implausible"; "" if the sensor is used again.
        score: its distance from what the others tell, in its usual distances.
    """

    sensor: int
    out: bool
    reason: Literal["", "stuck", "implausible"]
    score: float


class Suspects:
    """Judges the sensors of one model, step by step.

    Args:
        model: the model of the slot's sensors.
        out: sensors that are not used at the beginning; None means that all are.
        limit, strikes, pardon: see `LIMIT`, `STRIKES`, `PARDON`.

    Attributes:
        out: bool[n], sensors that are not used at present.

    A step takes 2 n^2 operations.
    """

    def __init__(
        self,
        model: Model,
        *,
        limit: float = LIMIT,
        strikes: int = STRIKES,
        pardon: int = PARDON,
        out: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        n = len(model)
        self._model, self._limit, self._needed, self._pardon = model, limit, strikes, pardon
        prior = model.kept()[1]
        self._precision: Floats | LowRankInverse
        if isinstance(prior, LowRank):
            self._precision = prior.inverse()
        else:
            lift = 1e-8 * np.eye(n)  # so that sensors that read the same do not make it singular
            self._precision = np.asarray(np.linalg.inv(prior + lift), dtype=np.float64)
        self._size = np.sqrt(variances_of(self._precision))
        self.out = np.zeros(n, dtype=bool) if out is None else out.copy()
        self._strikes = np.zeros(n, dtype=np.intp)
        self._clear = np.zeros(n, dtype=np.intp)
        self._equal = np.zeros(n, dtype=np.intp)
        self._stuck = np.zeros(n, dtype=bool)
        self._last = np.full(n, np.nan)
        self._bias, self._spread = np.zeros(n), np.ones(n)
        self._steps = 0

    def observe(self, step: int, values: Floats, estimate: Floats) -> list[SensorVerdict]:
        """Judge the sensors by a step; return what has changed.

        Args:
            values: float64[n], readings as they came, also of sensors that are out; NaN means missing.
            estimate: float64[n], the filter's estimates of the step: they stand in for missing readings, and for
                sensors that are out.
        """
        self._steps += 1
        seen = np.isfinite(values)
        self._equal = np.where(seen & (values == self._last), self._equal + 1, 0)
        self._last = np.where(seen, values, self._last)
        scores, flagged = self._scores(step, values, estimate, seen)
        self._learn(scores, seen & ~flagged & ~self.out)
        if self._steps <= WARM_STEPS:
            return []
        self._strikes = np.where(flagged, self._strikes + 1, np.where(seen, 0, self._strikes))
        # A stuck sensor is right now and then, like a stopped clock: equal readings do not speak for it.
        sound = seen & ~(self._stuck & (self._equal > 0))
        self._clear = np.where(flagged, 0, np.where(sound, self._clear + 1, self._clear))
        verdicts = []
        for sensor in np.flatnonzero(~self.out & (self._strikes >= self._needed)).tolist():
            reason: Literal["stuck", "implausible"] = (
                "stuck" if self._equal[sensor] >= STUCK_STEPS - 1 else "implausible"
            )
            self.out[sensor] = True
            self._stuck[sensor] = reason == "stuck"
            self._clear[sensor] = 0
            verdicts.append(SensorVerdict(sensor, out=True, reason=reason, score=float(self._usual(scores)[sensor])))
        for sensor in np.flatnonzero(self.out & (self._clear >= self._pardon)).tolist():
            self.out[sensor] = False
            self._strikes[sensor] = 0
            verdicts.append(SensorVerdict(sensor, out=False, reason="", score=float(self._usual(scores)[sensor])))
        return verdicts

    def _scores(
        self, step: int, values: Floats, estimate: Floats, seen: npt.NDArray[np.bool_]
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return distances in conditional standard deviations, and which sensors are suspect.

        The sensor furthest off is set aside before the next is judged: one wrong sensor makes its neighbours look
        wrong.
        """
        model = self._model
        believed = seen & ~self.out
        filled = np.where(believed, values, estimate)
        x = (filled - model.mean_at(step)) / model.scale
        every = np.arange(len(x))
        pull = self._precision @ x if isinstance(self._precision, np.ndarray) else self._precision.times(x)
        scores = pull / self._size
        # Sensors that are out are judged by their own readings and what all the others tell.
        again = seen & self.out
        off = np.where(again, (np.where(seen, values, 0.0) - filled) / model.scale, 0.0)
        scores = np.where(again, scores + off * self._size, scores)
        flagged = again & (np.abs(self._usual(scores)) > self._limit)
        left = believed.copy()
        most = max(1, int(MOST * len(values)))
        for _ in range(most + 1):
            usual = np.where(left, np.abs(self._usual(pull / self._size)), 0.0)
            worst = int(usual.argmax())
            if usual[worst] <= self._limit:
                return scores, flagged
            flagged[worst] = True
            scores[worst] = pull[worst] / self._size[worst]
            left[worst] = False
            pull = pull - block_of(self._precision, every, every[worst : worst + 1])[:, 0] * (
                pull[worst] / self._size[worst] ** 2
            )
            scores = np.where(left, pull / self._size, scores)
        return scores, again & flagged  # too many at once: no sensor is judged

    def _usual(self, scores: Floats) -> Floats:
        return np.asarray((scores - self._bias) / self._spread)

    def _learn(self, scores: Floats, who: npt.NDArray[np.bool_]) -> None:
        """Learn what is usual, quickly in the first steps."""
        rate = max(1 - 0.5 ** (1 / HALF_LIFE), 1 / (self._steps + 1))
        off = np.clip(scores - self._bias, -CLIP * self._spread, CLIP * self._spread)
        if self._steps <= WARM_STEPS:
            off = scores - self._bias
        self._bias = np.where(who, self._bias + rate * off, self._bias)
        variance = self._spread**2 + rate * (off**2 - self._spread**2)
        self._spread = np.where(who, np.sqrt(np.maximum(variance, 1e-6)), self._spread)
