"""Forecasts: mean absolute error against plain SDAR, coverage of the 95 % quantile, time of an update.

    python -m tests.bench.scaler_forecast --traces DIRECTORY --out out/scaler-forecast.json

Every CSV file of the directory is a trace; slots of five minutes, the default days scored. One JSON object comes out:

    traces       by trace: mae of mixture and SDAR 1, 3, 12, 24 slots ahead, their ratios, coverage, update_ms
    mae_ratio    geometric means over the traces, and `held_to`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tsunagi.scaler.forecast.base import HORIZON, LEVELS
from tsunagi.scaler.forecast.calibrated import Calibrated
from tsunagi.scaler.forecast.mixture import Mixture
from tsunagi.scaler.forecast.sdar import Sdar
from tsunagi.scaler.trace import DAY_S, default_score_days, read_trace, resample, scale

LEADS = (1, 3, 12, 24)
SLOT_S = 300.0
RATIOS = {1: 0.83, 12: 0.65}
COVERAGE = (0.93, 0.97)
UPDATE_MS = 3.0
LEARN_DAYS = 56


def run(values: np.ndarray, forecaster: Calibrated) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means and 95 % quantiles, (slots, HORIZON), and CPU seconds of each update."""
    level = int(np.flatnonzero(LEVELS == 0.95)[0])
    means, quantiles = np.zeros((len(values), HORIZON)), np.zeros((len(values), HORIZON))
    spent = np.zeros(len(values))
    for i, value in enumerate(values):
        before = time.process_time()
        forecaster.update(float(value))
        found = forecaster.forecast(HORIZON)
        spent[i] = time.process_time() - before
        means[i], quantiles[i] = found.mean, found.quantiles[:, level]
    return means, quantiles, spent


def measure(path: Path) -> dict[str, Any]:
    trace = read_trace(path)
    scored = round(default_score_days(trace) * DAY_S / SLOT_S)
    values = resample(scale(trace), SLOT_S).rates[-round(LEARN_DAYS * DAY_S / SLOT_S) - scored :]
    at = np.arange(len(values) - scored, len(values))
    found: dict[str, Any] = {}
    for name, forecaster in (("mixture", Calibrated(Mixture(SLOT_S))), ("sdar", Calibrated(Sdar(3, 0.01)))):
        means, quantiles, spent = run(values, forecaster)
        found[name] = {
            "mae": {lead: float(np.abs(values[at] - means[at - lead, lead - 1]).mean()) for lead in LEADS},
            "coverage": {lead: float((values[at] <= quantiles[at - lead, lead - 1]).mean()) for lead in LEADS},
            "update_ms": {"mean": float(spent.mean() * 1e3), "p99": float(np.percentile(spent, 99) * 1e3)},
        }
    found["ratio"] = {lead: found["mixture"]["mae"][lead] / found["sdar"]["mae"][lead] for lead in LEADS}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/scaler-forecast.json"))
    options = parser.parse_args()
    traces = {path.stem: measure(path) for path in sorted(options.traces.glob("*.csv"))}
    ratios = {
        lead: float(np.exp(np.mean([np.log(found["ratio"][lead]) for found in traces.values()]))) for lead in LEADS
    }
    inside = {
        name: COVERAGE[0] <= found["mixture"]["coverage"][1] <= COVERAGE[1]
        and found["mixture"]["update_ms"]["mean"] <= UPDATE_MS
        for name, found in traces.items()
    }
    result = {
        "bench": "scaler_forecast",
        "traces": traces,
        "mae_ratio": ratios,
        "held_to": {"mae_ratio": RATIOS, "coverage_1": COVERAGE, "update_ms": UPDATE_MS},
        "held": {"mae_ratio": {lead: ratios[lead] <= bound for lead, bound in RATIOS.items()}, "traces": inside},
    }
    outcome.write(result, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
