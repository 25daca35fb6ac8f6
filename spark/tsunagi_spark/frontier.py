"""The frontier: the step up to which the results of a group are complete.

A slot emits every step once and in order, whether or not its edges are alive. So a step of a group is complete when
every slot that holds sensors of the group has delivered that step or a later one; nobody guesses a watermark. A slot
that delivers nothing is waited for during a set time, and then left behind (docs/explanation/psort.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tsunagi_spark.layout import Flags, Ints

NEVER = -(2**61)
"""Stands for the step before the first one: it is smaller than every real step."""


class SlotMark(NamedTuple):
    """How far one slot has been read.

    Attributes:
        generation: generation of the slot's log; 0 if nothing has been read yet.
        last_offset, last_index: name of the last output.
        step: step of that output.
        epoch: the greatest epoch seen.
        read_to: the next offset of `recovered` to read.
        past: earlier generations of the log; their records are repeats.
        digest: digest of the record before `read_to` (`marks.digest_of`); 0 if it is not known.
        read_us: when the log appended that record, in microseconds; 0 if it is not known.
    """

    generation: int = 0
    last_offset: int = -1
    last_index: int = 0
    step: int = NEVER
    epoch: int = 0
    read_to: int = 0
    past: tuple[int, ...] = ()
    digest: int = 0
    read_us: int = 0

    @staticmethod
    def of(fields: list[Any]) -> SlotMark:
        """Read a mark from JSON; one that an earlier version wrote has no digest."""
        generation, last_offset, last_index, step, epoch, read_to, past, *before = fields
        return SlotMark(generation, last_offset, last_index, step, epoch, read_to, tuple(past), *before)


def frontiers(held: Flags, last_step: Ints, counted: Flags) -> Ints:
    """Return the last complete step of each group.

    Args:
        held: bool[groups, slots], whether the slot holds sensors of the group.
        last_step: int64[slots], the newest step that the slot has delivered; NEVER if none.
        counted: bool[slots], False for a slot that is left behind.

    Returns:
        int64[groups]; NEVER where nothing is complete or the group has no slot. A group whose slots are all left behind
        is complete up to the newest step of any of them.
    """
    waiting = held & counted
    least = np.where(waiting, last_step, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    greatest = np.where(held, last_step, NEVER).max(axis=1, initial=NEVER)
    found: Ints = np.where(waiting.any(axis=1), least, greatest).astype(np.int64)
    return found


@dataclass
class Waiting:
    """Decides which slots are left behind.

    The silence of a slot counts while it owes a step that another slot has delivered. Between two batches at most
    `cap_s` seconds count, so that a time in which nobody delivered (because everything, or this job, was down) is not
    held against one slot.
    """

    wait_s: float
    cap_s: float
    silent_s: dict[int, float] = field(default_factory=dict)

    def elapse(self, seconds: float, last_step: Mapping[int, int]) -> frozenset[int]:
        """Let time pass before a batch.

        Args:
            seconds: seconds since the batch before began.
            last_step: for every slot that holds sensors, the newest step that it has delivered.

        Returns:
            The slots that are no longer waited for, unless this very batch brings a new step of theirs.
        """
        newest = max(last_step.values(), default=NEVER)
        gone = min(max(seconds, 0.0), self.cap_s)
        for slot, step in last_step.items():
            self.silent_s[slot] = self.silent_s.get(slot, 0.0) + gone if step < newest else 0.0
        return frozenset(slot for slot in last_step if self.silent_s[slot] >= self.wait_s)

    def delivered(self, slot: int) -> None:
        """Take note that a slot has delivered a new step."""
        self.silent_s[slot] = 0.0


class CompletedSteps(NamedTuple):
    """Steps that a batch completes, of groups which all complete the same steps.

    Attributes:
        groups: int64[n], ascending.
        step: int64[m], ascending, m > 0.
        appended_us: int64[m], when the last of the step's inputs was appended.
    """

    groups: Ints
    step: Ints
    appended_us: Ints


def appended_at(closed: Sequence[CompletedSteps], groups: int, group: Ints, step: Ints) -> tuple[Ints, Flags]:
    """Return when the inputs were appended of the first closed step of a group that is not before `step`.

    Args:
        groups: number of groups.
        group, step: int64[n], what is asked for; no step is after the last closed step of its group.

    Returns:
        (int64[n], bool[n]: whether this very step was closed, and not a later one). A group without closed steps has 0,
        False.
    """
    number = np.full(groups, -1, dtype=np.int64)
    for place, some in enumerate(closed):
        number[some.groups] = place
    asked = number[group]
    appended_us, exact = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=np.bool_)
    for place in np.flatnonzero(np.bincount(asked + 1, minlength=1)[1:]).tolist():
        which = np.flatnonzero(asked == place)
        some = closed[place]
        at = np.minimum(np.searchsorted(some.step, step[which]), len(some.step) - 1)
        appended_us[which], exact[which] = some.appended_us[at], some.step[at] == step[which]
    return appended_us, exact
