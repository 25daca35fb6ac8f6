"""Several outputs in one record of `recovered`, without lock-step. It spares most of the bytes and work of an output.

Each output keeps its own name. The record has the name of the last one. So the last record says how far a slot's
outputs go, as it does where each output has a record of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.door import UnusableError
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.ranges import I64, INT64_MAX, MAX_TIME_US

NUMBERS = {"offset": INT64_MAX - 1, "step": MAX_TIME_US, "event_time_us": MAX_TIME_US, "appended_us": MAX_TIME_US}
"""The columns of a run that have a number for each output, and the greatest number in each."""

Columns = list[npt.NDArray[np.int64]]


def outputs_of(message: Recovered) -> Sequence[Recovered]:
    """Return the outputs of a record in the order of their names, each as it would stand in a record of its own.

    Raises:
        UnusableError: the columns of a run do not fit together.
    """
    if not message.HasField("run"):
        return (message,)
    run = message.run
    columns = [np.frombuffer(getattr(run, name), dtype=I64) for name in NUMBERS]
    fault = _fault(message, columns)
    if fault:
        raise UnusableError("damaged", f"run: {fault}")
    rows = len(run.mean) // 8 // len(columns[0])
    zeros, measured = bytes(8 * rows), bytes(rows)
    return [
        Recovered(
            version=message.version,
            slot=message.slot,
            generation=message.generation,
            epoch=message.epoch,
            offset=offset,
            step=step,
            event_time_us=event_time_us,
            appended_us=appended_us,
            sensor=run.sensor[4 * rows * place : 4 * rows * (place + 1)],
            mean=run.mean[8 * rows * place : 8 * rows * (place + 1)],
            sd=zeros,
            quality=measured,
            bound=zeros,
        )
        for place, (offset, step, event_time_us, appended_us) in enumerate(np.array(columns).T.tolist())
    ]


def _fault(message: Recovered, columns: Columns) -> str:
    """Return what does not fit; "" = all does. The door has seen that columns of the same kind are equally long."""
    count, rows = len(columns[0]), len(message.run.mean) // 8
    if not count or not rows or rows % count:
        return f"found {rows} rows for {count} outputs, expected as many for each"
    for column, (name, most) in zip(columns, NUMBERS.items(), strict=True):
        if column.min() < 0 or column.max() > most:
            return f"{name}: found {column.min()} to {column.max()}, expected 0 to {most}"
        if column[-1] != getattr(message, name):
            return f"{name}: found {column[-1]} as the last one, expected the record's, {getattr(message, name)}"
    if (columns[0][1:] <= columns[0][:-1]).any():
        return "offset: found one that is not behind the one before"
    if message.index or message.query or message.sensor:
        return "found columns or an index beside it, expected none"
    return ""
