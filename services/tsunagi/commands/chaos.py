"""`tsunagi chaos`."""

from __future__ import annotations

import sys
from typing import Any

import click

from tsunagi.commands.options import ROUNDS, SEED, OutputFile, config_file, seconds

_HIT = "What is hit: gateway | edge | secondary | spark | kafka | scaler | all; may be given more than once."
"""Help text of --target."""
_DONE = "What is done: kill | pause | restart | partition | delay | cpu | loss | all; may be given more than once."
"""Help text of --fault."""


@click.command()
@click.option("--target", "targets", multiple=True, default=("gateway",), metavar="TARGET", help=_HIT)
@click.option("--fault", "faults", multiple=True, default=("kill",), metavar="FAULT", help=_DONE)
@click.option("--count", default=1, type=ROUNDS, help="Number of rounds, with one fault each.")
@click.option("--seed", default=1, type=SEED, help="Seed of what is hit, when, for how long and how hard.")
@click.option("--out", type=OutputFile(), help="File of JSON lines: one a round, and a summary at the end.")
@click.option("--project", default="tsunagi", help="Name of the compose project.")
@click.option("--local", is_flag=True, help="Hit the processes of `tsunagi up` instead of containers.")
@click.option(
    "--servers", default="", show_default="[kafka] servers", metavar="HOST:PORT", help="Address of the broker."
)
@seconds("--patience", 180.0, "Longest time until all is well.")
@seconds("--every", 0.0, "Shortest time from the beginning of a round to that of the next.")
def chaos(**given: Any) -> None:
    """Set faults in a running system, and judge its results.

    A round: wait until every slot has its owner and a ready secondary, edges send and results come; set one fault;
    take it back; wait until all is well again; judge by a reader that trusts none of the services. `gateway` is the
    worker that owns a slot at that moment, `secondary` the one that stands by for it, whatever their containers are
    called. With several targets and faults, every pair comes once before any comes again, in an order drawn from the
    seed.

    \b
    kill       SIGKILL to the main process; Docker restarts the container
    pause      freeze the process for 0.4-6 s
    restart    stop the process in good order, then start it again
    partition  cut the container off the network for 1-6 s
    cpu        limit it to 5-20 % of a processor for 4-10 s
    delay      delay its Kafka connections by 20-150 ms and jitter for 4-10 s
    loss       drop 10-20 % of their packets for 4-10 s

    Local processes know kill, pause and restart, and partition for root.

    A round is reported in a line: the longest silence of the slots concerned, beyond a step, and that of the others;
    each takeover as slot->new owner: detection + catching up; the time from the takeover to a ready secondary; the
    verdict. The exit code is 0 only if nothing was lost, duplicated, inverted or wrong, and everything came back.
    Faults are taken back whatever happens. Only containers with Tsunagi's labels and of that project are touched.
    More: docs/howto/chaos.md

    \b
    tsunagi chaos --target gateway --fault kill --count 50 --seed 7
    tsunagi chaos --target all --fault all --count 100 --out out/chaos.jsonl
    """
    from tsunagi.chaos.command import ChaosOptions, run_chaos
    from tsunagi.runtime.settings import load

    sys.exit(run_chaos(load(), config_file(), ChaosOptions(**given), click.echo))
