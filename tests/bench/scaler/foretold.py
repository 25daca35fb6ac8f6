"""The same curve by numbers alone: what a clairvoyant would pay, and what the simulator makes of the policies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from tests.bench.scaler import known
from tests.bench.scaler.arrangement import ALWAYS_ON, HOUR_S, PRICES, SCENARIOS, SLOT_S, TOLD, local_rate, types
from tests.bench.scaler.curve import MINUTE_S, Curve, like
from tests.bench.scaler.trial import HISTORY
from tsunagi.scaler.bound import cost_bound
from tsunagi.scaler.policy import Billing, PolicySettings
from tsunagi.scaler.policy_by_name import make_policy
from tsunagi.scaler.simulate import Simulation
from tsunagi.scaler.trace import STEP_S


class Foretold(NamedTuple):
    """A policy on the curve in the simulator; `forecast`: told the rates that come, or its own after a history."""

    scenario: str
    forecast: str
    score: float
    saved: float
    late: float
    before_last: float
    launches: int


def always_on(curve: Curve) -> float:
    """Return the score of the workers that are there all the time."""
    hours = curve.minutes * MINUTE_S / HOUR_S
    return sum(PRICES[kind] * count for kind, count in ALWAYS_ON.items()) * hours


def least(curve: Curve, slo_s: float) -> float:
    """Return what a clairvoyant pays who keeps every tuple within `slo_s` (of the paper's seconds)."""
    return cost_bound(curve.steps(STEP_S), STEP_S, types(), local_rate(), slo_s)


def simulated(curve: Curve, billing: Billing, slo_s: float) -> list[Foretold]:
    """Run the policies in the simulator, told what comes and by themselves; workers take their whole limits."""
    rates = curve.steps(STEP_S)
    last = round(curve.bursts[-1].rises * MINUTE_S / STEP_S)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "told.json"
        known.tell(file, curve, 1.0, 1.0, 0.0)
        with mock.patch.dict(os.environ, {known.VARIABLE: str(file)}):
            for scenario in SCENARIOS:
                for forecast in ("told", "own") if scenario.elastic else ():
                    name = f"{known.Counted.__module__}:Counted" if forecast == "told" else ""
                    settings = PolicySettings(
                        policy=scenario.policy,
                        types=types(TOLD),
                        slot_s=SLOT_S,
                        billing=billing,
                        slo_s=slo_s,
                        forecast=name,
                    )
                    policy = make_policy(settings)
                    if forecast == "own":
                        policy.learn(np.concatenate([one.steps(STEP_S) for one in like(curve, HISTORY)]), STEP_S)
                    run = Simulation(settings, policy, rates, local_rate(), speed=1 / TOLD).run()
                    late = run.late[:last].sum() / max(rates[:last].sum() * STEP_S, 1.0)
                    saved = 1 - run.cost / always_on(curve)
                    share = run.late_share
                    rows.append(Foretold(scenario.name, forecast, run.cost, saved, share, float(late), run.launches))
    return rows
