"""`tsunagi setup`, `up`, `down`, `topics`, `status`, `results` and `wait`: commands for the system as a whole."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tsunagi.commands.options import config_file, seconds

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
"""Type of an option that names an existing directory."""
_FORM = click.Choice(["table", "json", "csv"])
"""Type of the option that chooses the form of printed results."""


@click.command()
def setup() -> None:
    """Fetch the jars of Kafka and of Spark's connector, once.

    The jars need Java 17 or newer. Afterwards `tsunagi demo` and `tsunagi up` run without a network. In a checkout of
    the sources `make setup` does the same.
    """
    from tsunagi.jars.fetch import fetch_all

    fetch_all(click.echo)


@click.command()
@click.option("--no-edges", is_flag=True, help="Start everything but the edges.")
@click.option("--no-console", is_flag=True, help="Start no console.")
@click.option("--no-wait", is_flag=True, help="Return at once instead of when everything is ready.")
@click.option("--join", is_flag=True, help="Adopt the system of this log, even if `state` is another's or nobody's.")
def up(no_edges: bool, no_console: bool, no_wait: bool, join: bool) -> None:
    """Start the whole system on this machine, and leave it running.

    That is the broker, its topics, the scaler, the workers, Spark, the edges, the sinks and the console. What runs
    already stays. A broker that answers at [kafka] servers is used as it is, unless its log belongs to another system.
    """
    from tsunagi.local.queries import check_files
    from tsunagi.local.up import System
    from tsunagi.runtime.sensors import read_sensors
    from tsunagi.runtime.settings import load

    settings = load()
    # Every process reads these: an error in them shows before anything is started.
    read_sensors(settings.sensors)
    check_files(settings)
    system = System(settings, config_file(), click.echo)
    system.start_broker()
    system.make_topics(join=join)
    nodes = system.start_workers()
    if not no_wait:
        system.wait_ready(nodes)
    if not no_edges:
        system.start_edges()
    system.start_sinks()
    address = "" if no_console else system.start_console()
    if address:
        click.echo(f"console: {address}")
    click.echo("up. Look:  tsunagi status;  tsunagi results --follow.  Stop:  tsunagi down")


@click.command()
@click.option("--wipe/--keep-data", default=False, help="Remove log, state and checkpoint, if Tsunagi made them.")
def down(wipe: bool) -> None:
    """Stop everything that `tsunagi up` started.

    The broker stops last. The exit code is 1 if a process was not seen to end.
    """
    from tsunagi.local import up as local
    from tsunagi.runtime.settings import load

    settings = load()
    stopped = local.System(settings, config_file(), click.echo).stop()
    if stopped.killed:
        click.echo(f"killed, since they did not stop in time: {', '.join(stopped.killed)}", err=True)
    if stopped.left:
        click.echo("not seen to end:\n" + "\n".join(f"  {item}" for item in stopped.left), err=True)
        sys.exit(1)
    if wipe:
        local.wipe(settings, click.echo)
    click.echo(f"down: {', '.join(stopped.ended)} ended" if stopped.ended else f"nothing ran in {settings.state}")


@click.command()
@click.option("--acls", is_flag=True, help="Give every user its rights as well (docs/howto/security.md).")
@click.option("--users", type=_DIRECTORY, help="Holds a file password-USER for each SCRAM user to make or change.")
def topics(acls: bool, users: Path | None) -> None:
    """Make or check the topics, their users and access rights.

    It may be run again at any time.

    Example: tsunagi topics --acls --users /run/secrets
    """
    from tsunagi.local.topics import make_rights, make_topics
    from tsunagi.runtime.settings import load
    from tsunagi.system.identity import introduce

    settings = load()
    make_topics(settings)
    click.echo("topics: there")
    introduce(settings)
    make_rights(settings, click.echo, acls=acls, users=users)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def status(as_json: bool) -> None:
    """Show who owns which slot, how far it is, and who lives.

    \b
    epoch      term of the owner: each takeover begins a new one
    offset     next record of the slot's log that the owner processes
    lag        records of the log that the owner has not processed
    step       newest step that the owner has closed
    behind     records of the log that the secondary has not read
    B          tuples that the secondary lets wait before it reads them
    Spark      outputs of the slot that Spark has not acknowledged
    heartbeat  age of the node's last heartbeat
    metrics    port of the node's /metrics, /healthz and /readyz
    """
    import json

    from rich.console import Console

    from tsunagi.local.status import print_status, read_status
    from tsunagi.runtime.settings import load

    found = read_status(load())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_status(found, Console())


@click.command()
@click.option("--follow", is_flag=True, help="Go on and print results as they come.")
@click.option("--format", "form", type=_FORM, default="table", help="Form of the output; json is an object a line.")
@click.option("--query", metavar="NAME", help="Print a query's rows with its own columns, instead of the readings.")
@click.option("--group", "groups", multiple=True, help="Print only this group; may be given more than once.")
@click.option("--from-now", is_flag=True, help="Skip the results that are there already.")
@click.option("--merged", is_flag=True, help="Print all groups as one stream in time order, not each group by itself.")
def results(follow: bool, form: str, query: str | None, groups: tuple[str, ...], from_now: bool, merged: bool) -> None:
    """Print the ordered results, each of them once.

    These are the readings with q1 to q3. With --query it is a query in CQL, or one of [query] aggregates.

    \b
    tsunagi results --follow --format csv --group area-01
    tsunagi results --merged
    tsunagi results --query alarms
    """
    from tsunagi.local.results import print_query, print_results
    from tsunagi.runtime.settings import load

    if query is not None:
        if groups or merged:
            raise click.UsageError("--group and --merged are for readings; found one with --query")
        print_query(load(), (query,), follow=follow, form=form, from_now=from_now)
        return
    print_results(load(), follow=follow, form=form, groups=groups, from_now=from_now, merged=merged)


@click.command()
@seconds("--timeout", 120.0, "Give up after this time.")
def wait(timeout_s: float) -> None:
    """Wait until a new ordered result comes out.

    The exit code is 1 if none does within the time.

    Example: tsunagi wait --timeout 60 && echo it works
    """
    from tsunagi.local.wait import wait_for_result
    from tsunagi.runtime.settings import load

    wait_for_result(load(), timeout_s, click.echo)
