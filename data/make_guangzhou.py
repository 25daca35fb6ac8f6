"""Make guangzhou.csv and guangzhou-sensors.csv from a text file of 214 rows (road sections) by 500 columns (times).

Usage: python data/make_guangzhou.py z_guangzhou.txt [output directory]; data/README.md says where the file is from.
"""  # noqa: INP001 - a script beside its data, not a package

from __future__ import annotations

import csv
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

ROADS, TIMES = 214, 500
START = datetime(2016, 8, 1, tzinfo=timezone(timedelta(hours=8)))
STEP = timedelta(minutes=10)
EDGES = 4
GROUP_SIZES = (4, 7, 16, 9, 12, 5, 20, 11, 8, 14, 6, 18, 10, 13, 9, 15, 7, 12, 10, 8)
"""Twenty stretches of neighbouring road numbers, of unequal size as real equipment is."""
FIT_SHARE = 0.4
"""Thresholds come from the rows that the model is fitted on, so that the rows replayed after them stay unseen."""


def main(source: Path, target: Path) -> None:
    """Write both files into `target`."""
    cells = [line.split() for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
    shape = (len(cells), {len(row) for row in cells})
    if shape != (ROADS, {TIMES}):
        sys.exit(f"{source}: found {shape[0]} rows of {sorted(shape[1])} values, expected {ROADS} rows of {TIMES}")
    names = [f"road-{number:03d}" for number in range(1, ROADS + 1)]
    with (target / "guangzhou.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time", *names])
        for time in range(TIMES):
            writer.writerow([(START + time * STEP).isoformat(), *(row[time] for row in cells)])
    fitted = np.array(cells, dtype=np.float64)[:, : round(FIT_SHARE * TIMES)]
    thresholds = np.quantile(fitted, 0.9, axis=1)
    groups = [f"area-{number:02d}" for number, size in enumerate(GROUP_SIZES, start=1) for _ in range(size)]
    with (target / "guangzhou-sensors.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sensor", "edge", "group", "unit", "threshold", "min", "max"])
        for number, (name, group, threshold) in enumerate(zip(names, groups, thresholds, strict=True)):
            # Neighbouring roads go to different edges: what a dead edge loses, the roads beside it still tell.
            writer.writerow([name, f"edge-{number % EDGES + 1}", group, "km/h", f"{threshold:.1f}", 0, 130])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent)
