"""What the systems of the e2e tests work on: a stream of correlated signals, its sensors table and a fitted model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsunagi.recovery.fit import fit_history
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import StepsSettings

SENSORS, EDGES, GROUPS = 24, 4, 3
ROWS, FIT_ROWS = 9000, 1200  # 15 minutes: more than any test reads
STEPS = StepsSettings(interval_s=0.1, window=10, slide=2)
PLAYED, MARKED = "edge-x", "marked"
"""An edge, and its one sensor, that a test plays itself: no process runs for it and the CSV does not have it."""

_WAVES, _NOISE = 5, 0.3


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of a stream."""

    data: Path
    sensors: Path
    model: Path
    table: SensorTable
    steps: StepsSettings = STEPS


def write_inputs(
    directory: Path,
    *,
    played: bool = False,
    sensors: int = SENSORS,
    edges: int = EDGES,
    rows: int = ROWS,
    steps: StepsSettings = STEPS,
) -> Inputs:
    """Write the files; the same ones for the same arguments.

    Args:
        played: whether the table has the edge `PLAYED`.
        sensors, edges, rows: how many there are.
        steps: a row lasts their interval.
    """
    directory.mkdir(parents=True, exist_ok=True)
    data, table_file, model = (directory / name for name in ("data.csv", "sensors.csv", "model.bin"))
    names = [f"s{number:02d}" for number in range(sensors)]
    values = np.round(_signals(np.random.default_rng(20100310), rows, sensors, steps.interval_s), 4)
    lines = [",".join(names), *(",".join(map(str, row)) for row in values.tolist())]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [
        f"{name},edge-{number % edges + 1},group-{number * GROUPS // sensors + 1},{values[:, number].mean():.3f}"
        for number, name in enumerate(names)
    ]
    if played:
        lines.append(f"{MARKED},{PLAYED},group-1,")
    table_file.write_text("\n".join(["sensor,edge,group,threshold", *lines]) + "\n", encoding="utf-8")
    table = read_sensors(table_file)
    fitted, _ = fit_history(data, table, steps, (0, FIT_ROWS))
    fitted.save(model)
    return Inputs(data, table_file, model, table, steps)


def _signals(
    chance: np.random.Generator, rows: int, sensors: int, interval_s: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return float64[rows, sensors]: each sensor a mixture of a few slow waves, and some noise of its own."""
    seconds = np.arange(rows) * interval_s
    periods = chance.uniform(7.0, 60.0, _WAVES)
    waves = np.sin(2 * np.pi * (seconds[:, None] / periods + chance.uniform(size=_WAVES)))
    mixed = waves @ chance.normal(size=(_WAVES, sensors)) * 4
    return np.asarray(50.0 + mixed + _NOISE * chance.normal(size=mixed.shape))
