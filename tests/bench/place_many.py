"""How long it takes to place many sensors by the model, and what that is worth beside spreading them.

    python -m tests.bench.place_many --sensors 20000 --edges 200 --slots 64 --out out/place-many.json

The model is of low rank, as `tsunagi fit` makes it of so many sensors: each cause is shared by the sensors near a place
on a line. Neighbours on the line are of one edge. One JSON object comes out:

    seconds         of `place_sensors` with `placement = "proposed-swap"`, the model file's reading included
    peak_mib        greatest resident memory of the process
    told            equation (12), summed over the slots, divided by that of `placement = "spread"`
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tsunagi.recovery.low_rank import LowRank
from tsunagi.recovery.model import LowRankModel
from tsunagi.recovery.partition import Slots
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi.scaler.placing import place_sensors

CAUSES = 32
REACH = 0.02
"""How far a cause is felt on the line, whose length is 1: the standard deviation of its weights."""
EVERYWHERE = 0.1
"""Standard deviation of the loadings that do not depend on the place."""
OWN = 0.3
"""What each sensor has of its own, a variance."""
KEPT = 0.9
"""Autoregression of all sensors."""


def covariance(sensors: int) -> LowRank:
    """Return a covariance of low rank."""
    draw = np.random.default_rng(1)
    places, centres = np.arange(sensors)[:, None] / sensors, draw.random(CAUSES)
    loadings = np.exp(-np.square(places - centres) / (2 * REACH**2)) * draw.normal(1.0, 0.3, (sensors, CAUSES))
    return LowRank(loadings + EVERYWHERE * draw.normal(size=loadings.shape), np.full(sensors, OWN))


def told(known: LowRank, edges: Slots, slot_of: Slots) -> float:
    """Return equation (12), summed over the slots, without a matrix of all sensors."""
    total, size = 0.0, np.sqrt(known.variances)
    for slot in np.unique(slot_of):
        members = np.flatnonzero(slot_of == slot)
        block = np.square(known.block(members, members) / np.outer(size[members], size[members]))
        total += float(block[edges[members][:, None] != edges[members]].sum()) / 2
    return total


def run(sensors: int, edges: int, slots: int) -> dict[str, Any]:
    """Place a fleet both ways; return the figures."""
    edge_of = np.arange(sensors) * edges // sensors
    names = tuple(f"s{number}" for number in range(sensors))
    table = SensorTable(tuple(Sensor(number, name, f"e{edge_of[number]}") for number, name in enumerate(names)))
    known, same = covariance(sensors), np.ones(sensors)
    noise = known.times(1 - KEPT**2)
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "model.bin"
        LowRankModel(names, mean=0 * same, scale=same, transition=KEPT * same, noise=noise, known=known).save(file)
        found = {}
        for method in ("spread", "proposed-swap"):
            settings = Settings(slots={"count": slots, "placement": method}, recovery={"model": str(file)})
            began = time.perf_counter()
            placed = place_sensors(settings, table).astype(np.intp)
            found[method] = time.perf_counter() - began, told(known, edge_of, placed)
    return {
        "bench": "place_many",
        "sensors": sensors,
        "edges": edges,
        "slots": slots,
        "seconds": round(found["proposed-swap"][0], 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "told": round(found["proposed-swap"][1] / found["spread"][1], 2),
        "bounds": {"seconds": 30},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    outcome.write(run(options.sensors, options.edges, options.slots), options.out)
    sys.stdout.write(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
