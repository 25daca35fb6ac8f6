"""Filters of many small slots at once: the precision form over stacked matrices.

With 50 sensors a step's arithmetic takes hardly any time; the calls of numpy do. Here one call takes a step of all
slots. Each slot has its own model and its own missing set. Smaller missing sets are padded with independent dummies of
variance 1, which change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import WILD, StepEstimate
from tsunagi.recovery.forms import PrecisionForm, choose_form
from tsunagi.recovery.model import Model, half_width
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import BOUNDED, EXACT, UNBOUNDED


class RecoveryBatch:
    """The filters of many slots with the same number of sensors.

    Args:
        models: one for each slot, all with n sensors and a condition number within `forms.PRECISION_LIMIT`.
        eps, delta: as in `filter.Recovery`.

    Raises:
        ModelError: there is no model, their numbers of sensors differ, or one needs the covariance form.
    """

    def __init__(self, models: Sequence[Model], *, eps: float = 1.0, delta: float = 0.9) -> None:
        sizes = {len(model) for model in models}
        if len(sizes) != 1:
            raise ModelError(f"recovery: found models of {sorted(sizes)} sensors, expected one size for all")
        forms = [choose_form(model) for model in models]
        for number, choice in enumerate(forms):
            if not isinstance(choice.form, PrecisionForm):
                raise ModelError(
                    f"recovery: model {number}: found condition number {choice.condition:.2g}, "
                    "expected one that the precision form bears"
                )
        self.models = tuple(models)
        self._eps = eps
        self._inflation = np.array([model.inflation(delta) for model in models])[:, None]
        self._half_width = half_width(delta)
        self._mean, self._scale = (np.stack([getattr(model, key) for model in models]) for key in ("mean", "scale"))
        self._drift = np.stack([model.drift for model in models])
        self._diagonal = all(model.diagonal for model in models)
        self._F = np.stack([model.transition if self._diagonal else model.F for model in models])
        parts = [choice.form.matrices() for choice in forms if isinstance(choice.form, PrecisionForm)]
        self._prior_precision, self._L, self._G, self._H = (np.stack(part) for part in zip(*parts, strict=True))
        self._slots = np.arange(len(models))[:, None]
        self._x: Floats | None = None  # float64[S, n]: readings; posterior means where missing
        self._missing = np.zeros((len(models), 0), dtype=np.intp)
        self._real = np.zeros((len(models), 0), dtype=bool)
        self._precision = np.zeros((len(models), 0, 0))

    def __len__(self) -> int:
        return len(self.models)

    def step(self, values: npt.ArrayLike, step: int = 0) -> StepEstimate:
        """Take the next step of all slots.

        Args:
            values: float64[S, n], sensor units; NaN or infinite means missing.
            step: number of the step, for models with a profile.

        Returns:
            the estimates, each float64[S, n].

        Raises:
            ValueError: the shape is not (slots, sensors).
        """
        given = np.asarray(values, dtype=np.float64)
        if given.shape != self._mean.shape:
            raise ValueError(f"recovery: found values of shape {given.shape}, expected {self._mean.shape}")
        usual = self._mean
        if any(model.profile is not None for model in self.models):
            usual = np.stack([model.mean_at(step) for model in self.models])
        with np.errstate(over="ignore", invalid="ignore"):
            readings = (given - usual) / self._scale
            seen = np.abs(readings) <= WILD
        readings = np.where(seen, readings, 0.0)
        missing, real = _padded(~seen)
        x, variance = self._advance(readings, missing, real)
        slots, places = np.nonzero(real)
        columns = missing[slots, places]
        mean, sd, bound = given.copy(), np.zeros(given.shape), np.zeros(given.shape)
        quality = np.full(given.shape, EXACT, dtype=np.uint8)
        spread = self._inflation[slots, 0] * np.sqrt(variance[slots, places])
        scale = self._scale[slots, columns]
        mean[slots, columns] = usual[slots, columns] + scale * x[slots, columns]
        sd[slots, columns] = scale * spread
        bound[slots, columns] = scale * spread * self._half_width
        quality[slots, columns] = np.where(spread * self._half_width <= self._eps, BOUNDED, UNBOUNDED)
        return StepEstimate(mean, sd, quality, bound)

    def _advance(
        self, readings: Floats, missing: npt.NDArray[np.intp], real: npt.NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Return the posterior's mean, float64[S, n], and its variances where readings are missing, float64[S, m]."""
        slots = self._slots
        pairs = slots[:, :, None], missing[:, :, None], missing[:, None, :]
        if self._x is None:
            predicted = np.zeros_like(readings)
            rows = self._prior_precision[slots, missing]
            precision, pull = self._prior_precision[pairs], -_apply(rows, readings)
        else:
            moved = self._F * self._x if self._diagonal else _apply(self._F, self._x)
            predicted = moved + self._drift
            surprise = readings - predicted
            np.put_along_axis(surprise, missing, np.where(real, 0.0, np.take_along_axis(surprise, missing, 1)), 1)
            precision, pull = self._L[pairs], -_apply(self._L[slots, missing], surprise)
            last = self._missing
            if last.shape[1]:
                both = slots[:, :, None], last[:, :, None], last[:, None, :]
                inner = self._precision + np.where(self._real[:, :, None] & self._real[:, None, :], self._H[both], 0.0)
                cross = self._G[slots[:, :, None], missing[:, :, None], last[:, None, :]]
                cross = np.where(real[:, :, None] & self._real[:, None, :], cross, 0.0)
                behind = np.where(self._real, np.einsum("smn,sn->sm", self._G_rows(last), surprise), 0.0)
                right = np.concatenate([cross.transpose(0, 2, 1), behind[:, :, None]], axis=2)
                solved = np.linalg.solve(inner, right)
                precision = precision - cross @ solved[:, :, :-1]
                pull = pull + _apply(cross, solved[:, :, -1])
        precision = np.where(real[:, :, None] & real[:, None, :], precision, np.eye(missing.shape[1]))
        covariance = np.linalg.inv(precision)
        correction = _apply(covariance, np.where(real, pull, 0.0))
        estimate = np.take_along_axis(predicted, missing, 1) + correction
        kept = np.take_along_axis(readings, missing, 1)
        np.put_along_axis(readings, missing, np.where(real, estimate, kept), 1)
        self._x, self._missing, self._real, self._precision = readings, missing, real, precision
        return readings, np.asarray(np.maximum(np.einsum("smm->sm", covariance), 0.0))

    def _G_rows(self, last: npt.NDArray[np.intp]) -> Floats:  # noqa: N802 - the literature's symbol
        """Return G[:, Z]' of each slot, float64[S, m, n]; Z is the missing set of the step before."""
        return np.asarray(self._G.transpose(0, 2, 1)[self._slots, last])


def _apply(matrices: Floats, vectors: Floats) -> Floats:
    """Return the product of each matrix with its vector."""
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])


def _padded(missing: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the missing places of each row, padded to the longest, and a mask of those that are not padding.

    The padding consists of places that are not missing, each at most once, so nothing is written twice.
    """
    count = missing.sum(axis=1)
    longest = int(count.max())
    order = np.argsort(~missing, axis=1, kind="stable")[:, :longest]
    return order, np.arange(longest) < count[:, None]
