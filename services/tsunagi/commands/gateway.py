"""`tsunagi gateway` and `tsunagi secondary`: run the same worker under the names of its two roles."""

from __future__ import annotations

import click

from tsunagi.commands.options import serve
from tsunagi.runtime.naming import node_fault


def _checked(_: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a name that no worker can have: it becomes the name of files, keys and labels."""
    if fault := node_fault(value):
        raise click.BadParameter(fault, param=param)
    return value


NODE = click.option("--node", required=True, callback=_checked, help="Name of the worker; no other worker has it.")
"""The option that gives a worker its name."""


@click.group()
def gateway() -> None:
    """Run a worker, which owns slots or stands by for them."""


@gateway.command("run")
@NODE
@click.option("--type", "kind", default="", show_default="local", help="Key of [scaler.sizes] whose limit it keeps.")
def gateway_run(node: str, kind: str) -> None:
    """Run one worker until it is stopped.

    It is the primary of some slots and the secondary of others, as the scaler's plan says.

    Example: tsunagi gateway run --node gw-1
    """
    serve(node, "tsunagi.worker.service", node, kind=kind)


@click.group()
def secondary() -> None:
    """Run a worker under the name of the standby role."""


@secondary.command("run")
@NODE
def secondary_run(node: str) -> None:
    """Run one worker until it is stopped.

    It is the same program as `tsunagi gateway run`: the scaler's plan, not the name, decides which slots it owns.

    Example: tsunagi secondary run --node sec-1
    """
    serve(node, "tsunagi.worker.service", node, service="secondary")
