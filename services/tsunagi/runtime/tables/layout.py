"""Finds out by its header whether a table of readings is wide or long, and which of its columns count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tsunagi.runtime.naming import is_time
from tsunagi.runtime.settings import TableSettings

_TIMES = ("time", "timestamp", "ts", "datetime", "date_time", "event_time", "_time", "date", "t")
"""Usual names of a long table's column of times, the likeliest first. Letters may be large or small."""
_SENSORS = (
    *("sensor", "sensor_name", "sensor_id", "sensorid", "series", "tag", "tag_name", "tagname", "signal", "channel"),
    *("point", "metric", "variable", "device", "device_id", "name", "id"),
)
"""Usual names of its column of sensors, the likeliest first."""
_SURE = 3
"""The first three names in `_SENSORS` always mean the column of sensors. One table may have two of the other names."""
_VALUES = ("value", "val", "reading", "measurement", "_value", "v")
"""Usual names of its column of values, the likeliest first."""
_RESULT = ("quality", "bound")
"""Columns that tell a table of Tsunagi's results, which has estimates among the readings."""


class TableError(ValueError):
    """A table cannot be used; the message names file, line or row, column, what was found and what was expected."""


class TableLayout(NamedTuple):
    """The columns of a table that count, each by its place; -1 = the table has none.

    Attributes:
        time: the column of times.
        sensor, value: of a long table: the columns of sensors' names and of values. Both are -1 of a wide one.
        quality, query: of a table of results: how a value is known, and which query the row is of.
    """

    time: int
    sensor: int = -1
    value: int = -1
    quality: int = -1
    query: int = -1

    @property
    def long(self) -> bool:
        """Whether a row is a reading. If not, each column but that of times is a sensor."""
        return self.sensor >= 0


def find_layout(names: Sequence[str], form: TableSettings, where: str) -> TableLayout:
    """Return which columns of a table count.

    Args:
        names: its columns.
        form: which columns the user has named.
        where: the place of the header, for messages.

    Raises:
        TableError: a column that the user has named is not there, a long table lacks one, or two could be meant.
    """
    for key in ("time", "sensor", "value"):
        wanted = getattr(form, key)
        if wanted and wanted not in names:
            raise TableError(f"{where}: found no column {wanted!r}, which [source.table] {key} names; {_named(names)}")
    low = [name.strip().lower() for name in names]
    sensors = [low.index(name) for name in _SENSORS if name in low]
    time = _place(names, form.time, [low.index(name) for name in _TIMES if name in low])
    sensor = _place(names, form.sensor, sensors)
    value = _place(names, form.value, [low.index(name) for name in _VALUES if name in low])
    if not (form.sensor or form.value) and -1 in (time, sensor, value):
        clocks = [place for place, name in enumerate(names) if name == form.time or (not form.time and is_time(name))]
        return TableLayout(clocks[0] if clocks else -1)
    for key, place in (("time", time), ("sensor", sensor), ("value", value)):
        if place < 0:
            raise TableError(f"{where}: found no column of a usual name for {key}; {_named(names)}: name it {_BY}")
    unsure = not form.sensor and low[sensor] not in _SENSORS[:_SURE] and len(sensors) > 1
    if unsure:
        both = " and ".join(repr(names[place]) for place in sensors[:2])
        raise TableError(f"{where}: found {both}, expected one column of sensors: name it {_BY}")
    if len({time, sensor, value}) < 3:
        raise TableError(f"{where}: found one column for two of time, sensor and value, expected three columns")
    for place in (time, sensor, value):
        if names.count(names[place]) > 1:
            raise TableError(f"{where}: found the column {names[place]!r} twice, expected it once")
    if all(name in low for name in _RESULT):
        return TableLayout(time, sensor, value, low.index("quality"), low.index("query") if "query" in low else -1)
    return TableLayout(time, sensor, value)


_BY = "in [source.table], or by --table KEY=COLUMN"
"""How a user names a column, for messages."""


def _place(names: Sequence[str], wanted: str, usual: Sequence[int]) -> int:
    if wanted:
        return list(names).index(wanted)
    return usual[0] if usual else -1


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"the columns are {', '.join(repr(name) for name in names[:8])}{more}"
