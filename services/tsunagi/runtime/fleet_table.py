"""The sensors table that is in force: it stands in the topic `plan`, and all nodes go by it.

The scaler writes the first one from its file, `tsunagi apply` each further one. In it a sensor keeps its row, and so
its id, for good: a sensor that is removed leaves its row, and a new one comes at the end.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from structlog.stdlib import BoundLogger

from tsunagi.runtime.messages import FleetTable
from tsunagi.runtime.sensors import SensorsError, SensorTable, read_in_force, write_in_force

KEY = "table"
"""The key of the record in `plan`."""
MOST_BYTES = 64 << 20
"""Longest text that a table is read from, in bytes: a short record might be unpacked into one without end."""
_WHERE = Path("the sensors table in `plan`")
"""Stands for the file's name in messages."""


def pack_table(table: SensorTable, *, by: str, from_us: int = 0) -> FleetTable:
    """Return the record that puts a table in force.

    Args:
        by: who asks for it.
        from_us: edges go by it in steps that end after this event time, microseconds; 0 = the fleet's first table.
    """
    return FleetTable(csv=zlib.compress(write_in_force(table), 9), from_us=from_us, by=by)


def unpack_table(record: FleetTable) -> SensorTable:
    """Return the table of a record.

    Raises:
        SensorsError: the record holds none.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(record.csv, MOST_BYTES)
    except zlib.error as error:
        raise SensorsError(f"{_WHERE}: {error}") from None
    if not unpacker.eof:
        raise SensorsError(f"{_WHERE}: found more than {MOST_BYTES} bytes, or a part")
    return read_in_force(text, _WHERE)


def unpack_or_none(record: FleetTable, logger: BoundLogger) -> SensorTable | None:
    """Return the table of a record; None if it holds none, which is logged: what runs goes on with the one it has."""
    try:
        return unpack_table(record)
    except SensorsError as error:
        logger.warning("unusable sensors table", by=record.by, error=str(error))
        return None
