"""`tsunagi sink`."""

from __future__ import annotations

from datetime import datetime

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


@sink.command("rebuild")
@_SINK
@click.option(
    "--from", "since", required=True, type=click.DateTime(), help="Event time (UTC) from which rows are made anew."
)
def rebuild(name: str, since: datetime) -> None:
    """Make what a sink has written anew from the log.

    For the kind postgres this is done beside the table in use. Earlier rows are taken over as they are. When the new
    table is level with the log, it takes the place of the other one, which stays as TABLE_before. A sink that runs goes
    on in the new table.

    A sink of the kinds influxdb, kafka and own must be stopped. It goes back in the log, and writes its rows again when
    it is started; each is the same row then.

    Example: tsunagi sink rebuild --sink history --from 2026-11-01
    """
    from datetime import UTC

    from tsunagi.runtime.settings import load
    from tsunagi.sink.rebuild import rebuild as make_anew

    done = make_anew(load(), name, since.replace(tzinfo=UTC), click.echo)
    click.echo(f"sink {name}: {done}")
