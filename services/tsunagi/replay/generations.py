"""Finds the generations and the quarantined records of a slot's log, which a replay must know from the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord, Ownership
from tsunagi.slot.config import SlotConfig


class Generation(NamedTuple):
    """A generation of a slot's log. It has the outputs of the inputs from `begin` to the `begin` of the next one.

    Attributes:
        at: offset of the Ownership record that began the generation.
        generation: its number.
        begin: offset of its first input.
        blank: whether the generation knows nothing from before `begin`.
    """

    at: int
    generation: int
    begin: int
    blank: bool


def message_of(record: Record) -> LogRecord | None:
    """Return a record of `tuples` as a message; None if nobody may use the record. It then goes to dead-letters."""
    try:
        message = decode(LogRecord, record.value)
    except UnusableError:
        return None
    if forgery(record, message):
        return None
    if message.HasField("settings"):
        try:
            SlotConfig.parse(message.settings.text)
        except ValueError:
            return None
    return message


def begins_term(claim: Ownership, epoch: int) -> bool:
    """Return whether an Ownership record counts while `epoch` is the current epoch."""
    return claim.epoch > epoch if claim.founding.blank else claim.epoch == epoch + 1


def generations(records: Iterable[Record]) -> list[Generation]:
    """Return all generations of a slot's log, in the order in which they were begun."""
    epoch = 0
    found: list[Generation] = []
    for record in records:
        message = message_of(record)
        if message is None or message.WhichOneof("body") != "ownership" or not begins_term(message.ownership, epoch):
            continue
        claim = message.ownership
        epoch = claim.epoch
        if not found or claim.HasField("founding"):
            found.append(Generation(record.offset, claim.generation, claim.founding.begin, claim.founding.blank))
    return found


def quarantined(records: Sequence[Record]) -> dict[int, int]:
    """Return the offset of the Quarantine record of each quarantined offset.

    A Quarantine record counts only if its writer owned the slot at that place in the log, as its epoch shows.
    """
    epoch, serial = 0, 0
    found: dict[int, int] = {}
    for record in records:
        message = message_of(record)
        body = None if message is None else message.WhichOneof("body")
        if message is None or body == "batch":
            continue
        if body == "ownership":
            if begins_term(message.ownership, epoch):
                epoch, serial = message.ownership.epoch, message.serial
        elif getattr(message, str(body)).epoch == epoch and (message.serial > serial or not serial):
            serial = message.serial
            if body == "quarantine":
                found.setdefault(message.quarantine.offset, record.offset)
    return found
