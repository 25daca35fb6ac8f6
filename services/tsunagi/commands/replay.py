"""`tsunagi replay`."""

from __future__ import annotations

import sys

import click

from tsunagi.commands.options import SLOTS


@click.command()
@SLOTS
def replay(slots: tuple[int, ...]) -> None:
    """Compute the outputs of slots again and compare them.

    They are computed from the slots' logs and compared with what was written. The exit code is 1 if a name or a tag
    differs, or a value by more than 1e-6 standard deviations.
    """
    from tsunagi.replay.slots import replay_slots
    from tsunagi.runtime.settings import load

    sys.exit(replay_slots(load(), slots, click.echo))
