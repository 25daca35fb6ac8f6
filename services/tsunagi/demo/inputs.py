"""What the demo runs on: data, sensors table, speed and configuration, all written into its own directory."""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tsunagi.audit.truth import read_readings
from tsunagi.edge.csv_source import check_csv
from tsunagi.runtime.csv_text import CsvError, Header, passed_over, read_header, row_writer
from tsunagi.runtime.sensors import SensorTable, read_sensors

_EXAMPLE = Path(__file__).resolve().parent / "data"
DATA, SENSORS = _EXAMPLE / "guangzhou.csv", _EXAMPLE / "guangzhou-sensors.csv"
INTERVAL_S = 0.1
LEAST_INTERVAL_S = 0.05
"""Time between two rows, seconds: the usual one, where a stream is then of a good length, and the shortest."""
SHORTEST_S, USUAL_S, LONGEST_S = 45.0, 50.0, 60.0
"""How long a stream may last, seconds: the faults come one after the other, and nobody wants to wait for minutes."""
FIT_SHARE = 0.4
"""Share of the rows, from the first, that the model is fitted to. Only the others are streamed: on rows that it has
seen a model is right, and bounds that are tried on living edges meanwhile become too narrow for all that follows."""
LEAST_ROWS = 80
"""Rows that a file must have: of fewer, the share that is fitted has too few windows for a fit."""
WINDOW, SLIDE, SLOTS, WORKERS = 10, 2, 2, 5
"""Windows of so many rows, a step each so many; slots; workers: two owners, two secondaries and one that waits."""
SENSORS_A_GROUP = 12
"""Sensors of a group where no table is given."""


class DemoError(ValueError):
    """The demo cannot be run on what it was given."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run works on.

    Attributes:
        history: what the user gave; the model is fitted to its first `fit_rows`.
        data: a copy of the rows after those, which are streamed.
        rows: how many are streamed.
        interval_s: time between two rows as they are streamed.
        speed: how many times faster than the file's own times that is.
        notes: what the user should know (what is fitted, what is streamed, how fast).
    """

    history: Path
    fit_rows: int
    data: Path
    sensors: Path
    table: SensorTable
    rows: int
    interval_s: float
    speed: float
    notes: tuple[str, ...] = ()

    @property
    def stream_s(self) -> float:
        """How long the stream takes."""
        return self.rows * self.interval_s


def prepare(data: Path | None, edges: int, sensors: Path | None, out: Path) -> Inputs:
    """Check the data, make the sensors table if none is given, and choose the speed.

    Raises:
        SourceError, SensorsError: the CSV or the table cannot be used, or they contradict each other.
        DemoError: there are too few rows or sensors.
    """
    notes: list[str] = []
    if data is None:
        data = DATA
        sensors = sensors or SENSORS
    if sensors is None:
        sensors = out / "sensors.csv"
        sensors.write_text(make_table(data, edges), encoding="utf-8")
        notes.append(f"sensors table: {sensors}, the columns spread over {edges} edges")
    table = read_sensors(sensors)
    if len(table.edges) < 2:
        raise DemoError(f"{sensors}: found one edge, expected at least two: one is killed, the others help out")
    rows = check_csv(data, table).rows
    if rows < LEAST_ROWS:
        raise DemoError(f"{data}: found {rows} rows, expected at least {LEAST_ROWS}")
    fit_rows = round(FIT_SHARE * rows)
    interval_s, used = choose_interval(rows - fit_rows)
    fit_rows = min(fit_rows, round(used * FIT_SHARE / (1 - FIT_SHARE)))
    streamed = _part(data, fit_rows, used, out / "data.csv")
    notes.append(
        f"{data.name}: {rows} rows; the first {fit_rows} are for the model, the next {used} are streamed, one every "
        f"{interval_s:.3g} s, {used * interval_s:.0f} s in all"
    )
    usual_s = _usual_interval_s(streamed, table)
    speed = 1.0 if usual_s is None else usual_s / interval_s
    return Inputs(
        history=data,
        fit_rows=fit_rows,
        data=streamed,
        sensors=sensors,
        table=table,
        rows=used,
        interval_s=interval_s,
        speed=speed,
        notes=tuple(notes),
    )


def choose_interval(rows: int) -> tuple[float, int]:
    """Return (seconds a row, rows to stream), so that the stream lasts 45 to 60 s, and no row less than 0.05 s."""
    if SHORTEST_S <= rows * INTERVAL_S <= LONGEST_S:
        return INTERVAL_S, rows
    used = min(rows, round(LONGEST_S / LEAST_INTERVAL_S))
    interval_s = max(LEAST_INTERVAL_S, round(USUAL_S / used, 3))
    return interval_s, used


def _usual_interval_s(data: Path, table: SensorTable) -> float | None:
    """Return the median time between two rows of the file; None = it has no times."""
    if not _header(data).timed:
        return None
    times = read_readings(data, SensorTable(table.sensors[:1]), origin_us=0, interval_us=1).times_us
    usual = float(np.median(np.diff(times))) / 1e6
    if usual <= 0:
        raise DemoError(f"{data}: most of its rows have the time of the row before")
    return usual


def make_table(data: Path, edges: int) -> str:
    """Return a sensors table for the columns of a CSV: edges take turns, neighbours make a group.

    Raises:
        DemoError: there are too few columns.
    """
    header = _header(data)
    names = header.sensors
    if len(names) < 2 * edges:
        where = f"{data}, line {header.line - 1}"
        raise DemoError(f"{where}: found {len(names)} sensors, expected at least {2 * edges} for {edges} edges")
    rows = [
        (name, f"edge-{number % edges + 1}", f"group-{number // SENSORS_A_GROUP + 1:02d}")
        for number, name in enumerate(names)
    ]
    text = io.StringIO(newline="")
    write = row_writer(text)
    for row in [("sensor", "edge", "group"), *rows]:
        write(row)
    return text.getvalue()


def _header(data: Path) -> Header:
    try:
        with data.open("rb") as file:
            return read_header(file, data)
    except CsvError as error:
        raise DemoError(str(error)) from None
    except OSError as error:
        raise DemoError(f"{data}: cannot be read: {error.strerror}") from None


def _part(data: Path, first: int, rows: int, to: Path) -> Path:
    """Copy the header and some rows; return the copy."""
    with data.open("rb") as source, to.open("wb") as target:
        target.write(read_header(source, data).text.encode() + b"\n")
        lines = (line for line in source if not passed_over(line))
        target.writelines(itertools.islice(lines, first, first + rows))
    return to


def configuration(inputs: Inputs, out: Path, port: int, model: Path, origin_us: int) -> dict[str, Any]:
    """Return the demo's configuration, as nested tables; `origin_us` = 0 until the stream begins."""
    return {
        "state": str(out / "run"),
        "sensors": str(inputs.sensors.resolve()),
        "kafka": {"servers": f"127.0.0.1:{port}"},
        "steps": {"interval_s": inputs.interval_s, "window": WINDOW, "slide": SLIDE},
        "slots": {"count": SLOTS},
        "recovery": {"model": str(model), "store": str(out / "models")},
        "spark": {"checkpoint": str(out / "checkpoint")},
        "scaler": {"workers": WORKERS, "launcher": "none"},
        "source": {"path": str(inputs.data.resolve()), "speed": inputs.speed, "origin_us": origin_us},
    }
