"""Encodes result blocks from columns, without making a message for each block.

If groups are small, the cost of a block determines the time of the job: to fill a message of sixteen fields and
serialise it takes longer than to order its few rows. So protobuf writes the head alone; the columns follow unchanged,
behind their tags and lengths. The bytes are those of `ResultBlock.SerializeToString(deterministic=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tsunagi.runtime.columns import F64, U8, U32
from tsunagi.runtime.messages import VERSION, ResultBlock
from tsunagi.runtime.wire import rows_of_bytes, tag
from tsunagi_spark.layout import Layout
from tsunagi_spark.merge import QUERY, Ordered

_KINDS: dict[str, np.dtype[Any]] = {
    "sensor": U32,
    "mean": F64,
    "sd": F64,
    "quality": U8,
    "bound": F64,
    "q1": U32,
    "q2": U32,
    "q3": F64,
}
"""The columns in the order of their fields, which stand between the fields of the head and those of the part."""


class Encoded(NamedTuple):
    """An encoded block; `group` is the number of its group."""

    group: int
    key: bytes
    value: bytes


def encode_blocks(ordered: Ordered, layout: Layout, slide_us: int, part: int = 0) -> Iterator[Encoded]:
    """Yield the blocks in the order in which they are sent.

    Args:
        part: which part of its group each block is, if nothing is merged; 0 means the whole.
    """
    parts = layout.cores if part else 0
    tail = ResultBlock(part=part, parts=parts).SerializeToString(deterministic=True)
    suffix = f"/{part}of{parts}" if part else ""
    heads = {
        group: ResultBlock(version=VERSION, query=QUERY, group=layout.groups[group])
        for group in np.unique(ordered.group).tolist()
    }
    names = zip(ordered.group.tolist(), ordered.step.tolist(), ordered.appended_us.tolist(), strict=True)
    for (group, step, appended_us), body in zip(names, _bodies(ordered), strict=True):
        head = heads[group]
        head.step, head.event_time_us, head.appended_us = step, step * slide_us, appended_us
        key = f"{QUERY}/{head.group}/{step}{suffix}".encode()
        yield Encoded(group, key, head.SerializeToString(deterministic=True) + body + tail)


def _bodies(ordered: Ordered) -> list[bytes]:
    """Return the columns of each block as bytes; blocks of equal length are written together, as a matrix of bytes."""
    arrays = ordered.rows.columns() | ordered.counted._asdict()
    columns = [np.asarray(arrays[name], dtype=kind) for name, kind in _KINDS.items()]
    lengths = np.diff(ordered.start)
    bodies = [b""] * len(lengths)
    for rows in np.unique(lengths[lengths > 0]).tolist():
        which = np.flatnonzero(lengths == rows)
        place = ordered.start[which][:, None] + np.arange(rows)
        pieces: list[bytes | npt.NDArray[np.uint8]] = []
        for head, column in zip(_tags(rows), columns, strict=True):
            pieces += [head, column[place].view(U8)]
        for block, data in zip(which.tolist(), rows_of_bytes(pieces, len(which)), strict=True):
            bodies[block] = data
    return bodies


@lru_cache(maxsize=1024)
def _tags(rows: int) -> tuple[bytes, ...]:
    """Return the bytes before each column of `rows` rows: field number with wire type 2, and length in bytes."""
    return tuple(tag(ResultBlock, name, rows * kind.itemsize) for name, kind in _KINDS.items())
