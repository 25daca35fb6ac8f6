"""What benchmarks of a single slot share: its configuration, operators to choose from, and a plan."""

from __future__ import annotations

from pathlib import Path

from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.log import PLAN, Log
from tsunagi.runtime.messages import VERSION, Assignment, Placement, Plan
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import Settings

OPERATORS = {
    "select": '{ use = "select", at_least = -1e9 }',
    "aggregate": '{ use = "aggregate", function = "sum", window = 100, slide = 10 }',
}
"""As in the A-SAS paper, for `[query] operators`; all tuples pass `select`."""


CONFIG = """\
state = "{work}/run"
sensors = "{work}/sensors.csv"
[kafka]
servers = "{servers}"
prefix = "{prefix}"
[slots]
count = 1
[query]
mode = "tuples"
operators = [{operator}]
[standby]
{standby}
[recovery]
store = "{work}/models"
[scaler]
launcher = "none"
"""


def configure(work: Path, servers: str, operator: str, standby: str, *, sensors: int = 1, prefix: str = "") -> Path:
    """Write the sensors table, all of one edge, and the configuration; return its file.

    Args:
        operator: for `[query] operators`.
        standby: lines of `[standby]`.
    """
    rows = "".join(f"s{number},edge\n" for number in range(sensors))
    (work / "sensors.csv").write_text(f"sensor,edge\n{rows}", encoding="utf-8")
    config = work / "tsunagi.toml"
    text = CONFIG.format(work=work, servers=servers, prefix=prefix, operator=operator, standby=standby)
    config.write_text(text, encoding="utf-8")
    return config


def assign(settings: Settings, log: Log, owner: str, secondary: str) -> None:
    """Put all sensors into slot 0, and say who should have it."""
    table = read_sensors(settings.sensors)
    count = len(table)
    placement = Placement(serial=1, slots=1, slot=pack_sensors([0] * count), table_sha256=table.digest(count))
    wish = Assignment(slot=0, owner=owner, secondary=secondary, serial=1, reason="bench")
    producer = log.producer()
    producer.send(PLAN, 0, b"placement", Plan(version=VERSION, placement=placement).SerializeToString())
    producer.send(PLAN, 0, b"assignment/0", Plan(version=VERSION, assignment=wish).SerializeToString())
    producer.flush(10.0)
    producer.close()
