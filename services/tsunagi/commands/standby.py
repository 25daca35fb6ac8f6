"""`tsunagi standby`."""

from __future__ import annotations

import re
from typing import Any

import click

from tsunagi.commands.options import SLOTS


@click.command()
@SLOTS
@click.option("--batch-size", metavar="TUPLES", help="Batch size B: 1 is an active standby, inf an upstream backup.")
@click.option("--policy", type=click.Choice(["model", "fixed"]), help="Policy that keeps B within the limits.")
@click.option("--max-bandwidth", type=float, metavar="BYTES/S", help="Most that a secondary reads, or inf.")
@click.option("--max-recovery", "max_recovery_s", type=float, metavar="SECONDS", help="Longest recovery time, or inf.")
@click.option("--priority", type=click.Choice(["recovery", "bandwidth"]), help="Limit that is kept if both cannot be.")
def standby(slots: tuple[int, ...], **given: Any) -> None:
    """Change how secondaries stand by, while the system runs.

    An option that is not given takes its value from [standby] again, so without options everything is as configured.
    The change is kept in the log, where workers that start later find it. With access rules (profile secure) it takes
    the scaler's rights.

    \b
    tsunagi standby --batch-size 500
    tsunagi standby --slot 1 --max-bandwidth 30000 --priority bandwidth
    tsunagi standby                     # as configured
    """
    from tsunagi.local.standby import ask
    from tsunagi.runtime.settings import load

    fields = {name: value for name, value in given.items() if value is not None}
    if re.fullmatch("[0-9]{1,18}", fields.get("batch_size", "")):
        fields["batch_size"] = int(fields["batch_size"])
    ask(load(), slots, fields, click.echo)
