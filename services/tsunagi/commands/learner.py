"""`tsunagi learner`."""

from __future__ import annotations

import click

from tsunagi.commands.options import serve


@click.group()
def learner() -> None:
    """Learn a recovery model from what edges send."""


@learner.command("run")
def run() -> None:
    """Run the learner until it is stopped.

    It fits a model when [recovery] learn_steps have come, and again whenever the history has doubled or a new sensor
    has so many readings. It tries each model on edges that it takes for dead though they live, and puts a good one in
    force through the logs of the slots. `tsunagi status` says how far it is.

    Example: tsunagi learner run
    """
    serve("learner", "tsunagi.learner.service")
