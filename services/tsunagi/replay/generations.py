"""What must be known of a slot's log before it is computed again: its generations, and what was quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tsunagi.runtime.auth import forgery
from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import LogRecord, Ownership
from tsunagi.slot.config import SlotConfig


class Generation(NamedTuple):
    """A generation of a slot's log: its outputs are those of inputs from `begin` on, until the next one's begin.

    Attributes:
        at: offset of the Ownership that began it.
        blank: nothing from before `begin` is known in it.
    """

    at: int
    generation: int
    begin: int
    blank: bool


def message_of(record: Record) -> LogRecord | None:
    """Return a record of `tuples` as a message; None = nobody may use it, and it goes to dead-letters."""
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
    """Return whether an Ownership counts where this epoch is the current one."""
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
    """Return quarantined offset -> where its Quarantine stands, by the rule of epochs."""
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
