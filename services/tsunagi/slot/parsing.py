"""Parses and checks the records of `tuples` before a slot processes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from operator import eq

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.plain import PlainBatches, plain_batches

LEAST = 16
"""Fewer records are parsed one by one. Their columns would cost as much."""

Parsed = tuple[LogRecord | None, str, str]
"""(message, "", name of its body's field), or for an unusable record (None, reason, detail)."""

ParsedMany = tuple[LogRecord | PlainBatches | None, str, str]
"""What a record was parsed to: the same as `Parsed`, but a batch may stand in the columns of many records' batches."""


def parse(record: Record) -> Parsed:
    """Parse a record of `tuples`, and check its signature and settings."""
    try:
        message = decode(LogRecord, record.value)
    except UnusableError as error:
        return None, error.reason, str(error)
    kind = message.WhichOneof("body") or ""
    if record.signer is not None and (detail := forgery(record, message)):
        return None, "forged", detail
    if kind == "settings":
        try:
            SlotConfig.parse(message.settings.text)
        except ValueError as error:
            return None, "damaged", str(error)
    return message, "", kind


def parse_run(records: Sequence[Record]) -> Iterator[tuple[int, ParsedMany]]:
    """Yield (how many records, what they were parsed to) for successive records, in order.

    More than one record go together only as `PlainBatches`.
    """
    looks = [(len(record.value or b""), record.key) for record in records]
    at = singly = 0  # records before `singly` are parsed one by one
    while at < len(records):
        parsed = parse(records[at])
        message, _, kind = parsed
        if at >= singly and message is not None and kind == "batch":
            upto = at + sum(1 for _ in takewhile(partial(eq, looks[at]), islice(looks, at, None)))
            plain = plain_batches(records[at:upto], message) if upto - at >= LEAST else None
            if plain is not None and len(plain) >= LEAST:
                yield len(plain), (plain, "", kind)
                at += len(plain)
                continue
            singly = at + LEAST  # to look at each of many records in vain would cost more than to parse them
        yield 1, parsed
        at += 1


def alone(record: Record, parsed: ParsedMany) -> Parsed:
    """Return what one record was parsed to."""
    message, reason, kind = parsed
    return (message.message(record.offset) if isinstance(message, PlainBatches) else message), reason, kind
