"""`tsunagi`: every command of the system. Parses, calls, and turns errors into one line; the work is elsewhere.

What a command needs is imported when it runs, so that `tsunagi --help` is quick.
"""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsunagi import __version__
from tsunagi.runtime.explain import debugging, explain
from tsunagi.runtime.naming import node_fault
from tsunagi.runtime.options import DURATION, ROUNDS, SEED, Number, Output
from tsunagi.runtime.threads import one_thread
from tsunagi.scaler.cli import register as register_scaler

if TYPE_CHECKING:
    from tsunagi.runtime.settings import Settings

CONFIG_VARIABLE = "TSUNAGI_CONFIG"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=_CONTEXT)
@click.option(
    "--config", type=click.Path(dir_okay=False), help="Configuration file [default: tsunagi.toml, if there is one]."
)
@click.version_option(__version__, prog_name="tsunagi")
def cli(config: str | None) -> None:
    """Tsunagi: results of a fleet of sensors keep flowing while machines die.

    \b
    Try it:            tsunagi demo
    Run it here:       tsunagi up, tsunagi status, tsunagi results --follow, tsunagi down
    Run one service:   tsunagi gateway run --node gw-1
    """
    if config is not None:
        os.environ[CONFIG_VARIABLE] = config


def main() -> None:
    """Entry point: every error becomes one line on stderr, and exit code 2 (bad input), 130 (interrupted) or 1."""
    try:
        _usual_surroundings()
        code = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as error:
        error.show()
        code = 2
    except Exception as error:  # noqa: BLE001 - the outermost place: whatever it was is told in one line
        if debugging():
            traceback.print_exc()
        ending = explain(error)
        click.echo(f"tsunagi: {ending.text}", err=True)
        code = ending.code
    sys.exit(code if isinstance(code, int) else 0)


def _usual_surroundings() -> None:
    """Make what surrounds the command what all of it counts on, for the processes that it starts too."""
    one_thread(os.environ)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show is shown by its number
            stream.reconfigure(errors="backslashreplace")
    # Java takes the names of files by the locale, and can open no other; Python has UTF-8 then by itself.
    if os.environ.get("LC_ALL", os.environ.get("LC_CTYPE", os.environ.get("LANG", ""))) in {"", "C", "POSIX"}:
        os.environ["LC_ALL"] = "C.UTF-8"


def _settings() -> Settings:
    from tsunagi.runtime.settings import load

    return load()


