"""Approximate recovery: what a dead edge would have sent, each value with its bound.

Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 2: condition the prediction on what did arrive (equations (1), (2)),
predict the next step (equations (4), (5)), and state for each estimate the half width that holds the truth with
probability delta (equation (6)).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from scipy import linalg

from services.recovery.forms import FORMS, PRECISION_LIMIT, Places, State, choose_form
from services.recovery.model import Model, ModelError
from services.runtime.columns import U32, Bytes, Floats, pack_arrays, unpack_arrays
from services.runtime.messages import BOUNDED, EXACT, UNBOUNDED

WILD = 1e100
"""A reading further than this from the mean, in standard deviations, cannot be computed with: it counts as missing."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """One step, float64[n] each, in the sensors' own units and the order of the model's names.

    Attributes:
        mean: the reading as it came in, or its estimate.
        sd: calibrated standard deviation of the error; 0 = measured.
        quality: uint8[n]: EXACT = measured; BOUNDED = estimated, P(|x - mean| <= eps) >= delta; UNBOUNDED = wider.
        bound: half width of the interval that holds the truth with probability delta; 0 = measured.
    """

    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats


class Recovery:
    """The filter over the sensors of one slot.

    Args:
        model: of exactly these sensors (`Model.select`).
        eps: tolerated error, in units of each sensor's scale.
        delta: probability with which the bound must hold.
        form: "precision" (fast), "covariance" (for a Q that is nearly singular), "auto" = by the condition number.

    Attributes:
        form: the form in use.
        condition: the greater of the condition numbers of Q and of the prior.
        nugget: what was added to both diagonals, in units of scale squared; 0 = nothing.
        reason: why this form, in words for a log line.
        restarts: how often rounding broke the recursion and the prior had to stand in (it is wider, so bounds hold).

    State: the missing set, m(m+1)/2 numbers of its posterior precision or covariance, and n values; its context takes
    about 8 n + 4 m (m + 2) bytes (n = 107, m = 27: 4.1 KB; n = 1000, m = 100: 50 KB).

    Raises:
        ModelError: Q or the prior is no covariance, or an argument is out of range.
    """

    def __init__(
        self,
        model: Model,
        *,
        eps: float = 1.0,
        delta: float = 0.9,
        form: Literal["auto", "precision", "covariance"] = "auto",
    ) -> None:
        if not 0 < delta < 1:
            raise ModelError(f"recovery: delta: found {delta}, expected a probability between 0 and 1")
        if not eps > 0:
            raise ModelError(f"recovery: eps: found {eps}, expected more than 0")
        self.model = model
        self.restarts = 0
        self._eps = eps
        self._inflation = model.inflation(delta)
        self._half_width = NormalDist().inv_cdf((1 + delta) / 2)
        choice = choose_form(model, form)
        self.form, self.condition, self.nugget = choice.name, choice.condition, choice.nugget
        self.reason = f"condition number {self.condition:.2g}, precision form up to {PRECISION_LIMIT:.0e}"
        if self.nugget:
            self.reason += f"; nugget {self.nugget:.2g} added"
        self._form = choice.form
        self._state: State | None = None

    def step(self, values: Floats) -> StepEstimate:
        """Take in the next step and estimate what is missing.

        Args:
            values: float64[n], sensor units; NaN or infinite = missing.

        The first step has no predecessor: the prior is conditioned on it. A step with nothing missing makes the state
        equal to its readings; one with everything missing is predicted.

        Raises:
            ValueError: another number of values than the model has sensors.
        """
        model = self.model
        given = np.asarray(values, dtype=np.float64)
        if given.shape != model.mean.shape:
            raise ValueError(f"recovery: found values of shape {given.shape}, expected {model.mean.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            readings = (given - model.mean) / model.scale
            seen = np.abs(readings) <= WILD  # false for NaN too
        missing = np.flatnonzero(~seen)
        readings[missing] = 0.0
        state = self._advance(readings, missing)
        self._state = state

        mean, sd, bound = given.copy(), np.zeros(len(model)), np.zeros(len(model))
        quality = np.full(len(model), EXACT, dtype=np.uint8)
        if len(missing):
            spread = self._inflation * np.sqrt(state.variance)
            within = self._half_width * spread
            mean[missing] = model.mean[missing] + model.scale[missing] * state.x[missing]
            sd[missing] = model.scale[missing] * spread
            bound[missing] = model.scale[missing] * within
            quality[missing] = np.where(within <= self._eps, BOUNDED, UNBOUNDED)
        return StepEstimate(mean, sd, quality, bound)

    def _advance(self, readings: Floats, missing: Places) -> State:
        if not len(missing):
            return State(missing, np.empty((0, 0)), readings, np.empty(0))
        if self._state is not None:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    state = self._form.following(self._state, readings, missing)
                if np.isfinite(state.x).all() and np.isfinite(state.variance).all():
                    return state
            except linalg.LinAlgError:
                pass
            self.restarts += 1
        return self._form.first(readings, missing)

    def context(self) -> bytes:
        """Return the state; `restore` of it continues with the same outputs."""
        arrays: dict[str, npt.NDArray[np.generic]] = {"model": self._tag()}
        state = self._state
        if state is not None:
            arrays["missing"] = state.missing.astype(U32)
            arrays["spread"] = state.spread[np.tril_indices(len(state.missing))]
            arrays["x"] = state.x
        return pack_arrays(arrays)

    def restore(self, context: bytes) -> None:
        """Go on from the state that `context` returned, here or in another process.

        Raises:
            ModelError: the context is of another model or form, or none at all.
        """
        try:
            arrays = unpack_arrays(context)
            tag, rest = arrays.pop("model"), set(arrays)
        except (DecodeError, KeyError, ValueError, TypeError) as error:
            raise ModelError(f"recovery: {len(context)} bytes are not a context: {error!r}") from None
        if not np.array_equal(tag, self._tag()):
            own = f"{self.model.identity} in {self.form} form"
            raise ModelError(f"recovery: the context is of another model or form than {own}")
        if not rest:
            self._state = None
            return
        n = len(self.model)
        missing = arrays["missing"].astype(np.intp)
        m = len(missing)
        lower, x = arrays["spread"].astype(np.float64), arrays["x"].astype(np.float64)
        if lower.shape != (m * (m + 1) // 2,) or x.shape != (n,) or (m and missing[-1] >= n):
            raise ModelError(f"recovery: the context's arrays do not fit together (m = {m}, n = {n})")
        spread = np.zeros((m, m))
        spread[np.tril_indices(m)] = lower
        self._state = State(missing, spread, x, np.empty(0))

    def _tag(self) -> Bytes:
        """Form and model, 9 bytes: a posterior means nothing to another."""
        return np.frombuffer(bytes([FORMS.index(self.form)]) + bytes.fromhex(self.model.identity)[:8], dtype=np.uint8)
