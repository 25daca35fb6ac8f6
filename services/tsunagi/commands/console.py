"""`tsunagi console`."""

from __future__ import annotations

from pathlib import Path

import click

from tsunagi.commands.options import serve

_ROLES = click.Choice(["viewer", "operator"])
"""Type of the option that chooses a role."""


@click.group()
def console() -> None:
    """See the fleet in a browser."""


@console.command("run")
@click.option("--chaos", is_flag=True, help="Let whoever may act kill processes of this machine, to see what happens.")
def run(chaos: bool) -> None:
    """Run the console until it is stopped.

    It shows edges, slots, takeovers, sensors, queries and troubles as pages, at the address of [console]. It reads the
    log as any consumer does: when it ends, nothing else changes.

    \b
    tsunagi console run
    tsunagi console run --chaos
    """
    serve("console", "tsunagi.console.service", chaos=chaos)


@console.command("user")
@click.argument("name")
@click.option("--role", type=_ROLES, default="viewer", help="What the user may do [viewer].")
@click.option("--remove", is_flag=True, help="Remove the user.")
def user(name: str, role: str, remove: bool) -> None:
    """Add, change or remove a user, in the file [console] users.

    The password is asked for. With a file of users everybody has to log in. A change counts at once.

    \b
    tsunagi console user anna --role operator
    tsunagi console user anna --remove
    """
    from typing import cast

    from tsunagi.console.access import Role, UsersError, remove_user, write_user
    from tsunagi.runtime.settings import load

    settings = load()
    if not settings.console.users:
        raise UsersError("[console] users: found none, expected the name of a file, such as console-users")
    path = Path(settings.console.users)
    if remove:
        remove_user(path, name)
        click.echo(f"{path}: {name} is removed")
        return
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    write_user(path, name, cast("Role", role), password)
    click.echo(f"{path}: {name} is a {role}" if role == "viewer" else f"{path}: {name} is an {role}")
