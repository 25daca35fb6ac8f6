"""The operator of `docs/howto/operators.md`, as it stands there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsunagi import Frame, Operator, OperatorError, SlotConfig, pack_arrays, unpack_arrays


class Smooth(Operator):
    """Exponential smoothing: each sensor's value becomes weight * value + (1 - weight) * what it was before."""

    def __init__(self, config: SlotConfig, *, weight: float = 0.2) -> None:
        if not 0 < weight <= 1:
            raise OperatorError(f"smooth: weight: found {weight}, expected more than 0 and at most 1")
        self._weight = weight
        self._sensor = np.array(config.sensors, dtype=np.uint32)
        self._level = np.full(len(self._sensor), np.nan)  # NaN = this sensor has had no value yet

    def process(self, frame: Frame) -> Sequence[Frame]:
        places = np.searchsorted(self._sensor, frame.sensor)
        before = self._level[places]
        level = np.where(np.isnan(before), frame.mean, self._weight * frame.mean + (1 - self._weight) * before)
        level = np.where(np.isnan(frame.mean), before, level)  # a missing value leaves the level as it is
        self._level[places] = level
        return (frame.replace(mean=np.where(np.isnan(frame.mean), np.nan, level)),)

    def context(self) -> bytes:
        return pack_arrays({"level": self._level})

    def restore(self, context: bytes) -> None:
        self._level = unpack_arrays(context)["level"].astype(np.float64)
