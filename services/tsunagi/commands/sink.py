"""`tsunagi sink`."""

from __future__ import annotations

import click

from tsunagi.commands.options import serve

_SINK = click.option("--sink", "name", required=True, help="Name of the sink in [[sinks]].")
"""The option that names a sink."""


@click.group()
def sink() -> None:
    """Write results to databases, brokers and files."""


@sink.command("run")
@_SINK
@click.option("--node", default="", help="Name of this instance; each living one has its own [sink-NAME].")
def run(name: str, node: str) -> None:
    """Run an instance of a sink until it is stopped.

    Several instances share the partitions of the results. When the target is away, results wait in the log. A row that
    the target refuses goes to dead-letters, and does not hold up the others.

    \b
    tsunagi sink run --sink history
    tsunagi sink run --sink history --node sink-history-2
    """
    from tsunagi.sink.names import node_of

    node = node or node_of(name)
    serve(node, "tsunagi.sink.service", name, node)
