"""Contexts larger than one record should be: written in parts, and taken only if all of them are there in a row."""

from __future__ import annotations

from collections.abc import Iterable

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import Context


def split(value: bytes, size: int) -> list[bytes]:
    """Return the records, each about `size` bytes at most, that make up a serialised context."""
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
    """Return the context that these records, in a row, make up; None = they are no whole one."""
    records = list(parts)
    first = records[0] if records else None
    if first is None or first.parts == 0:
        return first
    if first.parts != len(records):  # first of all: it may say of billions
        return None
    wanted = [(first.epoch, first.owner, first.offset, len(records), number) for number in range(first.parts)]
    if [(item.epoch, item.owner, item.offset, item.parts, item.part) for item in records] != wanted:
        return None
    try:
        whole = decode(Context, b"".join(item.piece for item in records))
    except UnusableError:
        return None
    return whole if (whole.epoch, whole.owner, whole.offset) == wanted[0][:3] else None
