"""`tsunagi edge`."""

from __future__ import annotations

import sys

import click

from tsunagi.commands.options import Number, serve

_OFFSET = Number(-1e9, 1e9)
"""Type of --clock-offset, in seconds. About 31 years in both directions are more than any test needs."""


@click.group()
def edge() -> None:
    """Run an edge, which publishes the readings of its sensors."""


@edge.command("run")
@click.option("--edge", "name", required=True, help="Name of the edge in the sensors table.")
@click.option("--clock-offset", default=0.0, type=_OFFSET, metavar="SECONDS", help="Lead of its clock, for tests.")
def run(name: str, clock_offset: float) -> None:
    """Run one edge until it is stopped.

    It reads its source, aggregates sliding windows, and publishes one batch a step and slot.

    Example: tsunagi edge run --edge edge-1
    """
    serve(name, "tsunagi.edge.process", name, clock_offset)


@edge.command("try")
@click.option(
    "--edge", "name", default="", help="The edge that reads the messages; without it all sensors are its own."
)
@click.option("--topic", default="", help="The MQTT or Kafka topic of the messages.")
@click.option("--key", default="", help="The Kafka key of the messages.")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]")
def try_(name: str, topic: str, key: str, messages: tuple[str, ...]) -> None:
    """Show what an edge reads in messages of its live source.

    No system need run. Messages are arguments, or lines of standard input. For each reading a line has its sensor, its
    time and its value, or says why it cannot be used. The exit code is 1 if one cannot. Messages of Sparkplug B and
    Avro are hexadecimal digits, perhaps with a topic before them, as `mosquitto_sub -F '%t %x'` prints them.

    Example: tsunagi edge try --topic plant/hall-1/boiler '{"temperature": 81.5, "ts": 1714996800000}'
    """
    from tsunagi.local.messages import try_messages
    from tsunagi.runtime.settings import load

    given = (text.encode() for text in messages) if messages else (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    if not try_messages(load(), name, topic, key, given, click.echo):
        raise SystemExit(1)
