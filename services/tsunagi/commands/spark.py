"""`tsunagi spark`."""

from __future__ import annotations

import click

from tsunagi.commands.options import serve


@click.group()
def spark() -> None:
    """Run the Spark job, which aggregates and orders the results."""


@spark.command("run")
def run() -> None:
    """Run the driver of the Spark job until it is stopped.

    The job computes q1, q2 and q3 of every reading, and writes the results in time order within each group.

    Example: tsunagi spark run
    """
    serve("spark", "tsunagi_spark.service")
