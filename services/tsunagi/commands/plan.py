"""`tsunagi plan`."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--compose", is_flag=True, help="Print the files for containers instead, as JSON.")
def plan(*, compose: bool) -> None:
    """Propose sizes for this fleet and this machine.

    It reads tsunagi.toml and the sensors table, and starts nothing. Each line has a number, where it goes, and why.
    What is fixed when the topics are made, such as [slots] count, is proposed anew: keep it where a system exists.

    Example: tsunagi --config plant/tsunagi.toml plan
    """
    from tsunagi.project.containers import container_files
    from tsunagi.project.sizing import FleetSize, this_machine
    from tsunagi.project.sizing import plan as propose
    from tsunagi.runtime.sensors import read_sensors
    from tsunagi.runtime.settings import load

    settings = load()
    table = read_sensors(settings.sensors)
    fleet, machine = FleetSize.of(table, settings), this_machine()
    if compose:
        click.echo(json.dumps(container_files(settings, table, propose(fleet, machine, settings.slots.count))))
        return
    sizes = propose(fleet, machine)
    click.echo(
        f"sensors: {fleet.sensors:,}; edges: {fleet.edges:,}; readings/s: {fleet.readings_s:,.1f}; "
        f"step: {fleet.step_s:g} s; cores here: {machine.cores}; memory here: {machine.memory_mb:,} MB"
    )
    there = {
        "[slots] count": settings.slots.count,
        "[spark] cores": settings.spark.cores,
        "[standby] batch_size": settings.standby.batch_size,
    }
    for item in sizes:
        found = there.get(item.setting, item.value)
        differs = "" if found == item.value else f" (the settings have {found})"
        click.echo(f"  {item.name:<14} {item.value:>7,}  {item.setting:<22} {item.why}{differs}")
