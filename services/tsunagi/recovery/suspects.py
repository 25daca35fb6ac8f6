"""Sensors that fail alone: dead wrong while their edge is well (Takao et al., DEIM 2023, future work).

The other sensors of a slot say what a sensor should read at this very step: its conditional mean given all of them. A
sensor that is stuck, jumps or has an offset is far from it again and again. The past is left out on purpose: to a
filter that takes every reading for exact, a stuck sensor looks right as soon as it has been stuck for a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats

LIMIT = 6.0
"""Distance from what the others say, in the sensor's own usual distances."""
STRIKES = 5
"""Steps in a row past the limit after which a sensor is out."""
PARDON = 20
"""Steps in a row within the limit after which it is taken back."""
HALF_LIFE = 500.0
"""Steps after which what is usual for a sensor has half forgotten."""
WARM_STEPS = 100
"""Steps before anybody is judged: until then nobody knows what is usual."""
CLIP = 3.0
"""A distance counts as this at most in what is usual: else a slow fault would become usual."""
MOST = 0.2
"""Share of the sensors past the limit at once beyond which it is the world that has changed, or the model is wrong."""
STUCK_STEPS = 5
"""Equal readings in a row that make a fault a stuck sensor."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change in what is thought of a sensor.

    Attributes:
        sensor: its place in the model.
        out: True = not to be believed from now on; False = taken back.
        reason: "stuck" or "implausible"; "" when it is taken back.
        score: its distance, in its usual distances.
    """

    sensor: int
    out: bool
    reason: Literal["", "stuck", "implausible"]
    score: float


class Suspects:
    """Judges the sensors of one model, a step after the other.

    Args:
        model: of the slot's sensors.
        out: who is not believed to begin with; None = everybody is.
        limit, strikes, pardon: see `LIMIT`, `STRIKES`, `PARDON`.

    Attributes:
        out: bool[n], who is not believed at present.

    Cost: 2 n^2 operations a step.
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
        lift = 1e-8 * np.eye(n)  # sensors that tell the same
        self._precision = np.asarray(np.linalg.inv(model.prior + lift), dtype=np.float64)
        self._size = np.sqrt(np.diag(self._precision))
        self.out = np.zeros(n, dtype=bool) if out is None else out.copy()
        self._strikes = np.zeros(n, dtype=np.intp)
        self._clear = np.zeros(n, dtype=np.intp)
        self._equal = np.zeros(n, dtype=np.intp)
        self._stuck = np.zeros(n, dtype=bool)
        self._last = np.full(n, np.nan)
        self._bias, self._spread = np.zeros(n), np.ones(n)
        self._steps = 0

    def observe(self, step: int, values: Floats, estimate: Floats) -> list[Verdict]:
        """Take in a step.

        Args:
            values: float64[n], readings as they came, of sensors that are out too; NaN = missing.
            estimate: float64[n], what the filter makes of the step: it stands in where nothing was read, and for
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
        # A stuck sensor is right now and then, like a stopped clock.
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
            verdicts.append(Verdict(sensor, out=True, reason=reason, score=float(self._usual(scores)[sensor])))
        for sensor in np.flatnonzero(self.out & (self._clear >= self._pardon)).tolist():
            self.out[sensor] = False
            self._strikes[sensor] = 0
            verdicts.append(Verdict(sensor, out=False, reason="", score=float(self._usual(scores)[sensor])))
        return verdicts

    def _scores(
        self, step: int, values: Floats, estimate: Floats, seen: npt.NDArray[np.bool_]
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return distances in conditional standard deviations, and who is past the limit.

        Whoever is furthest off is set aside before the next is judged: one wrong sensor makes its neighbours look so.
        """
        model = self._model
        believed = seen & ~self.out
        filled = np.where(believed, values, estimate)
        x = (filled - model.mean_at(step)) / model.scale
        pull = self._precision @ x
        scores = pull / self._size
        # Sensors that are out are judged by their readings against what all others say.
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
            pull = pull - self._precision[:, worst] * (pull[worst] / self._precision[worst, worst])
            scores = np.where(left, pull / self._size, scores)
        return scores, again & flagged  # too many at once: nobody

    def _usual(self, scores: Floats) -> Floats:
        return np.asarray((scores - self._bias) / self._spread)

    def _learn(self, scores: Floats, who: npt.NDArray[np.bool_]) -> None:
        """Follow what is usual, in the first steps quickly."""
        rate = max(1 - 0.5 ** (1 / HALF_LIFE), 1 / (self._steps + 1))
        off = np.clip(scores - self._bias, -CLIP * self._spread, CLIP * self._spread)
        if self._steps <= WARM_STEPS:
            off = scores - self._bias
        self._bias = np.where(who, self._bias + rate * off, self._bias)
        variance = self._spread**2 + rate * (off**2 - self._spread**2)
        self._spread = np.where(who, np.sqrt(np.maximum(variance, 1e-6)), self._spread)
