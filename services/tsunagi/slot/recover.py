"""The operator `recover`: estimates what dead edges would have sent (approximate recovery, `tsunagi.recovery`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.factors import Factors
from tsunagi.recovery.filter import Recovery, StepEstimate
from tsunagi.recovery.forms import Choice
from tsunagi.recovery.model import Model
from tsunagi.runtime.columns import Floats, octets, pack_arrays, unpack_arrays
from tsunagi.runtime.messages import UNBOUNDED, UNMODELLED
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.controls import BoundsControl, Control, DistrustControl, FactorsControl, HelpersControl, RefitControl
from tsunagi.slot.frames import Frame

Watcher = Callable[[int, Floats, StepEstimate], None]
"""Is called for each step with its number, the readings of the filter's sensors (NaN = missing), and the estimate."""


class Recover:
    """Estimates missing values, each with its bound (approximate recovery).

    Values of sensors that the model does not know pass through with the tag `unmodelled`, without a model all values.
    While the slot has helpers (sensors of other slots), estimates come from a second filter of the slot's sensors and
    the helpers.

    Attributes:
        heard: float64[h], the helpers' readings of the last step; NaN = none came in time.
        withheld: how many values were not given out since their bound was wider than eps (`[recovery] unbounded`).
    """

    def __init__(self, config: SlotConfig, *, model: Model | None = None) -> None:
        self._sensors = np.array(config.sensors, dtype=np.uint32)
        self._model = model
        self._filter: Recovery | None = None
        self._fitted: tuple[Model, Choice] | None = None  # what the filter began with, before any refit
        self._wide: Recovery | None = None  # the filter with the helpers, beside the other; None = there are none
        self._helpers: tuple[int, ...] = ()
        self.heard: Floats = np.empty(0)
        self._withhold = config.unbounded == "withhold"
        self.withheld = 0
        self._places = np.empty(0, dtype=np.intp)
        if model is not None:
            known = set(model.names)
            self._places = np.array([i for i, name in enumerate(config.model_names) if name in known], dtype=np.intp)
        if model is not None and len(self._places):
            part = model.select([config.model_names[i] for i in self._places])
            self._filter = Recovery(part, eps=config.eps, delta=config.delta)
            self._fitted = part, self._filter.choice
        self._watchers: dict[object, tuple[Watcher, float]] = {}  # by owner: (watcher, its multiplications a step)

    def take_over(self, earlier: Recover, step: int) -> None:
        """Go on from the state of an operator of other sensors: what it knew of those that stay is kept.

        Args:
            step: the last step that has closed.
        """
        self.withheld = earlier.withheld
        mine, before = self._filter, earlier.recovery
        if mine is None or before is None or self._model is not earlier.base:
            return
        with contextlib.suppress(ModelError):  # another scale: the filter begins anew, and its bounds are wider
            mine.continue_from(before, step)

    @property
    def base(self) -> Model | None:
        """The model that the filter was made of, before any refit; None = there is none."""
        return self._model

    @property
    def recovery(self) -> Recovery | None:
        """The filter; None = there is no model, or it knows none of the slot's sensors."""
        return self._filter

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """The places of the filter's sensors among the slot's sensors, intp[k]."""
        return self._places

    def on_control(self, control: Control) -> None:
        """Obey a control record of the slot's log: settings, a model, calibration, or helpers."""
        match control:
            case BoundsControl(config):
                self._set_bounds(config)
            case RefitControl(model, step):
                self._follow(model, step)
            case FactorsControl(factors):
                self._set_factors(factors)
            case DistrustControl(sensor, out):
                self._distrust(sensor, out=out)
            case HelpersControl(sensors, names, step):
                self._set_helpers(sensors, names, step)

    def _set_bounds(self, config: SlotConfig) -> None:
        """Use another eps and delta from the next step on."""
        self._withhold = config.unbounded == "withhold"
        for filter_ in self._filters():
            filter_.set_bounds(eps=config.eps, delta=config.delta)

    def _follow(self, model: Model, step: int) -> None:
        """Go on with a refit of the filter's model. The filter with helpers keeps its model.

        A refit of other sensors changes nothing: the slot's settings have changed since it was made.
        """
        mine = self._filter
        if mine is not None and mine.model.names == model.names and np.array_equal(mine.model.scale, model.scale):
            with contextlib.suppress(ModelError):  # no covariance matrix: all replicas keep the old model
                mine.follow(model, step)

    def _set_helpers(self, sensors: Sequence[int], names: Sequence[str], step: int) -> None:
        """Use readings of these sensors of other slots from the next step on, if the model knows the sensors."""
        self._wide, self._helpers = None, ()
        if self._filter is None or self._model is None:
            return
        known = set(self._model.names) - set(self._filter.model.names)
        usable = [(sensor, name) for sensor, name in zip(sensors, names, strict=True) if name in known]
        if usable:
            names = [*self._filter.model.names, *(name for _, name in usable)]
            with contextlib.suppress(ModelError):  # no covariance, by rounding: all go on without helpers
                self._wide = self._filter.widened(self._model.select(names), step, self._fitted)
                self._helpers = tuple(sensor for sensor, _ in usable)

    def hear(self, helpers: Mapping[int, float]) -> None:
        """Take in the helpers' readings of the next step, by sensor id."""
        self.heard = np.array([helpers.get(sensor, np.nan) for sensor in self._helpers])

    def _filters(self) -> list[Recovery]:
        return [filter_ for filter_ in (self._filter, self._wide) if filter_ is not None]

    def watch(self, by: object, watcher: Watcher, operations: float = 0.0) -> None:
        """Call this watcher after each step. It has no influence on the outputs.

        Args:
            by: the watcher's owner; a second watcher of the same owner replaces the first.
            operations: the most multiplications that the watcher needs for a step.
        """
        self._watchers[by] = watcher, operations

    def unwatch(self, by: object) -> None:
        """Stop calling the watcher of this owner."""
        self._watchers.pop(by, None)

    def _distrust(self, sensor: int, *, out: bool) -> None:
        """Let a sensor's readings count as missing, or no longer; sensors that the filter lacks are ignored."""
        for place in np.flatnonzero(self._sensors[self._places] == sensor).tolist():
            for filter_ in self._filters():
                filter_.distrust(place, out=out)

    def _set_factors(self, factors: Factors) -> None:
        """Multiply the model's standard deviations by these factors of the slot's sensors.

        Nothing changes if the factors are those of other sensors, or are not valid.
        """
        if not factors.base.shape == factors.group.shape == self._sensors.shape:
            return
        own = factors.select(self._places)
        if own.valid:
            for filter_ in self._filters():
                filter_.set_factors(own.widened(len(filter_.model) - len(own.base)))

    def operations(self, values: Floats) -> float:
        """Return about how many multiplications a step with these readings takes, including the watchers'."""
        if self._filter is None:
            return 0.0
        lost = self._filter.distrusted | ~np.isfinite(values[self._places])
        watching = sum(operations for _, operations in self._watchers.values())
        return sum(filter_.operations(int(lost.sum())) for filter_ in self._filters()) + watching

    def process(self, frame: Frame) -> Sequence[Frame]:
        mean, sd, bound = frame.mean.copy(), frame.sd.copy(), frame.bound.copy()
        quality = np.full_like(frame.quality, UNMODELLED)
        if self._filter is not None:
            readings, count = frame.mean[self._places], len(self._places)
            estimate = own = self._filter.step(readings, frame.step)
            if self._wide is not None:
                estimate = self._wide.step(np.concatenate([readings, self.heard]), frame.step)
            mean[self._places] = estimate.mean[:count]
            sd[self._places] = estimate.sd[:count]
            quality[self._places] = estimate.quality[:count]
            bound[self._places] = estimate.bound[:count]
            if self._withhold:
                wide = quality == UNBOUNDED
                mean[wide] = np.nan
                self.withheld += int(wide.sum())
            for watcher, _ in self._watchers.values():
                watcher(frame.step, readings, own)
        return (replace(frame, mean=mean, sd=sd, quality=quality, bound=bound),)

    def context(self) -> bytes:
        if self._filter is None:
            return b""
        own = self._filter.context()
        if self._wide is None:
            return own
        return pack_arrays({"own": octets(own), "wide": octets(self._wide.context())})

    def restore(self, context: bytes) -> None:
        if self._filter is None or not context:
            return
        if self._wide is None:
            self._filter.resume(context)
            return
        both = unpack_arrays(context)
        self._filter.resume(both["own"].tobytes())
        self._wide.resume(both["wide"].tobytes())
