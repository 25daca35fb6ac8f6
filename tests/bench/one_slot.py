"""What benchmarks of a single slot share: operators to choose from, and a plan."""

from __future__ import annotations

from services.runtime.columns import pack_sensors
from services.runtime.log import PLAN, Log
from services.runtime.messages import VERSION, Assignment, Placement, Plan
from services.runtime.sensors import read_sensors
from services.runtime.settings import Settings

OPERATORS = {
    "select": '{ use = "select", at_least = -1e9 }',
    "aggregate": '{ use = "aggregate", function = "sum", window = 100, slide = 10 }',
}
"""As in the A-SAS paper, for `[query] operators`; all tuples pass `select`."""


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
