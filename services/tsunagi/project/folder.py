"""Writes the files of a project folder for what was found, and shows it."""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tsunagi.project.arrangement import Arrangement, arrange
from tsunagi.project.finding import FoundFleet
from tsunagi.project.fleet import Series, held_s, own_topic
from tsunagi.project.sizing import FleetSize, plan, this_machine
from tsunagi.runtime.example import toml_text
from tsunagi.runtime.settings import ConfigError, Settings

SENSORS, CONFIG, QUERY = "sensors.csv", "tsunagi.toml", "queries/overview.sql"
"""The files of a project folder."""
_COLUMNS = ["sensor", "edge", "group", "unit", "max_age_s"]
"""The columns of a new sensors table."""
_LISTED = 20
"""Most sensors that are listed on the screen."""
_SLIDE_S = 10.0
"""The overview comes about so often, in seconds; it is of six times as long."""
_FEW = 3
"""Whether a sensor's times are cut to whole seconds is only judged if it has sent more readings than this."""
_SECOND_US = 1_000_000
"""Microseconds in a second."""
_DISORDER = 2.0
"""Readings are waited for this many times as long as the slowest one took, if that is longer than the default."""

_OVERVIEW = """\
-- Again and again: mean, least and greatest value of each group of late, and how many values there were.
-- How it is known stands beside each row: exact, or bounded where values were estimated.
-- Try another one without a restart: tsunagi query add "CREATE QUERY ..."; see docs/howto/queries.md.
CREATE QUERY overview AS
SELECT group, AVG(value) AS mean, MIN(value) AS least, MAX(value) AS greatest, COUNT(*) AS readings
FROM readings [RANGE {range_s:g} SECONDS SLIDE {slide_s:g} SECONDS]
GROUP BY group
ORDER WITHIN group;
"""
"""The query of a new project; its window depends on the length of a step."""


def project(found: FoundFleet, arranged: Arrangement | None = None, before: str = "") -> dict[str, str]:
    """Return the files of the project folder, by name.

    Args:
        arranged: edges, groups and steps; None = what topics, names and times suggest.
        before: the sensors table that the folder has; "" = none.
    """
    series = found.by_name()
    arranged = arranged or arrange(series)
    slide_s = arranged.step_s * math.ceil(_SLIDE_S / arranged.step_s)
    table = _table(series, arranged, before)
    edge_of = {row["sensor"]: row.get("edge", "") for row in csv.DictReader(io.StringIO(table)) if "sensor" in row}
    return {
        SENSORS: table,
        CONFIG: _config(found, arranged, edge_of),
        QUERY: _OVERVIEW.format(range_s=6 * slide_s, slide_s=slide_s),
    }


def _table(series: Sequence[Series], arranged: Arrangement, before: str) -> str:
    """Return the sensors table: what stands in it already stays as it is, since a sensor's id is its row."""
    text = io.StringIO()
    text.write(before if before.endswith("\n") or not before else f"{before}\n")
    table = csv.writer(text, lineterminator="\n")
    header, *rows = list(csv.reader(before.splitlines())) or [_COLUMNS]
    if not before:
        table.writerow(header)
    place = header.index("sensor") if "sensor" in header else 0
    known = {row[place].strip() for row in rows if len(row) > place}
    for item in series:
        if item.name not in known:
            cells = {"sensor": item.name, "edge": arranged.edge_of[item.name], "group": arranged.group_of[item.name]}
            cells["unit"] = item.unit
            cells["max_age_s"] = str(held_s(item, arranged.interval_s) or "")
            table.writerow([cells.get(name.strip(), "") for name in header])
    return text.getvalue()


