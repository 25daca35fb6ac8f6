"""`tsunagi`: collects the commands of `tsunagi.commands`, and prints each error as one line."""

from __future__ import annotations

import io
import os
import sys

import click

from tsunagi import __version__
from tsunagi.commands.apply import apply
from tsunagi.commands.chaos import chaos
from tsunagi.commands.console import console
from tsunagi.commands.demo import demo
from tsunagi.commands.edge import edge
from tsunagi.commands.fit import fit
from tsunagi.commands.gateway import gateway, secondary
from tsunagi.commands.init import init
from tsunagi.commands.learner import learner
from tsunagi.commands.plan import plan
from tsunagi.commands.query import query
from tsunagi.commands.recovery import recovery
from tsunagi.commands.replay import replay
from tsunagi.commands.scaler import scaler
from tsunagi.commands.sink import sink
from tsunagi.commands.slots import slots
from tsunagi.commands.spark import spark
from tsunagi.commands.standby import standby
from tsunagi.commands.system import down, results, setup, status, topics, up, wait
from tsunagi.runtime.explain import debugging, explain
from tsunagi.runtime.lean import import_structlog
from tsunagi.runtime.threads import fix_arithmetic

_SERVICES = (edge, gateway, secondary, scaler, learner, spark, sink, console)
"""The commands that run one service each, until it is stopped."""
_SYSTEM = (
    setup,
    init,
    plan,
    up,
    apply,
    status,
    results,
    wait,
    down,
    topics,
    query,
    slots,
    standby,
    recovery,
    fit,
    replay,
    demo,
    chaos,
)
"""The commands for the system as a whole, and the tools."""
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
"""Settings of click for all commands. Help texts are at most 110 columns wide and show the defaults of options."""


@click.group(context_settings=_CONTEXT)
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file [default: tsunagi.toml, if any].")
@click.version_option(__version__, prog_name="tsunagi")
def cli(config: str | None) -> None:
    """Tsunagi keeps the results of a fleet of sensors flowing while machines die.

    \b
    Try it:            tsunagi demo
    Your own fleet:    tsunagi init FOLDER --mqtt HOST --topic 'plant/#'
    Run it here:       tsunagi up; tsunagi status; tsunagi down
    Run one service:   tsunagi gateway run --node gw-1
    """
    if config is not None:
        from tsunagi.runtime.settings import CONFIG_VARIABLE

        os.environ[CONFIG_VARIABLE] = config


for _command in (*_SERVICES, *_SYSTEM):
    cli.add_command(_command)


def main() -> None:
    """Run the command line, and exit with its code.

    Every error is printed as one line on stderr. The exit code is then 2 (bad input), 130 (interrupted) or 1.
    """
    try:
        _prepare_process()
        code = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as error:
        error.show()
        code = 2
    except Exception as error:  # noqa: BLE001 - this is the outermost place: every error is printed as one line
        if debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        ending = explain(error)
        click.echo(f"tsunagi: {ending.text}", err=True)
        code = ending.code
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_process() -> None:
    """Set threads, logging, output and locale, for this process and for those that it starts."""
    fix_arithmetic(os.environ)
    import_structlog()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show is printed as its number
            stream.reconfigure(errors="backslashreplace")
    # Java decodes file names by the locale. In these locales Python uses UTF-8 and Java does not, so Java cannot open
    # files whose names are not plain ASCII.
    if os.environ.get("LC_ALL", os.environ.get("LC_CTYPE", os.environ.get("LANG", ""))) in {"", "C", "POSIX"}:
        os.environ["LC_ALL"] = "C.UTF-8"


if __name__ == "__main__":
    main()
