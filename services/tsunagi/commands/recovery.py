"""`tsunagi recovery`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tsunagi.commands.options import FILE, ROUNDS, Number, OutputFile


def _numbers(kind: type[int | float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """Return an option's callback that reads numbers with commas between them."""

    def read(_: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            return tuple(kind(item) for item in value.split(","))
        except ValueError:
            raise click.BadParameter(f"found {value!r}, expected numbers such as 1,2,4", param=param) from None

    return read


@click.group()
def recovery() -> None:
    """Change how lost readings are estimated, or see what it costs."""


@recovery.command("set")
@click.option("--eps", type=float, metavar="SD", help="Tolerated error, in standard deviations of each sensor.")
@click.option("--delta", type=float, help="Probability with which bounds must hold.")
@click.option("--helpers", type=int, help="Most sensors of other slots that a slot may ask for; 0 is none.")
@click.option("--unbounded", type=click.Choice(["tag", "withhold"]), help="What is done with values wider than eps.")
def change(**given: Any) -> None:
    """Change what the recovery aims at, while the system runs.

    An option that is not given takes its value from [recovery] again, so without options everything is as configured.
    The change comes into force through the logs of the slots, so that outputs can be computed again; it stays in the
    topic `plan`. With access rules (profile secure) it takes the scaler's or a gateway's rights.

    \b
    tsunagi recovery set --eps 0.5 --delta 0.95
    tsunagi recovery set --helpers 0
    tsunagi recovery set                # as configured
    """
    from tsunagi.local.recovery import ask
    from tsunagi.runtime.settings import load

    ask(load(), {name: value for name, value in given.items() if value is not None}, click.echo)


@recovery.command("use")
@click.argument("model", type=FILE, required=False)
@click.option("--configured", is_flag=True, help="Use the model of [recovery] again, or what the learner makes.")
def use(model: Path | None, configured: bool) -> None:
    """Put a recovery MODEL in force while the system runs.

    The model goes into the store ([recovery] store), which all workers must see. It comes into force through the logs
    of the slots, so that outputs can be computed again, and stays so over restarts. Its bounds are measured anew.

    \b
    tsunagi recovery use models/first.bin
    tsunagi recovery use --configured
    """
    from tsunagi.local.recovery import use_model
    from tsunagi.runtime.settings import load

    if (model is None) != configured:
        raise click.UsageError("Expected either a MODEL or --configured.")
    use_model(load(), model, click.echo)


@recovery.command("explore")
@click.option("--model", "model_file", type=FILE, help="Recovery model [default: the configured one].")
@click.option("--sensors", type=FILE, help="Sensors table [default: the configured one].")
@click.option("--slots", callback=_numbers(int), default="1,2,4,8", help="Numbers of slots to try.")
@click.option("--cap", "caps", callback=_numbers(int), default="0,20,100", help="Limits of helpers a slot to try.")
@click.option("--eps", callback=_numbers(float), default="0.25,0.5,1", help="Tolerated errors to try, in sd.")
@click.option("--delta", type=float, help="Probability with which bounds must hold [default: the configured one].")
@click.option("--fail", default=0.01, type=Number(0, 1), help="Probability that an edge fails in a step.")
@click.option("--steps", default=10, type=ROUNDS, help="Steps for which a failed edge is away.")
@click.option("--draws", default=30, type=ROUNDS, help="Number of sets of dead edges to try.")
@click.option("--out", type=OutputFile(), help="CSV file to which the table is written as well.")
@click.option("--picture", type=OutputFile(), help="PNG or SVG file to which the table is drawn.")
def explore(
    model_file: Path | None, sensors: Path | None, out: Path | None, picture: Path | None, **wanted: Any
) -> None:
    """Show what slots, helpers, eps and delta cost and bring.

    A lost value is satisfied if its bound, which holds with probability delta, is at most eps standard deviations (sd).
    Nothing is changed. The table shows what that costs (helpers, bytes and milliseconds a step), and

    \b
    meanwhile  share of lost values satisfied during an outage of --steps
    satisfied  share of lost values satisfied in an outage that does not end
    reachable  share that could be satisfied then if all living sensors were read

    Example: tsunagi recovery explore --model out/model.bin --slots 1,4 --eps 0.5
    """
    from tsunagi.recovery.report import show_exploration
    from tsunagi.runtime.settings import load

    scenario = (wanted.pop("fail"), wanted.pop("steps"), wanted.pop("draws"))
    show_exploration(load(), model_file, sensors, wanted, scenario, out, picture)