def _config() -> Path | None:
    """Return the configuration file that services started by us shall read."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else None


def _serve(name: str, run: Callable[[Settings], int]) -> None:
    from tsunagi.runtime.loop import serve

    serve(name, run)


def _node(_: click.Context, param: click.Parameter, value: str) -> str:
    """Check the name of a worker, which becomes that of files."""
    if fault := node_fault(value):
        raise click.BadParameter(fault, param=param)
    return value


# ---- services ------------------------------------------------------------------------------------------------------


@cli.group()
def edge() -> None:
    """Reads a source, aggregates windows, publishes them by slot."""


@edge.command("run")
@click.option("--edge", "name", required=True, help="The edge's name in the sensors table.")
@click.option(
    "--clock-offset",
    default=0.0,
    type=Number(-1e9, 1e9),
    metavar="SECONDS",
    help="Pretend that this edge's clock is so much fast (tests).",
)
def edge_run(name: str, clock_offset: float) -> None:
    """Run one edge.

    Example: tsunagi edge run --edge edge-1
    """

    def run(settings: Settings) -> int:
        from tsunagi.edge.service import run as service

        return service(settings, name, clock_offset)

    _serve(name, run)


@cli.group()
def gateway() -> None:
    """Hosts slots: primary of some, secondary of others, as the plan says."""


@gateway.command("run")
@click.option("--node", required=True, callback=_node, help="A name that no other worker has.")
@click.option("--type", "kind", default="", help="Its type, one of [scaler.sizes]: it keeps to the limit there.")
def gateway_run(node: str, kind: str) -> None:
    """Run one worker.

    Example: tsunagi gateway run --node gw-1
    """

    def run(settings: Settings) -> int:
        from tsunagi.worker.service import run as service

        return service(settings, node, kind=kind)

    _serve(node, run)


@cli.group()
def secondary() -> None:
    """The same host as the gateway, under the name of its usual role."""


@secondary.command("run")
@click.option("--node", required=True, callback=_node, help="A name that no other worker has.")
def secondary_run(node: str) -> None:
    """Run one worker.

    Example: tsunagi secondary run --node sec-1
    """

    def run(settings: Settings) -> int:
        from tsunagi.worker.service import run as service

        return service(settings, node, service="secondary")

    _serve(node, run)


@cli.group()
def scaler() -> None:
    """Plans which worker owns which slot, and starts workers that are missing."""


register_scaler(scaler)


@cli.group()
def spark() -> None:
    """The aggregation job: q1..q3 of every reading, in time order within each group."""


@spark.command("run")
def spark_run() -> None:
    """Run the Spark job's driver.

    Example: tsunagi spark run
    """

    def run(settings: Settings) -> int:
        from tsunagi_spark.service import run as service

        return service(settings)

    _serve("spark", run)


# ---- the whole system on this machine ------------------------------------------------------------------------------


@cli.command()
def setup() -> None:
    """Bring the jars of the Kafka broker and of Spark's connector, once; they need Java 17 or newer.

    In a checkout of the sources `make setup` does it. Afterwards `tsunagi demo` and `tsunagi up` run without a network.
    """
    from tsunagi.jars.fetch import fetch_all

    fetch_all(click.echo)


@cli.command()
@click.option("--no-edges", is_flag=True, help="Start all but the edges.")
@click.option("--no-wait", is_flag=True, help="Do not wait until everything is ready.")
@click.option("--join", is_flag=True, help="The log is of this system, although its state directory does not know it.")
def up(no_edges: bool, no_wait: bool, join: bool) -> None:  # noqa: FBT001 - click's flags
    """Start broker, topics, scaler, workers, Spark and edges on this machine, and leave them running.

    What runs already stays. A broker that answers at [kafka] servers is used as it is, unless its log
    is of another system.
    """
    from tsunagi.local.up import System
    from tsunagi.runtime.sensors import read_sensors

    settings = _settings()
    read_sensors(settings.sensors)  # all that is started reads it: what is wrong with it shows before anything runs
    system = System(settings, _config(), click.echo)
    system.start_broker()
    system.make_topics(join=join)
    nodes = system.start_workers()
    if not no_wait:
        system.wait_ready(nodes)
    if not no_edges:
        system.start_edges()
    click.echo("up. Look:  tsunagi status;  tsunagi results --follow.  Stop:  tsunagi down")


@cli.command()
@click.option(
    "--wipe/--keep-data",
    default=False,
    help="Remove log, state and checkpoint too, where Tsunagi made the directory [default: keep].",
)
def down(wipe: bool) -> None:  # noqa: FBT001 - click's flag
    """Stop everything that `tsunagi up` started, the broker last; exit code 1 if not all of it was seen to end."""
    from tsunagi.local import up as local

    settings = _settings()
    stopped = local.System(settings, _config(), click.echo).stop()
    if stopped.killed:
        click.echo(f"killed, since they did not stop in time: {', '.join(stopped.killed)}", err=True)
    if stopped.left:
        click.echo("not seen to end:\n" + "\n".join(f"  {item}" for item in stopped.left), err=True)
        sys.exit(1)
    if wipe:
        local.wipe(settings, click.echo)
    click.echo(f"down: {', '.join(stopped.ended)} ended" if stopped.ended else f"nothing ran in {settings.state}")


@cli.command()
@click.option("--acls", is_flag=True, help="Give every user its rights as well (docs/security.md).")
@click.option(
    "--users",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Make or change the SCRAM users whose password-USER stands in this directory.",
)
def topics(acls: bool, users: Path | None) -> None:  # noqa: FBT001 - click's flag
    """Make or check the topics, and the rights on them; may be run again at any time.

    Example: tsunagi topics --acls --users /run/secrets
    """
    from tsunagi.local.topics import make_rights, make_topics
    from tsunagi.system.identity import introduce

    settings = _settings()
    make_topics(settings)
    click.echo("topics: there")
    introduce(settings)
    make_rights(settings, click.echo, acls=acls, users=users)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(as_json: bool) -> None:  # noqa: FBT001 - click's flag
    """Show slots, owners, epochs, positions, lag, nodes and metrics ports."""
    import json

    from rich.console import Console

    from tsunagi.local.status import print_status, read_status

    found = read_status(_settings())
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_status(found, Console())


@cli.command()
@click.option("--slot", "slots", type=int, multiple=True, help="Only this slot; may be given more than once.")
@click.option("--batch-size", metavar="TUPLES", help="B: 1 = active standby, inf = upstream backup.")
@click.option("--policy", type=click.Choice(["model", "fixed"]), help="How B is kept within the limits.")
@click.option("--max-bandwidth", type=float, metavar="BYTES/S", help="Limit of what a secondary reads; inf = none.")
@click.option("--max-recovery", type=float, metavar="SECONDS", help="Limit of the recovery time; inf = none.")
@click.option("--priority", type=click.Choice(["recovery", "bandwidth"]), help="Which limit is kept if both cannot be.")
def standby(
    slots: tuple[int, ...],
    batch_size: str | None,
    policy: str | None,
    max_bandwidth: float | None,
    max_recovery: float | None,
    priority: str | None,
) -> None:
    """Change how the slots' secondaries stand by, while they run.

    What is not given is as [standby] says; nothing given: all as it says again. It is kept in the log, so that a worker
    that starts later knows it too. With access rules (profile secure) it takes the scaler's rights.

    \b
    tsunagi standby --batch-size 500
    tsunagi standby --slot 1 --max-bandwidth 30000 --max-recovery 0.08 --priority recovery
    tsunagi standby                     # as configured
    """
    from tsunagi.local.standby import ask

    batch = int(batch_size) if batch_size is not None and re.fullmatch("[0-9]{1,18}", batch_size) else batch_size
    given = {
        "batch_size": batch,
        "policy": policy,
        "max_bandwidth": max_bandwidth,
        "max_recovery_s": max_recovery,
        "priority": priority,
    }
    ask(_settings(), slots, {name: value for name, value in given.items() if value is not None}, click.echo)


@cli.command()
@click.option("--follow", is_flag=True, help="Go on as results come.")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--group", "groups", multiple=True, help="Only this group; may be given more than once.")
@click.option("--from-now", is_flag=True, help="Skip what is there already.")
@click.option("--merged", is_flag=True, help="All groups as one stream in the order of time, not each group by itself.")
def results(
    follow: bool,  # noqa: FBT001 - click's flags
    form: str,
    groups: tuple[str, ...],
    from_now: bool,  # noqa: FBT001
    merged: bool,  # noqa: FBT001
) -> None:
    """Print ordered results, repeats dropped.

    \b
    tsunagi results --follow --format csv --group area-01
    tsunagi results --merged
    """
    from tsunagi.local.results import print_results

    print_results(_settings(), follow=follow, form=form, groups=groups, from_now=from_now, merged=merged)


@cli.command()
@click.option("--data", type=_FILE, help="A CSV of readings of your own [default: the one that comes with Tsunagi].")
@click.option(
    "--edges",
    default=4,
    show_default=True,
    type=click.IntRange(2, 10_000),
    help="Edges over which its columns are spread.",
)
@click.option("--sensors", type=_FILE, help="A sensors table for it, instead of --edges.")
@click.option("--model", type=_FILE, help="A fitted model [default: fitted to the first 40 % of the rows].")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/demo"), show_default=True)
@click.option("--seed", default=1, type=SEED, show_default=True, help="Of the times of the faults.")
def demo(data: Path | None, edges: int, sensors: Path | None, model: Path | None, out: Path, seed: int) -> None:
    """Stream real readings, kill an edge and two gateway workers on the way, and check every row.

    Exit code 0 only if nothing was lost, doubled or out of order, and every kill hit a slot's owner while tuples
    were in flight.
    Writes report.json and report.html into --out. Examples:

    \b
    tsunagi demo
    tsunagi demo --data mine.csv --edges 3
    """
    from tsunagi.demo.run import Plan, run

    sys.exit(run(Plan(data=data, edges=edges, sensors=sensors, model=model, out=out, seed=seed)))


@cli.command()
@click.option(
    "--timeout", default=120.0, type=DURATION, show_default=True, metavar="SECONDS", help="Give up after so long."
)
def wait(timeout: float) -> None:
    """Wait until a new ordered result comes out; exit code 1 if none does.

    Example: tsunagi wait --timeout 60 && echo it works
    """
    from tsunagi.local.wait import wait_for_result

    wait_for_result(_settings(), timeout, click.echo)


@cli.command()
@click.option("--slot", "slots", type=int, multiple=True, help="Only this slot; may be given more than once.")
def replay(slots: tuple[int, ...]) -> None:
    """Compute the outputs of the slots again from their logs, and compare with what was written.

    Exit code 1 if a name or a tag differs, or a value by more than 1e-6 standard deviations.
    """
    from tsunagi.replay.slots import replay_slots

    sys.exit(replay_slots(_settings(), slots, click.echo))


@cli.command()
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("gateway",),
    show_default=True,
    metavar="TARGET",
    help="gateway | edge | secondary | spark | kafka | scaler | all; may be given more than once.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    default=("kill",),
    show_default=True,
    metavar="FAULT",
    help="kill | pause | restart | partition | delay | cpu | loss | all; may be given more than once.",
)
@click.option("--count", default=1, type=ROUNDS, show_default=True, help="Rounds, one fault each.")
@click.option("--seed", default=1, type=SEED, show_default=True, help="Of what is hit when, how long and how hard.")
@click.option(
    "--out",
    type=Output(),
    help="A JSON object a line for each round, and a summary last.",
)
@click.option("--project", default="tsunagi", show_default=True, help="The compose project.")
@click.option(
    "--local", is_flag=True, help="The processes of `tsunagi up` instead of containers (kill, pause, restart)."
)
@click.option(
    "--servers", default="", metavar="HOST:PORT", help="The broker's address from here [default: as configured]."
)
@click.option(
    "--patience",
    default=180.0,
    type=DURATION,
    show_default=True,
    metavar="SECONDS",
    help="How long all may take to be well.",
)
@click.option(
    "--every",
    default=0.0,
    type=DURATION,
    show_default=True,
    metavar="SECONDS",
    help="Rounds begin at least so far apart.",
)
def chaos(
    targets: tuple[str, ...],
    faults: tuple[str, ...],
    count: int,
    seed: int,
    out: Path | None,
    project: str,
    local: bool,  # noqa: FBT001 - click's flag
    servers: str,
    patience: float,
    every: float,
) -> None:
    """Disturb a running system, and judge its results by a reader of its own.

    A round: wait until every slot has its owner and a ready secondary, edges send and results come; set one fault;
    take it back; wait until all is well again; judge. `gateway` is the worker that owns a slot now, `secondary` the one
    that stands by for it, whatever their containers are called. With several targets and faults, every pair comes once
    before any comes again, in an order drawn from the seed.

    \b
    kill       SIGKILL to the main process; Docker restarts the container
    pause      freeze (0.4-6 s)              restart    stop in good order, start again
    partition  off the network (1-6 s)       cpu        5-20 % of a processor (4-10 s)
    delay      20-150 ms and jitter on Kafka connections (4-10 s)
    loss       10-20 % of their packets dropped (4-10 s)

    One line a round: longest silence of the slots concerned beyond a step, and of the others; takeovers as
    slot->new owner: detection + catching up; time from the takeover to a ready secondary; verdict. Exit code 0 only if
    nothing was lost, duplicated, inverted or wrong, and everything came back. Faults are taken back whatever happens.
    Only containers with our labels and of that project are touched. More: docs/chaos.md

    \b
    tsunagi chaos --target gateway --fault kill --count 50 --seed 7 --out out/chaos.jsonl
    tsunagi chaos --target all --fault all --count 100 --seed 1
    """
    from tsunagi.chaos.command import Options, run_chaos

    options = Options(targets, faults, count, seed, out, project, local, servers, patience, every)
    sys.exit(run_chaos(_settings(), _config(), options, click.echo))


@cli.command()
@click.argument("history", type=click.Path(exists=True, path_type=Path))
@click.option("--sensors", type=_FILE, help="The sensors table [default: the configured one].")
@click.option(
    "--rows",
    default=1.0,
    type=Number(0, 1, min_open=True),
    show_default=True,
    help="Share of the rows, from the first, to fit to.",
)
@click.option(
    "--period",
    default="auto",
    show_default=True,
    metavar="STEPS|DURATION|auto|none",
    help="After what a profile repeats: 144, 24h; auto = looked for. Kept only if the trial is better for it.",
)
@click.option("--spark/--in-memory", "spark_", default=None, help="Where [default: Spark past 512 MiB of readings].")
@click.option(
    "--sample",
    type=click.IntRange(12, 10**9),
    metavar="STEPS",
    help="Through Spark: last steps that the structure is searched on [default: 256 MiB of them].",
)
@click.option("--out", type=Output(), required=True, help="Where the model goes.")
def fit(
    history: Path,
    sensors: Path | None,
    rows: float,
    period: str,
    spark_: bool | None,  # noqa: FBT001 - click's flag
    sample: int | None,
    out: Path,
) -> None:
    """Fit a recovery model to HISTORY: CSV or Parquet, a file or a directory of files.

    A column a sensor, an empty cell or null = no reading, perhaps a column `time` (ISO 8601 or timestamps with a zone,
    or epoch seconds). Rows with times about [steps] interval_s apart give a model whose profile is in phase with the
    running system; gaps are missing steps. Through Spark ([spark] master) the history is summed in one pass, by workers
    that must see the same files and [spark] checkpoint. More: docs/recovery-model.md

    \b
    tsunagi fit data/guangzhou.csv --rows 0.4 --out out/model.bin
    tsunagi fit /history --period 24h --out out/model.bin
    docker-compose run --rm --no-deps spark fit data/history --spark --out /models/model.bin
    """
    from tsunagi.commands.fit import fit_anywhere
    from tsunagi.recovery.fit import summary
    from tsunagi.runtime.sensors import read_sensors

    settings = _settings()
    table = read_sensors(sensors or settings.sensors)
    model, report = fit_anywhere(
        settings,
        history,
        table,
        rows,
        period,
        spark=spark_,
        sample=sample,
        tell=lambda line: click.echo(line, err=True),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"{out}: {len(model)} sensors, sha256 {model.save(out)}")
    for line in summary(model, report, settings.steps):
        click.echo(line)


def _numbers(kind: type[int | float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """Return an option's callback that reads numbers with commas between."""

    def read(_: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            return tuple(kind(item) for item in value.split(","))
        except ValueError:
            raise click.BadParameter(f"found {value!r}, expected numbers such as 1,2,4", param=param) from None

    return read


@cli.group()
def recovery() -> None:
    """What dead edges lost: what filling it in aims at, and what it costs."""


@recovery.command("set")
@click.option("--eps", type=float, metavar="SD", help="Tolerated error, in each sensor's standard deviations.")
@click.option("--delta", type=float, help="Probability with which bounds must hold.")
@click.option("--helpers", type=int, help="Sensors of other slots that a slot may ask for; 0 = none.")
@click.option("--unbounded", type=click.Choice(["tag", "withhold"]), help="What becomes of values wider than eps.")
def recovery_set(eps: float | None, delta: float | None, helpers: int | None, unbounded: str | None) -> None:
    """Change what the recovery of all slots aims at, while they run.

    What is not given is as [recovery] says; nothing given: all as it says again. It comes into force through the slots'
    logs, so that outputs can be computed again, and stays in `plan`. With access rules (profile secure) it takes the
    scaler's or a gateway's rights.

    \b
    tsunagi recovery set --eps 0.5 --delta 0.95
    tsunagi recovery set --helpers 0
    tsunagi recovery set                # as configured
    """
    from tsunagi.local.recovery import ask

    given = {"eps": eps, "delta": delta, "helpers": helpers, "unbounded": unbounded}
    ask(_settings(), {name: value for name, value in given.items() if value is not None}, click.echo)


@recovery.command("explore")
@click.option("--model", "model_file", type=_FILE, help="The model [default: the configured one].")
@click.option("--sensors", type=_FILE, help="The sensors table [default: the configured one].")
@click.option("--slots", callback=_numbers(int), default="1,2,4,8", show_default=True, help="Numbers of slots to try.")
@click.option("--cap", callback=_numbers(int), default="0,20,100", show_default=True, help="Helpers of a slot at most.")
@click.option(
    "--eps", callback=_numbers(float), default="0.25,0.5,1", show_default=True, help="Tolerated errors, in sd."
)
@click.option("--delta", type=float, help="Probability of the bounds [default: the configured one].")
@click.option(
    "--fail", default=0.01, type=Number(0, 1), show_default=True, help="Probability that an edge fails at a step."
)
@click.option("--steps", default=10, type=ROUNDS, show_default=True, help="Steps for which a failed edge is away.")
@click.option("--draws", default=30, type=ROUNDS, show_default=True, help="Sets of dead edges to try.")
@click.option("--out", type=Output(), help="Write the table as CSV as well.")
@click.option("--picture", type=Output(), help="Draw it, as PNG or SVG.")
def recovery_explore(
    model_file: Path | None,
    sensors: Path | None,
    slots: tuple[int, ...],
    cap: tuple[int, ...],
    eps: tuple[float, ...],
    delta: float | None,
    fail: float,
    steps: int,
    draws: int,
    out: Path | None,
    picture: Path | None,
) -> None:
    """Show what slots, helpers, eps and delta cost and bring when edges fail.

    Meanwhile is the share of lost values whose bound of probability delta is at most eps standard deviations, over an
    outage of --steps; satisfied, those in an outage that does not end; reachable, those that could be then if
    everything alive were read. Nothing is changed.

    Example: tsunagi recovery explore --model out/model.bin --slots 1,4 --eps 0.5
    """
    from tsunagi.recovery.report import show_exploration

    wanted = {"slots": slots, "caps": cap, "eps": eps, "delta": delta}
    show_exploration(_settings(), model_file, sensors, wanted, (fail, steps, draws), out, picture)


if __name__ == "__main__":
    main()
