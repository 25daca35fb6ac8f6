"""Which record of `plan` is in force: one rule, for whoever reads it (edges, workers, scaler, Spark, tools).

Of the records of one kind (and slot) the one with the greatest serial is in force; of two with the same, the first in
the log. So a record that is appended again changes nothing, in whatever order a process comes to know of them.
Records of a release before had no serial: among themselves the last in the log is in force, and any with a serial wins
over them.
"""

from __future__ import annotations

from typing import NamedTuple

from tsunagi.runtime.messages import Plan

MOST = 1 << 62
"""No writer comes to a greater serial by counting; a record that claims one would be in force for ever."""

MOVE = "move"
"""The reason of an assignment whose owner is to take the slot over although its present one lives."""


class Word(NamedTuple):
    """What a record of `plan` speaks of, and what decides whether it is in force.

    Attributes:
        key: the record's key: "placement", "assignment/SLOT", "helpers/SLOT", "target/SLOT", "recovery", "workers",
            "system/ID" (of several systems the first in the log is the one: tsunagi.system.identity).
        epoch: of the slot's owner that writes it; a newer one's word wins. 0 for whoever owns no slot.
    """

    key: str
    epoch: int
    serial: int


def word_of(plan: Plan) -> Word | None:
    """Return what a record speaks of; None = it says nothing that this release knows."""
    match plan.WhichOneof("body"):
        case "placement":
            return Word("placement", 0, plan.placement.serial)
        case "assignment":
            return Word(f"assignment/{plan.assignment.slot}", 0, plan.assignment.serial)
        case "helpers":
            return Word(f"helpers/{plan.helpers.slot}", plan.helpers.epoch, plan.serial)
        case "target":
            return Word(f"target/{plan.target.slot}", 0, plan.serial)
        case "recovery" | "workers" as key:
            return Word(key, 0, plan.serial)
        case "system":
            return Word(f"system/{plan.system.id}", 0, plan.serial)
        case _:
            return None


class Words:
    """The records of `plan` that are in force, as far as it was read."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[int, int, int], int]] = {}  # key -> (the greatest rank, its offset)
        self._given: dict[str, int] = {}

    def take(self, plan: Plan, offset: int) -> bool:
        """Take in a record that stands at this offset; return whether it is in force now, and was not before."""
        word = word_of(plan)
        if word is None or word.serial > MOST:
            return False
        rank = word.epoch, word.serial, -offset if word.serial else offset
        if word.key in self._found and rank <= self._found[word.key][0]:
            return False
        self._found[word.key] = rank, offset
        return True

    def in_force(self, key: str) -> tuple[int, int]:
        """Return (serial, offset) of the record in force, (0, -1) = there is none."""
        (_, serial, _), offset = self._found.get(key, ((0, 0, 0), -1))
        return serial, offset

    def next(self, key: str) -> int:
        """Return a serial for a record to be written: greater than any read, and than those handed out before."""
        self._given[key] = max(self.in_force(key)[0], self._given.get(key, 0)) + 1
        return self._given[key]
