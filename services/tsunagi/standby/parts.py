"""Splits a context that is too large for one record into parts, and joins them if all of them stand in a row.

A context is the whole state of a slot at one offset of its log.
"""

from __future__ import annotations

from collections.abc import Iterable

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import Context


def split(value: bytes, size: int) -> list[bytes]:
    """Return the values of the records that make up a serialised context, each with at most `size` bytes of it."""
    if len(value) <= size:
        return [value]
    whole = decode(Context, value)
    pieces = [value[begin : begin + size] for begin in range(0, len(value), size)]
    return [
        Context(
            version=whole.version,
            slot=whole.slot,
            generation=whole.generation,
            epoch=whole.epoch,
            owner=whole.owner,
            offset=whole.offset,
            topic_id=whole.topic_id,
            part=number,
            parts=len(pieces),
            piece=piece,
        ).SerializeToString()
        for number, piece in enumerate(pieces)
    ]


def join(parts: Iterable[Context]) -> Context | None:
    """Return the context that these records make up, in this order; None = they do not make up a whole one."""
    records = list(parts)
    first = records[0] if records else None
    if first is None or first.parts == 0:
        return first
    if first.parts != len(records):  # compared first, since a broken record may claim billions of parts
        return None
    wanted = [(first.epoch, first.owner, first.offset, len(records), number) for number in range(first.parts)]
    if [(item.epoch, item.owner, item.offset, item.parts, item.part) for item in records] != wanted:
        return None
    try:
        whole = decode(Context, b"".join(item.piece for item in records))
    except UnusableError:
        return None
    return whole if (whole.epoch, whole.owner, whole.offset) == wanted[0][:3] else None
