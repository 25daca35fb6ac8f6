"""`tsunagi edge`."""

from __future__ import annotations

import click

from tsunagi.commands.options import Number, serve

_OFFSET = Number(-1e9, 1e9)
"""Type of --clock-offset, in seconds. About 31 years in both directions are more than any test needs."""


@click.group()
def edge() -> None:
    """Run an edge, which publishes the readings of its sensors."""


@edge.command("run")
@click.option("--edge", "name", required=True, help="Name of the edge in the sensors table.")
@click.option("--clock-offset", default=0.0, type=_OFFSET, metavar="SECONDS", help="Lead of its clock, for tests.")
def run(name: str, clock_offset: float) -> None:
    """Run one edge until it is stopped.

    It reads its source, aggregates sliding windows, and publishes one batch a step and slot.

    Example: tsunagi edge run --edge edge-1
    """
    serve(name, "tsunagi.edge.process", name, clock_offset)
