"""`tsunagi slots`."""

from __future__ import annotations

import click

from tsunagi.commands.options import seconds


@click.command()
@click.argument("count", type=click.IntRange(1, 10_000), required=False)
@click.option("--yes", is_flag=True, help="Do not ask before sensors are moved.")
@seconds("--timeout", 120.0, "Give up waiting after this time; the system goes on with the move.")
def slots(count: int | None, *, yes: bool, timeout_s: float) -> None:
    """Show the slots of the running system, or give it more.

    COUNT is the number of slots there are to be. Sensors move to the new slots at a step that all slots have agreed on
    beforehand: no result is lost or comes twice, queries go on, and nobody restarts. It takes some seconds. `tsunagi
    plan` says how many slots fit the fleet. There is no way back to fewer. With access rules (profile secure) it takes
    the administrator's rights, since partitions are added.

    \b
    tsunagi slots
    tsunagi slots 8 --yes
    """
    from tsunagi.local.slots import raise_slots, show_slots
    from tsunagi.runtime.settings import load

    if count is None:
        show_slots(load(), click.echo)
        return

    def agreed() -> bool:
        return yes or click.confirm("Move them?")

    raise_slots(load(), count, click.echo, agreed=agreed, timeout_s=timeout_s)