def _config(found: FoundFleet, arranged: Arrangement, edge_of: Mapping[str, str]) -> str:
    defaults = Settings()
    source = {key: value for key, value in found.source.items() if key != "fields"}
    nested = {key: source.pop(key) for key in list(source) if isinstance(source[key], Mapping)}
    if "mqtt" in nested:
        pairs = [(item.levels, edge_of[item.name]) for item in found.series.values() if item.name in edge_of]
        nested["mqtt"] = {**nested["mqtt"], "topic": own_topic(str(nested["mqtt"]["topic"]), pairs)}
    live = source["kind"] not in {"csv", "parquet"}
    if live:
        source["foreign"] = "count"  # each edge hears them all
        source["disorder_s"] = disorder_s(found, defaults.source.disorder_s)
    interval_s, step_s, sensors = arranged.interval_s, arranged.step_s, len(found.series)
    # How large the largest edge is decides only on its container's memory, which is not written here.
    sizes = plan(FleetSize(sensors, 1, sensors, step_s, sensors / interval_s), this_machine())
    servers = found.source.get("kafka", {}).get("servers") or defaults.kafka.servers
    lines = [
        "# Made by `tsunagi init`. All keys: docs/reference/settings.md. Start the services in this folder.",
        'state = "run"',
        f'sensors = "{SENSORS}"',
        "",
        "[kafka]",
        f"servers = {toml_text(servers)}  # Tsunagi's own topics; `tsunagi up` starts a broker there if none answers",
        "",
        "[steps]",
        f"interval_s = {interval_s:g}  # what most sensors have",
        f"window = {arranged.window}",
        f"slide = {arranged.window}",
        "",
        "[slots]",
        f"count = {sizes.slots.value}  # `tsunagi plan` says why; `tsunagi slots` adds some while it runs",
        "",
        "[query]",
        f'files = ["{QUERY}"]',
        "",
        "[standby]",
        f"batch_size = {sizes.batch_size.value}  # {sizes.batch_size.why}",
        "",
        "[spark]",
        f"cores = {sizes.spark_cores.value}  # fixed as well",
        'checkpoint = "checkpoint"',
        "",
        "[recovery]",
        "learn = true  # a model of what edges send, as soon as there is enough; `tsunagi status` says how far it is",
        'store = "models"',
        "",
        "[source]",
        *(f"{key} = {toml_text(value)}" for key, value in source.items()),
    ]
    for name, section in nested.items():
        lines += ["", f"[source.{name}]"]
        for key, value in section.items():
            remark = "  # each edge hears its own; if you give edges other names, name a pattern of all"
            lines.append(f"{key} = {toml_text(value)}" + remark * (key == "topic" and "{edge}" in str(value)))
    for entry in found.source.get("fields", ()):
        lines += ["", "[[source.fields]]", *(f"{key} = {toml_text(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def disorder_s(found: FoundFleet, least_s: float) -> float:
    """Return how long an edge should wait for readings on their way, in seconds.

    What was seen may have been luck: a time that is cut to whole seconds makes a reading up to a second older.
    """
    whole = any(
        item.count > _FEW and all(time_us % _SECOND_US == 0 for time_us in item.times_us)
        for item in found.series.values()
    )
    return round(max(least_s, _DISORDER * found.slowest_s, (1 + least_s) * whole), 1)


def write(folder: Path, files: Mapping[str, str], tell: Callable[[str], object], *, replace: bool = False) -> bool:
    """Write the files of a project; return False, and only show how they differ, if others are there.

    Raises:
        ConfigError: a file cannot be written.
    """
    there = {name: (folder / name).read_text(encoding="utf-8") for name in files if (folder / name).exists()}
    differ = [name for name, text in there.items() if text != files[name]]
    if differ and not replace:
        for name in differ:
            old, new = (text.splitlines(keepends=True) for text in (there[name], files[name]))
            tell(
                "".join(
                    difflib.unified_diff(old, new, f"{folder / name}, as it is", f"{folder / name}, as found")
                ).rstrip()
            )
        tell(f"{folder}: {', '.join(differ)}: differ from what was found; nothing was written. --replace writes them")
        return False
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    return True


def show(found: FoundFleet, console: Console) -> None:
    """Print what was found."""
    series = found.by_name()
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for heading in ("sensor", "readings", "every s", "least", "greatest", "unit"):
        table.add_column(heading, justify="left" if heading in {"sensor", "unit"} else "right", overflow="fold")
    for item in itertools.islice(series, _LISTED):
        every = "" if item.interval_s is None else f"{item.interval_s:.3g}"
        table.add_row(
            Text(item.name), str(item.count), every, f"{item.least:.6g}", f"{item.greatest:.6g}", Text(item.unit)
        )
    console.print(table)
    if len(series) > _LISTED:
        console.print(f"... and {len(series) - _LISTED} more sensors", markup=False)
    if found.unusable:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(found.unusable.items()))
        console.print(f"not used: {counts}", markup=False)
    differ = [item for item in series if len(item.units) > 1]
    if differ:
        told = "; ".join(f"{item.name} ({', '.join(sorted(item.units))})" for item in differ[:_LISTED])
        more = f"; and {len(differ) - _LISTED} more sensors" * (len(differ) > _LISTED)
        console.print(f"no unit is written where messages tell several: {told}{more}", markup=False)
