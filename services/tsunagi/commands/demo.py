"""`tsunagi demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tsunagi.commands.options import FILE, SEED

_OUT = click.Path(file_okay=False, path_type=Path)
"""Type of --out: a directory, which need not exist yet."""


@click.command()
@click.option("--data", type=FILE, help="CSV of your own readings [default: the one that comes with Tsunagi].")
@click.option("--edges", default=4, type=click.IntRange(2, 10_000), help="Edges over which the sensors are spread.")
@click.option("--sensors", type=FILE, help="Sensors table of the data, instead of --edges.")
@click.option("--model", type=FILE, help="Fitted recovery model [default: one fitted to the first 40 % of the rows].")
@click.option("--out", type=_OUT, default=Path("out/demo"), help="Directory of the report; it is emptied first.")
@click.option("--seed", default=1, type=SEED, help="Seed of the times at which faults are set.")
def demo(**given: Any) -> None:
    """Stream real readings through real kills, and check every row.

    On the way it kills an edge and two gateway workers, with tuples in flight. It writes report.json and report.html
    into --out. The exit code is 0 only if nothing was lost, doubled or out of order, and every kill hit a slot's owner
    while tuples were in flight.

    \b
    tsunagi demo
    tsunagi demo --data mine.csv --edges 3
    """
    from tsunagi.demo.run import Plan, run

    sys.exit(run(Plan(**given)))
