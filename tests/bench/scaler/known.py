"""A forecaster that is told, as in the paper: "the data rate given as input is taken for the forecast as it stands"."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from tests.bench.scaler.curve import MINUTE_S, Burst, Curve
from tsunagi.runtime.columns import Floats

VARIABLE = "BENCH_CURVE"
"""Names the file that says which curve is run, how fast, and since when."""


def tell(file: Path, curve: Curve, speed: float, factor: float, began_s: float | None) -> None:
    """Write what the forecaster is to know.

    Args:
        speed: the paper's seconds in one of the system's.
        factor: what the rates are multiplied by.
        began_s: seconds since the epoch; None = it has not begun.
    """
    scratch = file.with_suffix(".tmp")
    told = {"curve": asdict(curve), "speed": speed, "factor": factor, "began_s": began_s}
    scratch.write_text(json.dumps(told), encoding="utf-8")
    scratch.replace(file)


class Known:
    """Reads off the curve what the next slots will bring."""

    def __init__(self, slot_s: float) -> None:
        self.slot_s = slot_s

    def update(self, value: float) -> None:
        """What has come says nothing new."""

    def means(self, horizon: int) -> Floats:
        """Return the curve's means from now on."""
        told = json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))
        curve = Curve(tuple(Burst(**burst) for burst in told["curve"]["bursts"]), told["curve"]["minutes"])
        minute_s = MINUTE_S / told["speed"]
        gone_s = self.gone_s(told["began_s"], horizon)
        return curve.means(gone_s / minute_s, self.slot_s / minute_s, horizon) * float(told["factor"])

    def gone_s(self, began_s: float | None, horizon: int) -> float:
        """Return how long the curve has run; until it has begun all is as at its beginning, however far one looks."""
        return -horizon * self.slot_s if began_s is None else time.time() - began_s


class Counted(Known):
    """The same in the simulator, which has no clock: a slot has gone with each value."""

    def __init__(self, slot_s: float) -> None:
        super().__init__(slot_s)
        self._gone = 0

    def update(self, value: float) -> None:
        del value
        self._gone += 1

    def gone_s(self, began_s: float | None, horizon: int) -> float:
        """Return how long the slots were that have gone."""
        del began_s, horizon
        return self._gone * self.slot_s
