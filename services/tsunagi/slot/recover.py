"""The operator `recover`: fills in what dead edges would have sent (approximate recovery, `tsunagi.recovery`)."""

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
"""Is shown a step: its number, the filter's sensors' readings (NaN = missing), and what was made of them."""


class Recover:
    """Fills in what is missing, each value with its bound (approximate recovery).

    Sensors that the model does not know pass through, tagged `unmodelled`; without a model all do. While the slot has
    helpers, values come from a second filter, of the slot's sensors and theirs.

    Attributes:
        heard: the helpers' readings of the last step, float64[h], NaN = none came in time.
        withheld: values that did not go out since their bound was wider than eps (`[recovery] unbounded`).
    """

    def __init__(self, config: SlotConfig, *, model: Model | None = None) -> None:
        self._sensors = np.array(config.sensors, dtype=np.uint32)
        self._model = model
        self._filter: Recovery | None = None
        self._fitted: tuple[Model, Choice] | None = None  # what the filter began with, before any refit
        self._wide: Recovery | None = None  # of the helpers too; it runs beside the other while there are any
        self._helpers: tuple[int, ...] = ()
        self.heard: Floats = np.empty(0)
        self._withhold = config.unbounded == "withhold"
        self.withheld = 0
        self._places = np.empty(0, dtype=np.intp)
        if model is not None:
            known = set(model.names)
            self._places = np.array([i for i, name in enumerate(config.names) if name in known], dtype=np.intp)
        if model is not None and len(self._places):
            part = model.select([config.names[i] for i in self._places])
            self._filter = Recovery(part, eps=config.eps, delta=config.delta)
            self._fitted = part, self._filter.choice
        self._watchers: dict[object, tuple[Watcher, float]] = {}  # by whom: what is shown each step, and what it takes

    @property
    def recovery(self) -> Recovery | None:
        """The filter; None = there is no model, or it knows none of the slot's sensors."""
        return self._filter

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """Which of the slot's sensors the filter's are."""
        return self._places

    def on_control(self, control: Control) -> None:
        """Go by what the slot's log says of settings, models, calibration and helpers."""
        match control:
            case BoundsControl(config):
                self._aim(config)
            case RefitControl(model, step):
                self._follow(model, step)
            case FactorsControl(factors):
                self._set_factors(factors)
            case DistrustControl(sensor, out):
                self._distrust(sensor, out=out)
            case HelpersControl(sensors, names, step):
                self._set_helpers(sensors, names, step)

    def _aim(self, config: SlotConfig) -> None:
        """Go by another eps and delta from the next step on."""
        self._withhold = config.unbounded == "withhold"
        for filter_ in self._filters():
            filter_.aim(eps=config.eps, delta=config.delta)

    def _follow(self, model: Model, step: int) -> None:
        """Go on with a refit of the filter's model; sensors that helped still do, by the model they came with.

        One of other sensors changes nothing: the slot's settings have changed since it was made.
        """
        mine = self._filter
        if mine is not None and mine.model.names == model.names and np.array_equal(mine.model.scale, model.scale):
            with contextlib.suppress(ModelError):  # no covariance: everyone stays with what they have
                mine.follow(model, step)

    def _set_helpers(self, sensors: Sequence[int], names: Sequence[str], step: int) -> None:
        """Use readings of these sensors of other slots from the next step on, as far as the model knows them."""
        self._wide, self._helpers = None, ()
        if self._filter is None or self._model is None:
            return
        known = set(self._model.names) - set(self._filter.model.names)
        usable = [(sensor, name) for sensor, name in zip(sensors, names, strict=True) if name in known]
        if usable:
            names = [*self._filter.model.names, *(name for _, name in usable)]
            with contextlib.suppress(ModelError):  # no covariance by rounding: everyone goes on without
                self._wide = self._filter.widened(self._model.select(names), step, self._fitted)
                self._helpers = tuple(sensor for sensor, _ in usable)

    def hear(self, helpers: Mapping[int, float]) -> None:
        """Take note of the helpers' readings of the step that comes next."""
        self.heard = np.array([helpers.get(sensor, np.nan) for sensor in self._helpers])

    def _filters(self) -> list[Recovery]:
        return [filter_ for filter_ in (self._filter, self._wide) if filter_ is not None]

    def watch(self, by: object, watcher: Watcher, operations: float = 0.0) -> None:
        """Show each step to this watcher after it was taken; what comes out does not hang on it.

        Args:
            by: who watches; a second watcher of the same takes the place of the first.
            operations: multiplications that it needs for a step at most.
        """
        self._watchers[by] = watcher, operations

    def unwatch(self, by: object) -> None:
        """Show no more steps to this one's watcher."""
        self._watchers.pop(by, None)

    def _distrust(self, sensor: int, *, out: bool) -> None:
        """Let a sensor's readings count as missing, or no longer; unknown sensors are passed over."""
        for place in np.flatnonzero(self._sensors[self._places] == sensor).tolist():
            for filter_ in self._filters():
                filter_.distrust(place, out=out)

    def _set_factors(self, factors: Factors) -> None:
        """Multiply the model's standard deviations by these, of the slot's sensors.

        Nothing changes if they are of other sensors, or cannot be computed with.
        """
        if not factors.base.shape == factors.group.shape == self._sensors.shape:
            return
        own = factors.select(self._places)
        if own.valid:
            for filter_ in self._filters():
                filter_.set_factors(own.widened(len(filter_.model) - len(own.base)))

    def operations(self, values: Floats) -> float:
        """Return about how many multiplications a step with these readings takes, what watches included."""
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
