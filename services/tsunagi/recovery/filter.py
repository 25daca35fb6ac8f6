"""Approximate recovery: estimates what a dead edge would have sent, each value with its bound.

Takao, Sugiura, Ishikawa, Lu, DEIM 2023, section 2: condition the prediction on the readings that arrived (equations
(1), (2)), predict the next step (equations (4), (5)), and give for each estimate the half width of the interval that
holds the truth with probability delta (equation (6)).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from scipy import linalg

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Factors, Places, Traits
from tsunagi.recovery.forms import FEW, LOW_RANK, NUMBERED, PRECISION_LIMIT, Choice, choose_form, inverse
from tsunagi.recovery.fresh import MANY, fresh_of_low_rank, fresh_of_whole
from tsunagi.recovery.low_rank import LowRank, exactly
from tsunagi.recovery.model import LowRankModel, Model, half_width
from tsunagi.recovery.state import State, spread_of
from tsunagi.recovery.widened import widened_form
from tsunagi.runtime.columns import U32, Bytes, Floats, pack_arrays, unpack_arrays
from tsunagi.runtime.messages import BOUNDED, EXACT, UNBOUNDED

WILD = 1e100
"""A reading further than this from the mean, in standard deviations, counts as missing: computations with it might
overflow."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The estimates of one step, float64[n] each, in sensor units and in the order of the model's names.

    Attributes:
        mean: the reading as it came, or its estimate.
        sd: calibrated standard deviation of the error; 0 for a reading.
        quality: uint8[n]: EXACT = reading; BOUNDED = estimate with P(|x - mean| <= eps) >= delta; UNBOUNDED = wider.
        bound: half width of the interval that holds the truth with probability delta; 0 for a reading.
    """

    mean: Floats
    sd: Floats
    quality: Bytes
    bound: Floats


class Measured(Protocol):
    """Measures the factors on standard deviations (`calibration.Calibration`)."""

    def factors(self, delta: float) -> Factors:
        """Return the factors for bounds of probability delta."""


class _Given:
    """Factors that are given from outside, instead of being measured here."""

    def __init__(self, values: Factors) -> None:
        self.values = values

    def factors(self, delta: float) -> Factors:
        del delta
        return self.values


class Recovery:
    """The filter over the sensors of one slot.

    Args:
        model: the model of exactly these sensors (`Model.select`).
        eps: tolerated error, in units of each sensor's scale.
        delta: probability with which a bound must hold.
        form: "precision" (fast), "covariance" (for a Q that is nearly singular), or "auto", by the condition number.
        calibration: factors on the standard deviation that follow the data (`calibration.Calibration`); None means the
            model's own table.
        choice: the model's form, if it has been made already.

    Attributes:
        form: name of the form in use; `choice`: everything that is known about it.
        condition: the greater of the condition numbers of Q and of the prior.
        nugget: what was added to both diagonals, in units of scale squared; 0 if nothing.
        reason: why this form is used, in words for a log line.
        distrusted: bool[n], sensors whose readings count as missing (`distrust`).
        restarts: how often rounding broke the recursion, so that the prior was used instead (it is wider, so bounds
            hold).

    The state consists of the missing set, m(m+1)/2 numbers of its posterior precision or covariance, and n values. Its
    context takes about 8 n + 4 m (m + 3) bytes (n = 107, m = 27: 4.1 KB; n = 1000, m = 100: 50 KB).

    Raises:
        ModelError: Q or the prior is not a covariance, or an argument is out of range.
    """

    def __init__(
        self,
        model: Model,
        *,
        eps: float = 1.0,
        delta: float = 0.9,
        form: Literal["auto", "precision", "covariance"] = "auto",
        calibration: Measured | None = None,
        choice: Choice | None = None,
    ) -> None:
        if not 0 < delta < 1:
            raise ModelError(f"recovery: delta: found {delta}, expected a probability between 0 and 1")
        if not eps > 0:
            raise ModelError(f"recovery: eps: found {eps}, expected more than 0")
        self.restarts = 0
        self._eps, self._delta = eps, delta
        self._asked_form = form
        self._calibration = calibration
        self._raw_sd = np.zeros(len(model))
        self._level = np.zeros(len(model))
        self._age = np.zeros(len(model), dtype=np.intp)
        self.distrusted = np.zeros(len(model), dtype=bool)
        self._half_width = half_width(delta)
        self._use(model, choice or choose_form(model, form))
        self._state: State | None = None

    def _use(self, model: Model, choice: Choice) -> None:
        self.model, self.choice = model, choice
        self._inflation = model.inflation(self._delta)
        # True for a large model of a stationary process. With small models every step is computed as the equations
        # say.
        large = len(model) > FEW or isinstance(model, LowRankModel)
        self._stays_unread = large and model.diagonal and not model.drift.any()
        self.form, self.condition, self.nugget = choice.name, choice.condition, choice.nugget
        self.reason = f"condition number {self.condition:.2g}, precision form up to {PRECISION_LIMIT:.0e}"
        if self.nugget:
            self.reason += f"; nugget {self.nugget:.2g} added"
        self._form = choice.form

    def fork(self) -> Recovery:
        """Return another filter that goes on from this state; its standard deviations are the model's own."""
        other = copy(self)
        other._form = copy(self._form)  # noqa: SLF001 - each filter needs its own rows of the last step
        other._calibration = _Given(Factors.plain(np.ones(len(self.model))))  # noqa: SLF001
        other.restarts = 0
        return other

    def set_factors(self, factors: Factors | None) -> None:
        """Multiply standard deviations by these factors from the next step on; None means the model's own table.

        Raises:
            ModelError: there is not one factor for each sensor, or one cannot be computed with.
        """
        if factors is not None and not (factors.valid and factors.base.shape == self.model.mean.shape):
            raise ModelError(
                f"recovery: factors: found shape {factors.base.shape}, expected {self.model.mean.shape}, all above 0"
            )
        self._calibration = None if factors is None else _Given(factors)

    def distrust(self, sensor: int, *, out: bool) -> None:
        """Count a sensor's readings as missing from the next step on, or no longer (`suspects.Suspects`)."""
        self.distrusted = self.distrusted.copy()  # a fork keeps what was in force when it was made
        self.distrusted[sensor] = out

    @property
    def given_factors(self) -> Factors | None:
        """The factors that `set_factors` was given; None if they are measured."""
        return self._calibration.values if isinstance(self._calibration, _Given) else None

    @property
    def raw_sd(self) -> Floats:
        """Standard deviations of the last step before calibration, float64[n], sensor units; 0 for a reading."""
        return np.asarray(self._raw_sd * self.model.scale)

    @property
    def longest_outage(self) -> int:
        """Number of steps for which the longest missing sensor has been missing; 0 if all were read."""
        return int(self._age.max(initial=0))

    def traits(self, places: Places) -> Traits:
        """Return the traits of the last step's estimates of these sensors, which were missing."""
        return Traits(self._level[places], self._raw_sd[places], self._age[places].astype(np.float64))

    def follow(self, model: Model, step: int = 0) -> None:
        """Go on with another model of the same sensors and scale (`refit.Refit`, `averaging.ModelAverage`).

        Args:
            step: the last step taken; it matters only if the profiles of the two models differ.

        Raises:
            ModelError: the model has other sensors or another scale.
        """
        if model.names != self.model.names or not np.array_equal(model.scale, self.model.scale):
            raise ModelError("recovery: found a model of other sensors or another scale, expected a refit of the same")
        before = copy(self)
        self._use(model, choose_form(model, self._asked_form))
        self.adopt(before, step)

    def adopt(self, other: Recovery, step: int = 0) -> None:
        """Go on from the state of another filter with the same sensors and scale.

        Args:
            step: the last step that it took; it matters only if the profiles of the two models differ.
        """
        state = other._state
        self.distrusted, self._age = other.distrusted, other._age
        if state is None:
            self._state = None
            return
        spread = state.spread
        if other.form != self.form and len(state.missing):
            spread = self._spread(other.posterior()[2])
        shift = (other.model.mean_at(step) - self.model.mean_at(step)) / self.model.scale
        self._state = State(state.missing, spread, state.x + shift, state.variance)

    def set_bounds(self, *, eps: float, delta: float) -> None:
        """Give bounds of another probability, and tag them by another tolerance, from the next step on."""
        self._eps, self._delta = eps, delta
        self._half_width, self._inflation = half_width(delta), self.model.inflation(delta)

    def widened(self, model: Model, step: int = 0, fitted: tuple[Model, Choice] | None = None) -> Recovery:
        """Return a filter of these sensors and more that goes on from this state (helpers, section 4.2 of the paper).

        Args:
            model: its first sensors are the sensors of this filter, with the same scale.
            step: the last step taken; it matters only if the profiles of the two models differ.
            fitted: a model of these sensors and its form, from which the form of `model` may be made (`widened_form`).
                This filter's own model will not do: it may be a refit, and a replica that was restored has not had it
                at the same time.

        Nothing has been read of the new sensors yet. Given the present state they have their stationary distribution,
        X_new | X ~ N(A X, D) with A = S_new,own S_own^-1 of the prior.

        Raises:
            ModelError: the first sensors of the model are others, or its prior is not a covariance.
        """
        n, wide = len(self.model), len(model)
        same = model.names[:n] == self.model.names and np.array_equal(model.scale[:n], self.model.scale)
        if not same:
            raise ModelError("recovery: found a model whose first sensors are others, expected this filter's")
        narrow, own = fitted or (self.model, self.choice)
        choice = widened_form(own, narrow, model) if self._asked_form == "auto" else None
        other = Recovery(model, eps=self._eps, delta=self._delta, form=self._asked_form, choice=choice)
        other.distrusted = np.concatenate([self.distrusted, np.zeros(wide - n, dtype=bool)])
        other._age = np.concatenate([self._age, np.zeros(wide - n, dtype=np.intp)])
        given = self.given_factors
        if given is not None:
            other.set_factors(given.widened(wide - n))
        if self._state is None:
            return other
        shift = (self.model.mean_at(step) - model.mean_at(step)[:n]) / model.scale[:n]
        state, places = self._state, np.concatenate([self._state.missing, np.arange(n, wide)])
        prior, before = model.kept()[1], state.spread
        if isinstance(prior, LowRank) and isinstance(before, LowRank) and len(state.missing) > MANY * prior.rank:
            large, fresh = fresh_of_low_rank(prior, before, state.missing, state.x + shift)
            other._state = State(places, large, np.concatenate([state.x + shift, fresh]), large.variances)
            return other
        known, missing, covariance = self.posterior()
        known = known + shift
        whole = model.prior
        blocks = whole[:n, :n], whole[:n, n:], whole[n:, n:]
        try:
            both, fresh = fresh_of_whole(*blocks, known, missing, covariance, other.nugget)
            spread = other._spread(both)
        except linalg.LinAlgError:
            return other  # rounding broke it: it begins with the prior, which is wider, so bounds hold
        other._state = State(places, spread, np.concatenate([known, fresh]), np.diag(both).copy())
        return other

    def continue_from(self, other: Recovery, step: int = 0) -> None:
        """Go on from the state of a filter of other sensors: those that both have keep what is known of them.

        What the other one knew of the rest is left out, which is the marginal distribution. Nothing has been read of
        new sensors yet; as in `widened` they have their stationary distribution given the present state.

        Args:
            step: the last step that the other one took; it matters only if the profiles of the models differ.

        Raises:
            ModelError: a sensor has another scale.
        """
        of = {name: place for place, name in enumerate(other.model.names)}
        kept = np.array([place for place, name in enumerate(self.model.names) if name in of], dtype=np.intp)
        fresh = np.setdiff1d(np.arange(len(self.model)), kept)
        was = np.array([of[self.model.names[place]] for place in kept.tolist()], dtype=np.intp)
        if not np.array_equal(self.model.scale[kept], other.model.scale[was]):
            raise ModelError("recovery: found sensors of another scale, expected those of the same model")
        self.distrusted[kept], self._age[kept] = other.distrusted[was], other._age[was]
        given = other.given_factors
        if given is not None and len(kept):
            self.set_factors(given.rearranged(was, kept, len(self.model), self._inflation))
        if other._state is None or not len(kept):
            return
        x, missing, covariance = other.posterior()
        known = x[was] + (other.model.mean_at(step)[was] - self.model.mean_at(step)[kept]) / self.model.scale[kept]
        place_of = {place: number for number, place in enumerate(missing.tolist())}
        lost = np.array([number for number, place in enumerate(was.tolist()) if place in place_of], dtype=np.intp)
        rows = np.array([place_of[place] for place in was[lost].tolist()], dtype=np.intp)
        both = covariance[np.ix_(rows, rows)]
        mean = np.zeros(len(self.model))
        mean[kept] = known
        try:
            if len(fresh):
                prior = self.model.prior
                blocks = prior[np.ix_(kept, kept)], prior[np.ix_(kept, fresh)], prior[np.ix_(fresh, fresh)]
                both, mean[fresh] = fresh_of_whole(*blocks, known, lost, both, self.nugget)
            places = np.concatenate([kept[lost], fresh])
            order = np.argsort(places)
            both = both[np.ix_(order, order)]
            spread = self._spread(both)
        except linalg.LinAlgError:
            return  # rounding broke it: the filter begins with the prior, which is wider, so bounds hold
        self._state = State(places[order], spread, mean, np.diag(both).copy())

    def _spread(self, covariance: Floats) -> Floats | LowRank:
        """Return a covariance of missing sensors, float64[m, m], as this filter's form keeps it.

        Raises:
            LinAlgError: rounding has left no covariance.
        """
        if self.form == LOW_RANK:
            return exactly(covariance)
        return np.tril(inverse(covariance) if self.form == "precision" and len(covariance) else covariance)

    def posterior(self) -> tuple[Floats, Places, Floats]:
        """Return the last step's mean, missing set and its covariance, in units of scale around the model's mean.

        They are float64[n], intp[m] and float64[m, m], without calibration.

        Raises:
            ValueError: no step has been taken yet.
        """
        state = self._state
        if state is None:
            raise ValueError("recovery: found no step, expected one before its posterior is asked for")
        if not len(state.missing):
            return state.x, state.missing, np.empty((0, 0))
        if isinstance(state.spread, LowRank):
            return state.x, state.missing, state.spread.dense()
        lower = np.tril(state.spread)
        whole = inverse(state.spread) if self.form == "precision" else lower + np.tril(lower, -1).T
        return state.x, state.missing, whole

    def half_widths(self, delta: float) -> Floats:
        """Return the bounds of the last step for another probability, float64[n], sensor units; 0 for a reading."""
        missing = np.flatnonzero(self._age)
        result = np.zeros(len(self.model))
        spread = self._factor(missing, delta) * self._raw_sd[missing]
        result[missing] = half_width(delta) * spread * self.model.scale[missing]
        return result

    def step(self, values: Floats, step: int = 0) -> StepEstimate:
        """Take the next step, and estimate what is missing.

        Args:
            values: float64[n], sensor units; NaN or infinite means missing.
            step: number of the step, which gives the phase of a model with a profile.

        The first step has no predecessor: the prior is conditioned on its readings. After a step with nothing missing
        the state equals the readings; a step with everything missing is predicted.

        Raises:
            ValueError: the number of values is not the model's number of sensors.
        """
        model = self.model
        given = np.asarray(values, dtype=np.float64)
        if given.shape != model.mean.shape:
            raise ValueError(f"recovery: found values of shape {given.shape}, expected {model.mean.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            usual = model.mean_at(step)
            readings = (given - usual) / model.scale
            seen = (np.abs(readings) <= WILD) & ~self.distrusted  # false for NaN too
        missing = np.flatnonzero(~seen)
        readings[missing] = 0.0
        state = self._advance(readings, missing)
        self._state = state

        self._raw_sd, self._level = np.zeros(len(model)), np.zeros(len(model))
        self._age = np.where(seen, 0, self._age + 1)  # a new array: forks and copies keep the one before
        mean, sd, bound = given.copy(), np.zeros(len(model)), np.zeros(len(model))
        quality = np.full(len(model), EXACT, dtype=np.uint8)
        if len(missing):
            self._raw_sd[missing] = np.sqrt(state.variance)
            mean[missing] = usual[missing] + model.scale[missing] * state.x[missing]
            self._level[missing] = (mean[missing] - model.mean[missing]) / model.scale[missing]
            spread = self._factor(missing, self._delta) * self._raw_sd[missing]
            within = self._half_width * spread
            sd[missing] = model.scale[missing] * spread
            bound[missing] = model.scale[missing] * within
            quality[missing] = np.where(within <= self._eps, BOUNDED, UNBOUNDED)
        return StepEstimate(mean, sd, quality, bound)

    def _factor(self, missing: Places, delta: float) -> Floats | float:
        """Return the factors on the standard deviations of the last step's estimates."""
        table = self._inflation if delta == self._delta else self.model.inflation(delta)
        if self._calibration is None:
            return table
        return self._calibration.factors(delta).of(missing, self.traits(missing), len(missing) / len(self.model), table)

    def operations(self, missing: int) -> float:
        """Return roughly how many multiplications a step takes with `missing` sensors missing, now or a step before."""
        n, last = len(self.model), 0 if self._state is None else len(self._state.missing)
        m = float(max(missing, last))
        if isinstance(self.model, LowRankModel):
            causes = self.model.noise.rank + self.model.known.rank
            return n * causes + 3.0 * m * causes**2
        if self.form == "covariance" and m:
            return 2.0 * float(n) ** 3
        return 3.0 * m**3 + 8.0 * m * n

    def _advance(self, readings: Floats, missing: Places) -> State:
        if not len(missing):
            return State(missing, np.empty((0, 0)), readings, np.empty(0))
        state = self._state
        if state is not None and self._stays_unread and len(state.missing) == len(state.x) and not state.x.any():
            # Nothing has been read yet, so the prior is the state at any step. A slot may wait hundreds of steps for
            # its first batch; to predict all of its sensors would take n^3 operations each time.
            if len(missing) == len(state.x) and len(state.variance):
                return state
        elif state is not None:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    found = self._form.following(state, readings, missing)
                if np.isfinite(found.x[missing]).all() and np.isfinite(found.variance).all():
                    return found
            except linalg.LinAlgError:
                pass
            self.restarts += 1
        return self._form.first(readings, missing)

    def context(self) -> bytes:
        """Return the state; a filter that resumes from it goes on with the same outputs."""
        arrays: dict[str, npt.NDArray[np.generic]] = {"model": self._tag()}
        state, factors = self._state, self.given_factors
        if factors is not None:
            arrays["factors"], arrays["group"] = factors.base, factors.group.astype(U32)
            arrays["slope"], arrays["centre"], arrays["tried"] = factors.slope, factors.centre, factors.tried
        if self.distrusted.any():
            arrays["distrusted"] = np.flatnonzero(self.distrusted).astype(U32)
        if state is not None:
            arrays["missing"] = state.missing.astype(U32)
            arrays |= state.arrays()
            arrays["x"] = state.x
            arrays["age"] = self._age[state.missing].astype(U32)
        return pack_arrays(arrays)

    def resume(self, context: bytes) -> None:
        """Go on from a state that `context` has returned, here or in another process.

        Raises:
            ModelError: the bytes are not a context, or are one of another model or form.
        """
        try:
            arrays = unpack_arrays(context)
            tag, rest = arrays.pop("model"), set(arrays)
        except (DecodeError, KeyError, ValueError, TypeError) as error:
            raise ModelError(f"recovery: {len(context)} bytes are not a context: {error!r}") from None
        if not np.array_equal(tag, self._tag()):
            own = f"{self.model.identity} in {self.form} form"
            raise ModelError(f"recovery: the context is of another model or form than {own}")
        self.distrusted = np.zeros(len(self.model), dtype=bool)
        if "distrusted" in rest:
            self.distrusted[arrays["distrusted"].astype(np.intp)] = True
        self.set_factors(_factors(arrays) if "factors" in rest else None)
        n = len(self.model)
        self._age = np.zeros(n, dtype=np.intp)
        if "x" not in rest:
            self._state = None
            return
        missing = arrays["missing"].astype(np.intp)
        m = len(missing)
        x = arrays["x"].astype(np.float64)
        # Contexts of earlier versions have no ages.
        age = arrays["age"].astype(np.intp) if "age" in rest else np.zeros(m, dtype=np.intp)
        if x.shape != (n,) or age.shape != (m,) or (m and missing[-1] >= n):
            raise ModelError(f"recovery: the context's arrays do not fit together (m = {m}, n = {n})")
        try:
            self._state = State(missing, spread_of(arrays, m), x, np.empty(0))
        except (KeyError, ValueError) as error:
            raise ModelError(f"recovery: the context's arrays do not fit together: {error}") from None
        self._age[missing] = age

    def _tag(self) -> Bytes:
        """Identify form and model in 9 bytes: a posterior means nothing to another model or form."""
        return np.frombuffer(
            bytes([NUMBERED.index(self.form)]) + bytes.fromhex(self.model.identity)[:8], dtype=np.uint8
        )


def _factors(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Factors:
    """Read the factors that `Recovery.context` wrote; contexts of earlier versions have one for each sensor."""
    base = arrays["factors"].astype(np.float64)
    if not {"group", "slope", "centre", "tried"} <= set(arrays):
        return Factors.plain(base)
    slope, centre, tried = (arrays[name].astype(np.float64) for name in ("slope", "centre", "tried"))
    return Factors(base, arrays["group"].astype(np.intp), slope, centre, tried)
