"""Messages as nobody would write them: every field of every message, at random and at the ends of its type."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tsunagi.runtime import log as topics
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import (
    Ack,
    Context,
    DeadLetter,
    Heartbeat,
    Late,
    LogRecord,
    Plan,
    Recovered,
    ResultBlock,
    tsunagi_pb2,
)

KINDS: dict[str, type[Message]] = {
    topics.TUPLES: LogRecord,
    topics.RECOVERED: Recovered,
    topics.RESULTS: ResultBlock,
    topics.ACKS: Ack,
    topics.CONTEXTS: Context,
    topics.HEARTBEATS: Heartbeat,
    topics.PLAN: Plan,
    topics.LATE: Late,
    topics.DEAD_LETTERS: DeadLetter,
}
"""The message that the records of each topic hold."""

BITS = {
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_FIXED64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_ENUM: (0, 3),
}
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.9, 1e-320, 1e100, -1e200, 1.7e308, math.inf, -math.inf, math.nan)
TEXTS = ("", "x", "edge-1", "gw-1", "spark", "model", "inf", "\0", "é" * 40, "{}", "[]", "null", "a" * 64, "y" * 3000)


def value_of(draw: random.Random, field: FieldDescriptor, depth: int = 0) -> Any:
    """Return something for a field, be it one of several."""
    if field.type in BITS:
        low, high = BITS[field.type]
        if draw.random() < 0.5:
            return draw.choice([number for number in (low, high, high - 1, high // 2, 0, 1, 2, -1) if low <= number])
        return draw.randrange(low, high + 1) >> draw.randrange(64)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return draw.random() < 0.5
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return draw.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        count = draw.choice((0, 1, 2, 5, 12))
        kind = draw.randrange(3)
        if kind == 0:
            return struct.pack(f"<{count}I", *(draw.randrange(1 << draw.choice((1, 4, 32))) for _ in range(count)))
        return struct.pack(f"<{count}d", *draw.choices(FLOATS, k=count)) if kind == 1 else draw.randbytes(count)
    assert field.message_type is not None
    return message_of(draw, getattr(tsunagi_pb2, field.message_type.name), depth + 1)


def set_field(draw: random.Random, message: Message, field: Any, depth: int = 0) -> None:
    """Give a field of a message another value."""
    name = field.name
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        chosen, key = getattr(message, name), draw.choice(TEXTS)
        of = entry.fields_by_name["value"]
        if of.message_type is None:
            chosen[key] = value_of(draw, of)
        else:
            chosen[key].CopyFrom(value_of(draw, of, depth))
    elif field.is_repeated:
        if draw.random() < 0.5:
            message.ClearField(name)
        getattr(message, name).extend(value_of(draw, field, depth) for _ in range(draw.randrange(4)))
    elif entry is not None:
        getattr(message, name).CopyFrom(value_of(draw, field, depth))
    else:
        setattr(message, name, value_of(draw, field))


def message_of(draw: random.Random, kind: type[Message], depth: int = 0) -> Message:
    """Return a message of which each field has something, nothing, or one of its type's ends."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth < 3 and draw.random() < 0.6 and field.name != "version":
            set_field(draw, message, field, depth)
    return message


def mutated(draw: random.Random, message: Message) -> None:
    """Change one field, at any depth of what is there."""
    while True:
        parts: list[Message] = []
        for field, found in message.ListFields():
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                parts += found if isinstance(found, Sequence) else [found]
        if parts and draw.random() < 0.8:
            message = draw.choice(parts)
            continue
        set_field(draw, message, draw.choice(message.DESCRIPTOR.fields))
        return


def spoiled(draw: random.Random, value: bytes) -> bytes:
    """Change some bytes: what comes out may still be a message."""
    found = bytearray(value)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(found) + 1)
        found[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
    return bytes(found)


def record_like(draw: random.Random, topic: str, there: list[Record]) -> tuple[bytes | None, bytes | None]:
    """Return (key, value) of a record that somebody might append to a topic in which these stand."""
    like = draw.choice(there) if there else None
    key = like.key if like is not None and draw.random() < 0.9 else draw.choice((None, b"", b"!x", draw.randbytes(24)))
    if like is None or like.value is None or draw.random() < 0.2:
        message = message_of(draw, KINDS[topic])
    elif draw.random() < 0.15:
        return key, spoiled(draw, like.value)
    else:
        message = KINDS[topic]()
        with contextlib.suppress(DecodeError):
            message.ParseFromString(like.value)
        for _ in range(draw.randrange(1, 4)):
            mutated(draw, message)
    return key, message.SerializeToString()
