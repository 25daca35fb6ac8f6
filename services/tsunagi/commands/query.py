"""`tsunagi query`."""

from __future__ import annotations

import click

_GIVEN = click.argument("statements", nargs=-1, metavar="[FILE|TEXT]")
"""Files with statements, or statements as texts."""
_FORM = click.Choice(["table", "json", "csv"])
"""Type of the option that chooses the form of printed rows."""


@click.group()
def query() -> None:
    """Say what you want to know, in CQL (docs/reference/cql.md).

    \b
    tsunagi query check alarms.sql
    tsunagi query add "CREATE QUERY n AS SELECT COUNT(*) AS n FROM readings"
    tsunagi query tail n
    """


@query.command("check")
@_GIVEN
def check(statements: tuple[str, ...]) -> None:
    """Check statements against the sensors table.

    No system need run. Prints the columns of each query. Without arguments it checks [query] files. The exit code is 2
    if a statement cannot be understood.

    Example: tsunagi query check alarms.sql
    """
    from tsunagi.local.queries import check_queries
    from tsunagi.runtime.settings import load

    check_queries(load(), statements, click.echo)


@query.command("explain")
@click.argument("given", nargs=-1, metavar="[NAME|FILE|TEXT]")
def explain(given: tuple[str, ...]) -> None:
    """Show what queries read, compute and keep.

    Without arguments it explains those of [query] files.

    Example: tsunagi query explain high_rate
    """
    from tsunagi.local.queries import explain_queries
    from tsunagi.runtime.settings import load

    explain_queries(load(), given, click.echo)


@query.command("add")
@click.argument("statements", nargs=-1, required=True, metavar="FILE|TEXT")
@click.option(
    "--from",
    "begin",
    default="",
    metavar="LENGTH|TIME",
    help="Fill queries from the log, from a moment on, or from a length of time (90s, 30m, 24h, 7d) before the newest "
    "result.",
)
def add(statements: tuple[str, ...], begin: str) -> None:
    """Add queries to the running system, or replace them.

    They begin behind the step that is complete then. A query that is replaced begins anew; the others go on. The
    statements are kept in the log until they are dropped.

    With --from they are filled with what the log still holds, some of it at each batch, until they have caught up.

    \b
    tsunagi query add alarms.sql
    tsunagi query add --from 24h alarms.sql
    """
    from tsunagi.local.queries import add_queries
    from tsunagi.runtime.settings import load

    add_queries(load(), statements, click.echo, begin)


@query.command("drop")
@click.argument("name")
def drop(name: str) -> None:
    """Drop a query that was added. Its rows stay in results.

    Example: tsunagi query drop alarms
    """
    from tsunagi.local.queries import drop_query
    from tsunagi.runtime.settings import load

    drop_query(load(), name, click.echo)


@query.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_all(as_json: bool) -> None:
    """Show all queries, and how much they give and keep.

    \b
    since   event time behind which the query began
    late    readings that came too late for it: their slot had been left behind
    state   what it keeps between two batches
    """
    import json

    from rich.console import Console

    from tsunagi.local.queries import list_queries
    from tsunagi.local.results import print_queries
    from tsunagi.runtime.settings import load

    found = list_queries(load())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_queries(found, Console())


@query.command("tail")
@click.argument("names", nargs=-1, required=True, metavar="NAME")
@click.option("--format", "form", type=_FORM, default="table", help="Form of the output; json is an object a line.")
@click.option("--all", "from_start", is_flag=True, help="Begin with the rows that are there already.")
@click.option("--no-follow", is_flag=True, help="With --all: end with the last row that is there now.")
def tail(names: tuple[str, ...], form: str, from_start: bool, no_follow: bool) -> None:
    """Print the rows of queries as they come.

    \b
    tsunagi query tail alarms
    tsunagi query tail alarms --all --no-follow --format csv
    """
    from tsunagi.local.results import print_query
    from tsunagi.runtime.settings import load

    if no_follow and not from_start:
        raise click.UsageError("--no-follow alone would print nothing; expected --all with it")
    print_query(load(), names, follow=not no_follow, form=form, from_now=not from_start)
