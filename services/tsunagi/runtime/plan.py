"""Decides which records of `plan` are in force, by one rule for all readers (edges, workers, scaler, Spark, tools).

Of the records of one kind (and slot), the one with the greatest serial number is in force. If two have the same number,
it is the first of them in the log. So a record that is appended again changes nothing, in whatever order a process
reads them. Records of early releases have no serial number: the last one of them in the log is in force, unless there
is any record with a number.
"""

from __future__ import annotations

from typing import NamedTuple

from tsunagi.runtime.messages import Act, Plan

MOST = 1 << 62
"""Greatest serial number that counts. No writer reaches it by counting, and a record with a greater one would stay in
force for ever."""

MOVE = "move"
"""The reason in an assignment whose owner has to take the slot over although the present owner lives."""


class Word(NamedTuple):
    """The subject of a record of `plan`, and the numbers that decide whether the record is in force.

    Attributes:
        key: the subject, which is the record's key: "placement", "assignment/SLOT", "helpers/SLOT", "target/SLOT",
            "recovery", "workers", "model", "table", "query/NAME", "move/SLOT", "act/TIME/USER" or "system/ID" (of
            several systems the first in the log counts: tsunagi.system.identity).
        epoch: the epoch of the slot's owner that writes the record, or 0 if another process does. A greater one wins.
        serial: the serial number of the record; 0 if it has none.
    """

    key: str
    epoch: int
    serial: int


def act_key(act: Act) -> str:
    """Return the key of the record that says who asked for what; each has one of its own."""
    return f"act/{act.at_us}/{act.by}"


def word_of(plan: Plan) -> Word | None:
    """Return the subject and the numbers of a record; None if this release does not know its kind."""
    match plan.WhichOneof("body"):
        case "placement":
            return Word("placement", 0, plan.placement.serial)
        case "assignment":
            return Word(f"assignment/{plan.assignment.slot}", 0, plan.assignment.serial)
        case "helpers":
            return Word(f"helpers/{plan.helpers.slot}", plan.helpers.epoch, plan.serial)
        case "target":
            return Word(f"target/{plan.target.slot}", 0, plan.serial)
        case "recovery" | "workers" | "model" | "table" as key:
            return Word(key, 0, plan.serial)
        case "query":
            return Word(f"query/{plan.query.name}", 0, plan.serial)
        case "system":
            return Word(f"system/{plan.system.id}", 0, plan.serial)
        case "move":
            return Word(f"move/{plan.move.slot}", 0, plan.serial)
        case "act":
            return Word(act_key(plan.act), 0, plan.serial)
        case _:
            return None


class Words:
    """Keeps track of which records of `plan` are in force, among those that were read."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int, int]] = {}  # key -> the greatest rank: epoch, serial, +- its offset
        self._given: dict[str, int] = {}

    def take(self, plan: Plan, offset: int) -> bool:
        """Take in the record at an offset; return whether it comes into force with this call."""
        word = word_of(plan)
        if word is None or word.serial > MOST:
            return False
        rank = word.epoch, word.serial, -offset if word.serial else offset
        if word.key in self._found and rank <= self._found[word.key]:
            return False
        self._found[word.key] = rank
        return True

    def in_force(self, key: str) -> tuple[int, int]:
        """Return (serial, offset) of the record in force; (0, -1) if there is none."""
        if key not in self._found:
            return 0, -1
        _, serial, offset = self._found[key]
        return serial, abs(offset)

    def next(self, key: str) -> int:
        """Return a serial number for a new record: greater than all that were read or returned before."""
        self._given[key] = max(self.in_force(key)[0], self._given.get(key, 0)) + 1
        return self._given[key]
