"""Policies on traces: cost over the clairvoyant bound and late tuples, by policy, by slot, with slower workers.

    python -m tests.bench.scaler_policies --traces DIRECTORY --out out/scaler-policies.json

Hourly billing, 100 s boot, 10 s limit. One JSON object comes out:

    policies     by trace and policy: the figures of `tsunagi scaler simulate`
    slots        by trace and TimeSlot of 1, 5, 15, 60 minutes: the same, of the default policy
    slower       by trace: the same with workers 15 % slower than told
    failing      by trace: the same with a forecaster that returns NaN; `over_threshold` is the ratio of costs
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.scaler.rivals import RIVALS, make_rival
from tsunagi.runtime.columns import Floats
from tsunagi.scaler.policy import Policy, PolicySettings
from tsunagi.scaler.simulate_report import SimulateOptions, simulate
from tsunagi.scaler.trace import PEAK_RATE

SLOTS_S = (60.0, 300.0, 900.0, 3600.0)
HELD_TO = {"nyc_taxi": 1.25, "nasa95": 1.90}
LATE = 0.01


def rival(settings: PolicySettings) -> Policy:
    """Make any policy that is compared; always-on is told of the peak."""
    return make_rival(settings, PEAK_RATE)


class NotANumber:
    """A forecaster that is out of order."""

    def __init__(self, slot_s: float) -> None:
        del slot_s

    def update(self, value: float) -> None:
        del value

    def means(self, horizon: int) -> Floats:
        return np.full(horizon, np.nan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", default="", help="stem of one trace")
    parser.add_argument("--out", type=Path, default=Path("out/scaler-policies.json"))
    options = parser.parse_args()
    base = PolicySettings()
    result: dict[str, Any] = {
        "bench": "scaler_policies",
        "policies": {},
        "slots": {},
        "slower": {},
        "failing": {},
        "held_to": {"cost_over_bound": HELD_TO, "late_share": LATE, "over_threshold": 1.1},
    }
    for path in sorted(options.traces.glob(f"{options.only or '*'}.csv")):

        def run(settings: PolicySettings, path: Path = path, speed: float = 1.0) -> dict[str, Any]:
            out = options.out.parent / f"{path.stem}.json"
            return simulate(SimulateOptions(path, settings, 100.0, out, speed=speed), lambda _line: None, rival)

        name = path.stem
        found = {policy: run(replace(base, policy=policy)) for policy in RIVALS}
        result["policies"][name] = found
        result["slots"][name] = {slot_s: run(replace(base, slot_s=slot_s)) for slot_s in SLOTS_S}
        result["slower"][name] = run(base, speed=0.85)
        failing = run(replace(base, forecast=f"{NotANumber.__module__}:NotANumber"))
        result["failing"][name] = failing | {"over_threshold": failing["cost"] / found["threshold"]["cost"]}
    outcome.write(result, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
