"""`tsunagi recovery explore`: prints its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.explore import ExploredChoice, Scenario, draw, explore
from tsunagi.recovery.model import Model
from tsunagi.runtime.csv_text import row_writer
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings

WIDTH = 120
"""Width of the table in characters, if nobody says how wide the terminal is."""


def show_exploration(
    settings: Settings,
    model_file: Path | None,
    sensors: Path | None,
    wanted: Mapping[str, Any],
    scenario: tuple[float, int, int],
    out: Path | None,
    picture: Path | None,
) -> None:
    """Try the choices that are asked for (arguments of `explore.explore`), and print the results.

    Raises:
        ModelError: there is no model, or the sensors table lacks one of its sensors.
    """
    path = model_file or (Path(settings.recovery.model) if settings.recovery.model else None)
    if path is None:
        raise ModelError("recovery explore: found no model, expected --model or [recovery] model")
    model = Model.load(path)
    table_file = sensors or settings.sensors
    fleet = read_sensors(table_file)
    edge_of = {name: fleet.sensors[place].edge for name, place in fleet.ids(list(model.names)).items()}
    unknown = [name for name in model.names if name not in edge_of]
    if unknown:
        raise ModelError(f"{table_file}: found no sensor {unknown[0]!r}, which {path} has ({len(unknown)} such)")
    asked = dict(wanted)
    asked["delta"] = asked["delta"] or settings.recovery.delta
    fail, steps, draws = scenario
    rows = explore(model, [edge_of[name] for name in model.names], scenario=Scenario(fail, steps, draws), **asked)
    names = [field.name for field in fields(ExploredChoice)]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", newline="", encoding="utf-8") as file:
            write = row_writer(file)
            write(names)
            for row in rows:
                write(astuple(row))
    table = Table(box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        shares = (
            f"{row.meanwhile:.1%}",
            f"{row.satisfied:.1%}",
            f"{row.reachable:.1%}",
            f"{row.helpers:.1f}",
            f"{row.helper_bytes:.0f}",
        )
        costs = f"{row.step_ms:.3f}", f"{row.worst_slot_ms:.3f}"
        table.add_row(str(row.slots), str(row.cap), f"{row.eps:g}", f"{row.delta:g}", *shares, *costs)
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(rows, picture)
