"""`tsunagi apply`."""

from __future__ import annotations

import click

from tsunagi.commands.options import seconds


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask before the change is made.")
@click.option("--check", is_flag=True, help="Show the difference only; exit code 3 if there is one.")
@seconds("--timeout", 60.0, "Give up waiting after this time.")
def apply(*, yes: bool, check: bool, timeout_s: float) -> None:
    """Change sensors and edges while the system runs.

    It compares the sensors table of tsunagi.toml with the one in force, shows the difference and asks. Then it puts
    the table in force: nobody restarts, and the values of other sensors do not change. It waits until all slots and
    edges go by the table.

    A row that is added is a new sensor, one that is deleted removes its sensor. To rename a sensor, change its name and
    write the old one into the column `was`. To move a sensor, change its edge. A sensor keeps its group for good.

    \b
    tsunagi apply --check
    tsunagi apply --yes
    """
    from tsunagi.local.apply import apply_table
    from tsunagi.runtime.settings import load

    def agreed() -> bool:
        return yes or click.confirm("Put this in force?")

    differs = apply_table(load(), click.echo, agreed=(lambda: False) if check else agreed, timeout_s=timeout_s)
    if check and differs:
        raise SystemExit(3)
