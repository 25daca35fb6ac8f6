"""The merge of cut groups: puts the parts of several cores together, in the order of (step, group, sensor).

Every core that works on sensors of a group finds the same steps of it complete, since all know how far each slot was
read. So the parts of a batch fit together, and only their rows have to be merged (P-SORT, section 3.3.3). One core
hands on every block of a group, the others only those in which they have rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import U32, pack_arrays, unpack_arrays
from tsunagi_spark.blocks import RecoveredRows
from tsunagi_spark.kway import block_order, merge_runs
from tsunagi_spark.layout import Ints, Layout
from tsunagi_spark.merge import Ordered, begins, starts
from tsunagi_spark.queries import QueryAnswers
from tsunagi_spark.windows import PANE, CompleteWindows, window_order

_BLOCKS = ("group", "step", "appended_us", "start")
"""The columns of a part that have an element for each block."""
_ROWS = tuple(name for name in RecoveredRows.NAMES if name != "step")
"""The columns of a part that have an element for each row; a row's step is that of its block."""
_ALIGN = 8
"""Columns begin at multiples of this many bytes, so that numpy can use them without a copy."""


def dump_part(part: Ordered) -> bytes:
    """Return what one core has of cut groups as bytes: a head that names the columns, then the columns unchanged.

    Everything waits for the merge core, so what it can compute cheaply is left out: the step of a row is that of its
    block, and q3 is q2 / q1.
    """
    arrays: dict[str, npt.NDArray[Any]] = {name: getattr(part, name) for name in _BLOCKS}
    arrays |= {name: getattr(part.rows, name) for name in _ROWS}
    arrays |= {"q1": part.counted.q1.astype(U32), "q2": part.counted.q2.astype(U32)}
    wide_first = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that each is aligned
    head = json.dumps([(name, column.dtype.str, len(column)) for name, column in wide_first]).encode()
    head += b" " * (-len(head) % _ALIGN)
    columns = (np.ascontiguousarray(column).data for _, column in wide_first)
    return b"".join((len(head).to_bytes(_ALIGN, "little"), head, *columns))


def load_part(data: bytes | memoryview) -> Ordered:
    """Read what `dump_part` wrote; columns are views, and of the answers only q1 and q2 are there, uint32[n]."""
    place = _ALIGN + int.from_bytes(data[:_ALIGN], "little")
    arrays: dict[str, Any] = {}
    for name, kind, count in json.loads(bytes(data[_ALIGN:place])):
        arrays[name] = np.frombuffer(data, dtype=kind, count=count, offset=place)
        place += arrays[name].nbytes
    step = np.repeat(arrays["step"], np.diff(arrays["start"]))
    return Ordered(
        **{name: arrays[name] for name in _BLOCKS},
        rows=RecoveredRows(step=step, **{name: arrays[name] for name in _ROWS}),
        counted=QueryAnswers(arrays["q1"], arrays["q2"], np.zeros(0)),
    )


def dump_windows(windows: CompleteWindows) -> bytes:
    """Return what one core has of the cut groups' aggregates as bytes."""
    return pack_arrays({"sums": windows.sums.view(np.uint8), "appended_us": windows.appended_us})


def load_windows(data: bytes) -> CompleteWindows:
    """Read what `dump_windows` wrote."""
    arrays: dict[str, Any] = dict(unpack_arrays(data))
    return CompleteWindows(arrays["sums"].view(PANE), arrays["appended_us"])


def merge_windows(parts: Iterable[CompleteWindows], layout: Layout) -> CompleteWindows:
    """Return the windows of one batch together, in order."""
    found = list(parts)
    sums = np.concatenate([part.sums for part in found])
    order = window_order(sums, layout)
    return CompleteWindows(sums[order], np.concatenate([part.appended_us for part in found])[order])


def merge_parts(parts: Iterable[Ordered], layout: Layout) -> Ordered:
    """Return the parts of one batch together; each is in order already, as `load_part` returns it.

    Raises:
        ValueError: for some group no part has every block.
    """
    found = list(parts)
    group, step, appended_us = _blocks(found, layout)
    runs = [{**part.rows.columns(), "q1": part.counted.q1, "q2": part.counted.q2} for part in found]
    minor = "sensor"
    if (np.diff(layout.group_of) < 0).any():  # the sensors of a group are not neighbours, so they need a rank
        minor = "rank"
        rank = np.empty(len(layout), dtype=np.int32)
        rank[np.lexsort((np.arange(len(layout)), layout.group_of))] = np.arange(len(layout))
        for run in runs:
            run[minor] = rank[run["sensor"]]
    merged = merge_runs(runs, major="step", minor=minor)
    rows = RecoveredRows(**{name: merged[name] for name in RecoveredRows.NAMES})
    counted = QueryAnswers(merged["q1"], merged["q2"], merged["q2"] / merged["q1"])
    return Ordered(group, step, appended_us, starts(rows, begins(rows, layout), layout, group, step), rows, counted)


def _blocks(parts: list[Ordered], layout: Layout) -> tuple[Ints, Ints, Ints]:
    """Return (group, step, appended_us) of all blocks once, in the order of (step, group).

    For each group one part has every block, and the others have some of them.
    """
    whole = np.argmax([np.bincount(part.group, minlength=len(layout.groups)) for part in parts], axis=0)
    taken = [whole[part.group] == number for number, part in enumerate(parts)]
    group, step, appended_us = (
        np.concatenate([getattr(part, name)[which] for part, which in zip(parts, taken, strict=True)])
        for name in ("group", "step", "appended_us")
    )
    order = block_order(step, group)
    return group[order], step[order], appended_us[order]
