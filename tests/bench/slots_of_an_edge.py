"""What it costs in accuracy that an edge's sensors stand in few slots: errors of recovery by their number.

    python -m tests.bench.slots_of_an_edge --out out/slots-of-an-edge.json

Two fleets: the traffic speeds of `data/guangzhou.csv`, 8 neighbouring sections an edge, and a generated one of more
edges, in which sensors follow loads of the whole fleet, of their area (an edge and its neighbours), and their own. The
first half of the series is fitted to. In the second half whole edges fail for 10 steps, now this, now that one; each
slot recovers what it has lost from its own sensors alone. One JSON object comes out: by number of slots an edge, the
records of a step, and the root mean squared error and interval score of the bounds of 0.9, in units of each sensor's
standard deviation; "one slot" is what all sensors together know.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.recovery_data import SCORED_LEVEL, Mask, failures, interval_scores
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.fit import read_history
from tsunagi.recovery.model import Model
from tsunagi.runtime import sensors
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.sensors import Sensor, SensorTable, place

SECTIONS = 8
"""Sensors of an edge in the first fleet."""
MISSING = 0.05
"""Share of values that is lost."""
GENERATED = {"edges": 60, "an_edge": 10, "steps": 1200}
WIDTHS = (1, 2, 4, 8)


def generated(edges: int, an_edge: int, steps: int, seed: int = 3) -> Floats:
    """Return float64[steps, edges * an_edge]: loads of the fleet, of areas and of sensors, each slowly changing."""
    draw = np.random.default_rng(seed)

    def walks(count: int) -> Floats:
        found = np.zeros((steps, count))
        for step in range(1, steps):
            found[step] = 0.9 * found[step - 1] + np.sqrt(1 - 0.9**2) * draw.normal(size=count)
        return found

    whole, areas, own = walks(3), walks(edges + 2), walks(edges * an_edge)
    edge_of = np.repeat(np.arange(edges), an_edge)
    near = sum(areas[:, edge_of + k] * draw.uniform(0.3, 1.0, len(edge_of)) for k in range(3))
    found: Floats = whole @ draw.normal(size=(3, len(edge_of))) * 0.5 + near + 0.4 * own
    return found


def errors(model: Model, values: Floats, hidden: Mask, slot_of: np.ndarray, unit: Floats) -> dict[str, float]:
    """Return the root mean squared error and the interval score of all hidden values."""
    off, scores = [], []
    for slot in np.unique(slot_of):
        mine = np.flatnonzero(slot_of == slot)
        recovery = Recovery(model.select([model.names[sensor] for sensor in mine]), delta=SCORED_LEVEL)
        for step in range(len(values)):
            lost = hidden[step, mine]
            mean = recovery.step(np.where(lost, np.nan, values[step, mine]), step).mean
            if lost.any():
                error = np.abs(mean - values[step, mine])[lost] / unit[mine][lost]
                half = recovery.half_widths(SCORED_LEVEL)[lost] / unit[mine][lost]
                off.append(error)
                scores.append(interval_scores(error, half))
    return {
        "nrmse": round(float(np.sqrt(np.mean(np.concatenate(off) ** 2))), 4),
        "interval_score": round(float(np.mean(np.concatenate(scores))), 4),
    }


def run(values: Floats, an_edge: int, slots: int, seeds: int) -> dict[str, Any]:
    """Return what is found for one fleet."""
    n, half = values.shape[1], len(values) // 2
    table = SensorTable(tuple(Sensor(k, f"s{k}", f"e{k // an_edge}") for k in range(n)))
    edge_of = np.arange(n) // an_edge
    model, _ = estimate(
        values[:half], [sensor.name for sensor in table.sensors], edges=[sensor.edge for sensor in table.sensors]
    )
    assert len(model) == n
    unit = np.nanstd(values, axis=0)
    layouts = {f"{width}": place(table, slots, width) for width in WIDTHS if width < slots}
    layouts |= {f"{slots} (all)": place(table, slots, slots), "one slot": np.zeros(n, dtype=np.uint32)}
    found: dict[str, Any] = {}
    for name, slot_of in layouts.items():
        trials = [
            errors(model, values[half:], failures(len(values) - half, edge_of, MISSING, seed), slot_of, unit)
            for seed in range(1, seeds + 1)
        ]
        records = len({(edge, slot) for edge, slot in zip(edge_of.tolist(), slot_of.tolist(), strict=True)})
        found[name] = {"records_a_step": records} | {
            key: round(float(np.mean([trial[key] for trial in trials])), 4) for key in trials[0]
        }
    return {"sensors": n, "edges": int(edge_of.max()) + 1, "slots": slots, "slots_of_an_edge": found}


def main() -> int:
    """Run the bench from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3, help="draws of failures; the mean counts")
    parser.add_argument("--out", type=Path, default=Path("out/slots-of-an-edge.json"))
    given = parser.parse_args()
    sensors.LEAST_EDGES = 1  # so that few slots an edge are tried in fleets of few edges as well
    traffic = read_history(Path("data/guangzhou.csv")).values
    fleets = {
        "traffic": (traffic, SECTIONS),
        "generated": (generated(**GENERATED), GENERATED["an_edge"]),
    }
    outcome.write(
        {"bench": "slots_of_an_edge", "seeds": given.seeds, "missing": MISSING}
        | {name: run(values, an_edge, given.slots, given.seeds) for name, (values, an_edge) in fleets.items()},
        given.out,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
