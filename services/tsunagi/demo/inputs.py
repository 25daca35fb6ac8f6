"""Prepares the input of the demo in its own directory: data, sensors table, speed and configuration."""

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
"""The directory of the readings that come with Tsunagi."""
DATA, SENSORS = _EXAMPLE / "guangzhou.csv", _EXAMPLE / "guangzhou-sensors.csv"
"""The readings that come with Tsunagi, and their sensors table. They are used unless the user gives other files."""
INTERVAL_S = 0.1
"""Time between two rows, in seconds, if the stream then lasts from `SHORTEST_S` to `LONGEST_S`."""
LEAST_INTERVAL_S = 0.05
"""Shortest time between two rows, in seconds. Rows that do not fit into `LONGEST_S` at this interval are left out."""
SHORTEST_S, USUAL_S, LONGEST_S = 45.0, 50.0, 60.0
"""Shortest, usual and longest length of a stream, in seconds. It must be long enough for faults that come one after the
other, and so short that nobody has to wait for minutes."""
FIT_SHARE = 0.4
"""Share of the rows, from the first, to which the model is fitted. Only the other rows are streamed: on rows that it
has seen a model is too good, so bounds that are tried on living edges would become too narrow for the rows after."""
LEAST_ROWS = 80
"""Fewest rows of a file. With fewer rows, those that are fitted have too few windows for a fit."""
WINDOW, SLIDE, SLOTS, WORKERS = 10, 2, 2, 5
"""Length of a window and of a step, in rows, and the numbers of slots and workers. Of the workers two own slots, two
are secondaries, and one waits."""
SENSORS_A_GROUP = 12
"""Number of sensors in a group if no sensors table is given."""


class DemoError(ValueError):
    """The demo cannot be run on this input; the message says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input of a run.

    Attributes:
        history: the file that the user gave.
        fit_rows: the number of its first rows, to which the model is fitted.
        data: a copy of the rows after those, which are streamed.
        sensors: the file of the sensors table.
        table: the sensors table.
        rows: the number of rows that are streamed.
        interval_s: time between two rows as they are streamed, in seconds.
        speed: how many times as fast as by the file's own times the rows are streamed.
        notes: lines for the user: what is fitted, what is streamed, how fast.
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
        """How long the stream lasts, in seconds."""
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
    """Return (seconds from row to row, number of rows to stream) for a file of so many rows.

    No interval is shorter than `LEAST_INTERVAL_S`, and no stream longer than `LONGEST_S`.
    """
    if SHORTEST_S <= rows * INTERVAL_S <= LONGEST_S:
        return INTERVAL_S, rows
    used = min(rows, round(LONGEST_S / LEAST_INTERVAL_S))
    interval_s = max(LEAST_INTERVAL_S, round(USUAL_S / used, 3))
    return interval_s, used


def _usual_interval_s(data: Path, table: SensorTable) -> float | None:
    """Return the median time between two rows of the file, in seconds; None if the file has no times."""
    if not _header(data).timed:
        return None
    times = read_readings(data, SensorTable(table.sensors[:1]), origin_us=0, interval_us=1).times_us
    usual = float(np.median(np.diff(times))) / 1e6
    if usual <= 0:
        raise DemoError(f"{data}: most of its rows have the time of the row before")
    return usual


def make_table(data: Path, edges: int) -> str:
    """Return a sensors table for the columns of a CSV. Edges take turns, and neighbouring columns make a group.

    Raises:
        DemoError: the CSV has too few columns, or cannot be read.
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
    """Copy the header and some rows to a file, and return that file."""
    with data.open("rb") as source, to.open("wb") as target:
        target.write(read_header(source, data).text.encode() + b"\n")
        lines = (line for line in source if not passed_over(line))
        target.writelines(itertools.islice(lines, first, first + rows))
    return to


def configuration(inputs: Inputs, out: Path, port: int, model: Path, origin_us: int) -> dict[str, Any]:
    """Return the demo's configuration, as nested tables.

    Args:
        inputs: the input of the run.
        out: the directory of the demo.
        port: the port of the broker.
        model: the file of the recovery model.
        origin_us: the event time of the first row, in microseconds since 1970; 0 while it is not known.
    """
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
