"""`tsunagi scaler ...`: commands each a function, registered with the group of `tsunagi.cli` in one place.

Imported by every command line: what a command needs is imported when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsunagi.runtime.options import DURATION, Number, Output

if TYPE_CHECKING:
    from tsunagi.runtime.settings import Settings

POLICY_NAMES = ("lookahead", "elasticstream", "threshold")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = Output()
_POSITIVE = Number(1e-3, 1e9)


@click.command("run")
def run() -> None:
    """Run the scaler.

    Example: tsunagi scaler run
    """
    from tsunagi.runtime.loop import serve

    def start(settings: Settings) -> int:
        from tsunagi.scaler.service import run as service

        return service(settings)

    serve("scaler", start)


@click.command("simulate")
@click.option("--trace", required=True, type=_FILE, help="CSV file: t_s,rate_per_s at even steps.")
@click.option("--policy", default="lookahead", show_default=True, type=click.Choice(POLICY_NAMES), help="Who decides.")
@click.option("--billing", default="hourly", show_default=True, type=click.Choice(["hourly", "second"]))
@click.option("--boot", "boot_s", default=100.0, show_default=True, metavar="S", type=DURATION)
@click.option(
    "--slo", "slo_s", default=10.0, show_default=True, metavar="S", type=_POSITIVE, help="Longest delay promised."
)
@click.option("--out", required=True, type=_OUT, help="JSON file of the figures.")
@click.option("--slot", "slot_s", default=300.0, show_default=True, metavar="S", type=_POSITIVE, help="The TimeSlot.")
@click.option("--types", type=_FILE, help="TOML file of worker types and prices [default: the paper's].")
@click.option("--forecast", default="", metavar="NAME", help="mixture, sdar, seasonal, ewma, last or module:Class.")
@click.option(
    "--solver",
    default="marginal",
    show_default=True,
    type=click.Choice(["marginal", "program"]),
    help="How lookahead solves: the greedy solution, or the integer program itself.",
)
@click.option("--score-days", type=_POSITIVE, metavar="DAYS", help="Last days scored [default: 7, or 28].")
@click.option(
    "--slower",
    default=0.0,
    metavar="SHARE",
    type=Number(0, 0.99),
    help="By so much workers are slower than told.",
)
@click.option("--csv", "csv_file", type=_OUT, help="CSV file of every decision.")
@click.option("--plot", type=_OUT, help="PNG file: arrivals, capacity and late tuples.")
def simulate(
    trace: Path,
    policy: str,
    billing: str,
    boot_s: float,
    slo_s: float,
    out: Path,
    slot_s: float,
    types: Path | None,
    forecast: str,
    solver: str,
    score_days: float | None,
    slower: float,
    csv_file: Path | None,
    plot: Path | None,
) -> None:
    """Run a policy against a trace of rates: what it costs, and how many tuples are late.

    The trace is scaled so that its busiest minute has 2,000 tuples/s; all but the last days is history. The local
    capacity is the median load of the scored days and costs nothing. `cost_bound` is what nobody could beat who knew
    the future, had fractional workers and changed them every minute without boot.

    \b
    tsunagi scaler simulate --trace taxi.csv --out out/taxi.json
    tsunagi scaler simulate --trace taxi.csv --policy threshold --billing second --out out/t.json --plot out/t.png
    """
    from tsunagi.scaler.policy import PolicySettings
    from tsunagi.scaler.simulate_report import Options
    from tsunagi.scaler.simulate_report import simulate as simulated

    settings = PolicySettings(
        policy=policy,
        slot_s=slot_s,
        billing="hourly" if billing == "hourly" else "second",
        slo_s=slo_s,
        forecast=forecast,
        solver="program" if solver == "program" else "marginal",
    )
    options = Options(trace, settings, boot_s, out, types, score_days, csv_file, plot, 1.0 - slower)
    figures = simulated(options, lambda line: click.echo(line, err=True))
    over = figures["cost_over_bound"]
    click.echo(
        f"cost {figures['cost']:.2f}, {'no bound' if over is None else f'{over:.3f} x the clairvoyant bound'}, "
        f"late {figures['late_share']:.3%}, {figures['changes_per_day']:.1f} changes a day; {out}"
    )


@click.command("scale")
@click.option("--workers", type=click.IntRange(1, 10_000), help="So many local workers, and none of any other type.")
@click.option(
    "--type", "kinds", multiple=True, metavar="TYPE=N", help="So many of a type; may be given more than once."
)
@click.option("--auto", is_flag=True, help="As [scaler] says again: its least number of workers, or its policy.")
def scale(workers: int | None, kinds: tuple[str, ...], auto: bool) -> None:  # noqa: FBT001 - click's flag
    """Have so many workers: the scaler starts or stops them, and moves slots before it stops one.

    A type that is not named gets none; local workers stay as configured unless --workers or --type local=N names them.
    It is kept in the log until --auto, also over restarts of the scaler. Two workers are the least that keep every slot
    with a secondary.

    \b
    tsunagi scaler scale --workers 4
    tsunagi scaler scale --type local=1 --type small=2
    tsunagi scaler scale --auto
    """
    from tsunagi.runtime.settings import load
    from tsunagi.scaler.by_hand import ask

    ask(load(), workers, kinds, click.echo, auto=auto)


@click.command("capacity")
@click.option("--type", "kind", default="local", show_default=True, help="The type: a key of [scaler.sizes].")
@click.option("--seconds", default=10.0, type=_POSITIVE, show_default=True, help="How long to measure.")
def capacity(kind: str, seconds: float) -> None:
    """Measure how many tuples a second one worker of a type processes, here and with the configured query.

    Nothing of a running system is touched, and no broker is needed. Write the figure into [scaler.sizes] as `rate`; it
    is corrected while the system runs, by what workers process that are never idle.

    Example: tsunagi scaler capacity --type small
    """
    from tsunagi.runtime.settings import load
    from tsunagi.scaler.benchmark import measure

    click.echo(f"{kind}: rate = {measure(load(), kind, seconds, click.echo):.0f}")


def register(group: click.Group) -> None:
    """Add the commands to `tsunagi scaler`."""
    for command in (run, simulate, scale, capacity):
        group.add_command(command)
