"""Compares `recovered` with `results`: every row of a step must be in the blocks of the groups, unchanged.

It does not matter here which sensor belongs to which group: the rows of all slots are compared with those of all
groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tsunagi.audit.evidence import AuditedBlock, AuditedOutput
from tsunagi.audit.rules import COLUMNS, accuse_altered, identical
from tsunagi.audit.tally import Tally

BEHIND = 2
"""A step is compared when all slots and groups are this many steps past it. By then every group has had a block."""

MOST = 20_000
"""How many steps may wait for results, since Spark may be away for long. An older step is given up as a finding."""

Frozen = dict[str, npt.NDArray[np.generic]]


@dataclass(slots=True)
class _Step:
    outputs: dict[int, AuditedOutput] = field(default_factory=dict)
    blocks: dict[tuple[str, str], AuditedBlock] = field(default_factory=dict)


class RowBook:
    """Compares the rows of both topics, step by step.

    Args:
        slots: the number of slots.
        tally: receives the findings.
        most: how many steps may wait for results, as `MOST`.

    Attributes:
        compared: how many steps were compared.
        rows: how many rows these steps have in `recovered`.
    """

    def __init__(self, slots: int, tally: Tally, most: int = MOST) -> None:
        self._slots = slots
        self._tally = tally
        self._most = most
        self._base: int | None = None
        self._steps: dict[int, _Step] = {}
        self._short: dict[int, set[int]] = {}
        self._left: dict[int, set[int]] = {}
        self._next = 0
        self.compared = 0
        self.rows = 0

    def begin(self, step: int) -> None:
        """Begin to judge, from this step on."""
        self._base = self._next = step
        self._steps = {number: part for number, part in self._steps.items() if number >= step}

    def take_output(self, output: AuditedOutput) -> None:
        """Take in the first output of a slot for a step."""
        if self._base is None or output.step >= self._next:
            self._steps.setdefault(output.step, _Step()).outputs[output.slot] = output

    def take_block(self, block: AuditedBlock) -> None:
        """Take in the first block of a group for a step."""
        if self._base is None or block.step >= self._next:
            self._steps.setdefault(block.step, _Step()).blocks[block.query, block.group] = block

    def left_behind(self, step: int, sensors: npt.NDArray[np.uint32]) -> None:
        """Note that rows of a step went to `late`, because their slot had been left behind (reason "frontier")."""
        ids = set(sensors.tolist())
        self._left.setdefault(step, set()).update(ids)
        self._settle(step)

    def advance(self, slot_steps: Mapping[int, int], group_steps: Mapping[tuple[str, str], int]) -> None:
        """Compare the steps that both topics have passed.

        Args:
            slot_steps: the newest step in `recovered` of each slot.
            group_steps: the newest step in `results` of each (query, group).
        """
        if self._base is None or len(slot_steps) < self._slots or not group_steps:
            return
        through = min(*slot_steps.values(), *group_steps.values()) - BEHIND
        while self._next <= through:
            self._compare(self._next, self._steps.pop(self._next, _Step()))
            self._next += 1
        for step in [number for number in self._left if number < self._next - self._most]:
            del self._left[step]
        if len(self._steps) > self._most:
            first = min(self._steps)
            self._tally.amiss("not compared", f"results: step {first} did not come while {self._most} others did")
            del self._steps[first]
            self._next = max(self._next, first + 1)

    def behind(self, step: int) -> int:
        """Return how many steps up to this one are not compared yet, or have rows that are missing in `results`."""
        waiting = 0 if self._base is None else max(0, step - BEHIND - self._next + 1)
        return waiting + sum(number <= step for number in self._short)

    def expire(self, step: int) -> None:
        """Count the rows of steps up to this one as lost that are missing in `results`."""
        for number in [short for short in self._short if short <= step]:
            missing = self._short.pop(number)
            self._tally.lose(
                f"results: step {number}: {len(missing)} rows of recovered are missing, first sensor {min(missing)}",
                len(missing),
            )

    def _settle(self, step: int) -> None:
        if step in self._short:
            self._short[step] -= self._left.get(step, set())
            if not self._short[step]:
                del self._short[step]

    def _compare(self, number: int, step: _Step) -> None:
        self.compared += 1
        sent = _lay(list(step.outputs.values()))
        came = _lay(list(step.blocks.values()))
        self.rows += len(sent["sensor"])
        both, left, right = np.intersect1d(sent["sensor"], came["sensor"], assume_unique=False, return_indices=True)
        missing = np.setdiff1d(sent["sensor"], both)
        if len(missing):
            self._short[number] = {int(sensor) for sensor in missing}
            self._settle(number)
        invented = np.setdiff1d(came["sensor"], both)
        if len(invented):
            self._tally.amiss(
                "invented",
                f"results: step {number}: sensor {invented[0]} has a row, but none in recovered",
                len(invented),
            )
        same = np.logical_and.reduce([identical(sent[name][left], came[name][right]) for name in COLUMNS])
        if not same.all():
            accuse_altered(number, both[~same], self._tally)
        # A row that is twice in one block was counted with that block.
        twice = sum(len(np.unique(block.sensor)) for block in step.blocks.values()) - len(np.unique(came["sensor"]))
        if twice:
            self._tally.double(f"results: step {number}: {twice} rows stand in two blocks", twice)


def _lay(parts: list[AuditedOutput] | list[AuditedBlock]) -> Frozen:
    names = ("sensor", *COLUMNS)
    if not parts:
        return {name: np.empty(0) for name in names}
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
