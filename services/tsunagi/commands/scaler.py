"""`tsunagi scaler`."""

from __future__ import annotations

from typing import Any

import click

from tsunagi.commands.options import DURATION, FILE, Number, OutputFile, seconds, serve

_FORECAST = "Forecast of the rate: mixture, sdar, seasonal, ewma, last or module:Class."
"""Help text of --forecast."""
_DAYS = "Days at the end that are scored [default: 7; 28 of 16 weeks or more]."
"""Help text of --score-days."""
_SOLVER = "How lookahead solves: marginal is greedy, program is the integer program itself."
"""Help text of --solver."""
_SLOWER = "Share by which workers are slower than their types say."
"""Help text of --slower."""
_POLICY = ("policy", "billing", "slo_s", "slot_s", "forecast", "solver")
"""The options of `simulate` that are fields of `PolicySettings`; the others are fields of its `SimulateOptions`."""
POLICY_NAMES = ("lookahead", "elasticstream", "threshold")
"""The policies that `simulate` can run."""
_POSITIVE = Number(1e-3, 1e9)
"""Type of an option that takes a positive time, in the unit of the option."""


@click.group()
def scaler() -> None:
    """Plan who owns which slot, and how many workers there are."""


@scaler.command("run")
def run() -> None:
    """Run the scaler until it is stopped.

    It plans which worker owns which slot, gives each slot a secondary, and starts workers that are missing.

    Example: tsunagi scaler run
    """
    serve("scaler", "tsunagi.scaler.service")


@scaler.command("simulate")
@click.option("--trace", required=True, type=FILE, help="CSV file with the columns t_s,rate_per_s, in even steps.")
@click.option("--policy", default="lookahead", type=click.Choice(POLICY_NAMES), help="Policy to run.")
@click.option("--billing", default="hourly", type=click.Choice(["hourly", "second"]), help="Unit of a worker's price.")
@click.option("--boot", "boot_s", default=100.0, metavar="S", type=DURATION, help="Time from launch to first work.")
@click.option("--slo", "slo_s", default=10.0, metavar="S", type=_POSITIVE, help="Longest delay promised.")
@click.option("--out", required=True, type=OutputFile(), help="JSON file to which the figures are written.")
@click.option("--slot", "slot_s", default=300.0, metavar="S", type=_POSITIVE, help="Time between decisions (TimeSlot).")
@click.option("--types", type=FILE, help="TOML file of worker types and prices [default: those of the paper].")
@click.option("--forecast", default="", show_default="the policy's", metavar="NAME", help=_FORECAST)
@click.option("--solver", default="marginal", type=click.Choice(["marginal", "program"]), help=_SOLVER)
@click.option("--score-days", type=_POSITIVE, metavar="DAYS", help=_DAYS)
@click.option("--slower", default=0.0, metavar="SHARE", type=Number(0, 0.99), help=_SLOWER)
@click.option("--csv", type=OutputFile(), help="CSV file to which every decision is written.")
@click.option("--plot", type=OutputFile(), help="PNG file with arrivals, capacity and late tuples.")
def simulate(slower: float, **given: Any) -> None:
    """Run a policy against a trace of rates.

    It shows what the policy costs and how many tuples are late. The trace is scaled so that its busiest minute has
    2,000 tuples/s; everything before the scored days is history. The local capacity is the median load of the scored
    days and costs nothing. `cost_bound` is the least cost of somebody who knows the future, has fractions of workers,
    and changes them every minute without boot time.

    \b
    tsunagi scaler simulate --trace taxi.csv --out out/taxi.json
    tsunagi scaler simulate --trace taxi.csv --out out/t.json --policy threshold
    """
    from tsunagi.scaler.policy import PolicySettings
    from tsunagi.scaler.simulate_report import SimulateOptions
    from tsunagi.scaler.simulate_report import simulate as run_trace

    policy = PolicySettings(**{name: given.pop(name) for name in _POLICY})
    options = SimulateOptions(settings=policy, speed=1.0 - slower, **given)
    figures = run_trace(options, lambda line: click.echo(line, err=True))
    over = figures["cost_over_bound"]
    click.echo(
        f"cost {figures['cost']:.2f}, {'no bound' if over is None else f'{over:.3f} x the clairvoyant bound'}, "
        f"late {figures['late_share']:.3%}, {figures['changes_per_day']:.1f} changes a day; {options.out}"
    )


@scaler.command("scale")
@click.option("--workers", type=click.IntRange(1, 10_000), help="Number of local workers; no other type has any.")
@click.option("--type", "kinds", multiple=True, metavar="TYPE=N", help="Workers of a type; may be given repeatedly.")
@click.option("--auto", is_flag=True, help="Return to the policy, or the least number of workers, of [scaler].")
def scale(workers: int | None, kinds: tuple[str, ...], auto: bool) -> None:
    """Set the number of workers by hand.

    The scaler starts or stops workers until there are as many, and moves the slots of a worker before it stops it. A
    type that is not named gets none, but local workers stay as configured unless --workers or --type local=N names
    them. The number is kept in the log until --auto, over restarts of the scaler too. At least two workers are needed
    for every slot to have a secondary.

    \b
    tsunagi scaler scale --workers 4
    tsunagi scaler scale --type local=1 --type small=2
    tsunagi scaler scale --auto
    """
    from tsunagi.runtime.settings import load
    from tsunagi.scaler.by_hand import ask

    ask(load(), workers, kinds, click.echo, auto=auto)


@scaler.command("move")
@click.argument("slot", type=click.IntRange(0, 9_999))
@click.argument("worker")
@seconds("--timeout", 60.0, "Give up waiting after this time; the scaler may go on with the move.")
def move(slot: int, worker: str, timeout_s: float) -> None:
    """Move a slot to another worker, without a gap in its results.

    The worker first builds the slot's state, if it is not its standby already. Then it takes the slot over, and the
    worker that had it stands by. It is done once: the scaler may move the slot again, if load or a death asks for it.

    Example: tsunagi scaler move 0 sec-1
    """
    from tsunagi.local.slot_move import ask, wait
    from tsunagi.runtime.settings import load

    settings = load()
    ask(settings, slot, worker, click.echo)
    wait(settings, slot, worker, click.echo, timeout_s)


@scaler.command("capacity")
@click.option("--type", "kind", default="local", help="Type of the worker, a key of [scaler.sizes].")
@click.option("--seconds", default=10.0, type=_POSITIVE, help="Length of the measurement.")
def capacity(kind: str, seconds: float) -> None:
    """Measure how many tuples a worker processes in a second.

    It runs one worker of a type on this machine with the configured query. It touches no running system and needs no
    broker. Write the figure into [scaler.sizes] as `rate`; the scaler corrects it by what workers process while they
    are never idle.

    Example: tsunagi scaler capacity --type small
    """
    from tsunagi.runtime.settings import load
    from tsunagi.scaler.benchmark import measure

    click.echo(f"{kind}: rate = {measure(load(), kind, seconds, click.echo):.0f}")
