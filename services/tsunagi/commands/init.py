"""`tsunagi init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tsunagi.commands.options import FILE, TABLE, seconds


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--csv", type=FILE, help="A CSV with a column a sensor, or a row a reading, which edges replay.")
@click.option("--parquet", type=FILE, help="A Parquet file with a column a sensor, or a row a reading.")
@TABLE
@click.option("--mqtt", metavar="HOST[:PORT]", help="An MQTT broker; with --topic.")
@click.option("--kafka", metavar="SERVERS", help="Bootstrap servers of a Kafka cluster; with --topic.")
@click.option("--topic", help="Topics to read: plant/+/+ or # of MQTT, the name of a Kafka topic.")
@click.option("--username", default="", help="User of the MQTT broker.")
@click.option("--password-file", default="", help="File with that user's password.")
@click.option("--ca-file", default="", help="Certificates that the MQTT broker's is checked against; empty = no TLS.")
@seconds("--listen", 30.0, "How long to listen. Take several times the interval of the slowest sensor.")
@click.option("--edges", type=click.IntRange(1, 10_000), help="Number of edges [default: one for each area].")
@click.option(
    "--group",
    type=click.Choice(["topic", "correlation"]),
    help="What divides sensors into groups: topics and names [default], or which readings move together.",
)
@click.option("--yes", is_flag=True, help="Ask nothing: take what is proposed.")
@click.option("--replace", is_flag=True, help="Replace files that are there and differ.")
def init(
    folder: Path,
    csv: Path | None,
    parquet: Path | None,
    keys: tuple[str, ...],
    mqtt: str | None,
    kafka: str | None,
    topic: str | None,
    username: str,
    password_file: str,
    ca_file: str,
    listen_s: float,
    edges: int | None,
    group: str | None,
    *,
    yes: bool,
    replace: bool,
) -> None:
    """Make a project folder from what your sensors send.

    It reads a CSV or a Parquet file, or listens to MQTT or Kafka for a while. It shows what it found, and writes the
    sensors table, tsunagi.toml with the way to read your messages, and a query. In a folder that has such files it
    shows the difference and writes nothing; sensors that stand in the table stay as they are, and new ones come behind
    them.

    On a terminal it asks three questions: which level of topics, or part of names, is the edge, which is the group, and
    how long a step is. Return takes what it proposes. Elsewhere, and with --yes, it takes that without a question. Look
    the files through: what it proposes is a guess, by topics and names.

    \b
    tsunagi init plant --mqtt broker.local --topic 'plant/#' --listen 60
    tsunagi init plant --kafka broker-1:9092 --topic plant.readings
    tsunagi init plant --csv history.csv
    tsunagi init plant --parquet readings.parquet --table sensor=tag
    cd plant; tsunagi up; tsunagi query tail overview
    """
    from rich.console import Console

    from tsunagi.project.arrangement import arrange, divisions
    from tsunagi.project.finding import find_in_file, find_in_messages
    from tsunagi.project.folder import SENSORS, project, show, write
    from tsunagi.project.listening import listen
    from tsunagi.project.questions import ask
    from tsunagi.runtime.settings import TableSettings
    from tsunagi.runtime.tables.files import is_parquet

    if sum(given is not None for given in (csv, parquet, mqtt, kafka)) != 1:
        raise click.UsageError("Expected one of --csv, --parquet, --mqtt and --kafka.")
    file = csv or parquet
    if keys and file is None:
        raise click.UsageError("--table goes with --csv or --parquet.")
    for given, option, kind in ((csv, "--csv", "a CSV"), (parquet, "--parquet", "a name that ends in .parquet")):
        if given is not None and is_parquet(given) != (given is parquet):
            raise click.BadParameter(f"found {given}, expected {kind}", param_hint=option)
    if (topic is None) != (file is not None):
        raise click.UsageError("--topic goes with --mqtt or --kafka.")
    if file is not None:
        found = find_in_file(file, TableSettings().changed(keys))
    else:
        source: dict[str, Any] = {"kind": "kafka", "kafka": {"topic": topic, "servers": kafka}}
        if mqtt is not None:
            host, _, port = mqtt.partition(":")
            broker: dict[str, Any] = {"host": host, "topic": topic} | ({"username": username} if username else {})
            for key, path in (("password_file", password_file), ("ca_file", ca_file)):
                if path:  # services start in the folder
                    broker[key] = str(Path(path).absolute())
            if port:
                if not port.isdecimal():
                    raise click.BadParameter(f"found {mqtt!r}, expected HOST or HOST:PORT", param_hint="--mqtt")
                broker["port"] = int(port)
            source = {"kind": "mqtt", "mqtt": broker}
        found = find_in_messages(source, listen(source, listen_s, lambda line: click.echo(line, err=True)))
    show(found, Console())
    series = found.by_name()
    arranged = arrange(series, edges)
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        arranged = ask(arranged, divisions(series), edges_decided=edges is not None, groups_decided=group is not None)
    if group == "correlation":
        from tsunagi.project.correlation import group_by_correlation

        arranged = group_by_correlation(found, arranged)
    click.echo(f"groups: {len(set(arranged.group_of.values()))} ({arranged.grouped_by})")
    table = folder / SENSORS
    files = project(found, arranged, table.read_text(encoding="utf-8") if table.exists() else "")
    if not write(folder, files, click.echo, replace=replace):
        raise SystemExit(1)
    _write_container_files(folder)
    click.echo(
        f"{folder}: {len(found.series)} sensors. Look through {', '.join(files)}; then:  cd {folder}; tsunagi up"
    )


def _write_container_files(folder: Path) -> None:
    """Write the files of Docker Compose, if the sources of the images are here and containers can run this fleet."""
    import tomllib

    from tsunagi.installation import CHECKOUT
    from tsunagi.project.containers import OVERRIDE, VARIABLES, container_files, variables_text
    from tsunagi.project.folder import CONFIG, SENSORS
    from tsunagi.project.sizing import FleetSize, plan, this_machine
    from tsunagi.runtime.sensors import read_sensors
    from tsunagi.runtime.settings import ConfigError, make

    if CHECKOUT is None:
        return
    settings = make(tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")), str(folder / CONFIG))
    table = read_sensors(folder / SENSORS)
    try:
        sizes = plan(FleetSize.of(table, settings), this_machine(), settings.slots.count)
        files = container_files(settings, table, sizes)
    except ConfigError as error:
        click.echo(f"in containers it would not run: {error}")
        return
    (folder / OVERRIDE).write_text(files[OVERRIDE], encoding="utf-8")
    if not (folder / VARIABLES).exists():
        text = variables_text(files[VARIABLES], CHECKOUT, folder.resolve())
        (folder / VARIABLES).write_text(text, encoding="utf-8")
