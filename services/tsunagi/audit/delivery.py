"""Lays the results out by step and sensor, as a reader gets them: without repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tsunagi.audit.blocks import BlockBook
from tsunagi.audit.evidence import AuditedBlock, read_blocks
from tsunagi.audit.rules import Mask, is_measured
from tsunagi.audit.tally import Findings
from tsunagi.audit.truth import Truth, World
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.log import Record

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Delivery:
    """The rows of the results by (step, sensor).

    Attributes:
        first_step: the step of row 0.
        present: bool[steps, n], whether there is a row.
        mean, sd, bound, q3: float64[steps, n]; NaN where there is no row.
        quality: uint8[steps, n].
        q1, q2: int64[steps, n].
        blocks: the blocks of each group in the order of delivery, without repeats.
    """

    first_step: int
    present: Mask
    mean: Floats
    sd: Floats
    bound: Floats
    quality: npt.NDArray[np.uint8]
    q1: Counts
    q2: Counts
    q3: Floats
    blocks: dict[str, list[AuditedBlock]] = field(default_factory=dict)

    @classmethod
    def empty(cls, first_step: int, steps: int, sensors: int) -> Delivery:
        """Make a delivery without rows."""
        shape = (steps, sensors)
        mean, sd, bound, q3 = (np.full(shape, np.nan) for _ in range(4))
        q1, q2 = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        return cls(
            first_step, np.zeros(shape, dtype=bool), mean, sd, bound, np.zeros(shape, dtype=np.uint8), q1, q2, q3
        )

    def row(self, step: int) -> int | None:
        """Return the row of a step; None if the step was neither delivered nor had to be."""
        row = step - self.first_step
        return row if 0 <= row < len(self.present) else None

    def rows(self, truth: Truth) -> slice:
        """Return the rows of the CSV's steps."""
        first = truth.first_step - self.first_step
        return slice(first, first + len(truth.values))

    @property
    def measured(self) -> Mask:
        """bool[steps, n]: whether there is a row that is tagged as measured."""
        return np.asarray(self.present & is_measured(self.quality))

    @property
    def estimated(self) -> Mask:
        """bool[steps, n]: whether there is a row whose value was estimated."""
        return self.present & ~self.measured

    def steps(self, group: str) -> list[int]:
        """Return the steps of a group, in the order of delivery."""
        return [block.step for block in self.blocks.get(group, [])]


def deliver(results: Mapping[int, Sequence[Record]], world: World, findings: Findings) -> Delivery:
    """Lay the rows of the results out, without repeats.

    This also checks that blocks are in order (e) and that each row comes once (c).
    """
    blocks: dict[str, list[AuditedBlock]] = {}
    book = BlockBook(findings, step_us=world.steps.slide_us, whole=True)
    for partition, records in sorted(results.items()):
        for block in read_blocks(partition, records):
            if book.take(block):
                blocks.setdefault(block.group, []).append(block)
    steps = [block.step for taken in blocks.values() for block in taken]
    first = min([world.truth.first_step, *steps])
    last = max([world.truth.last_step, *steps])
    delivery = Delivery.empty(first, last - first + 1, len(world.table))
    delivery.blocks = blocks
    for group, taken in blocks.items():
        findings.inversions[group] += 0  # so that the report names every group
        for block in taken:
            _lay(block, delivery, world, findings)
    return delivery


def _lay(block: AuditedBlock, delivery: Delivery, world: World, findings: Findings) -> None:
    ids = block.sensor.astype(np.intp)
    if world.truth.first_step <= block.step <= world.truth.last_step:
        findings.rows_out += len(ids)
    else:
        findings.rows_outside += len(ids)
    unknown = [sensor for sensor in ids.tolist() if sensor >= len(world.table) or world.group(sensor) != block.group]
    if unknown:
        findings.amiss("groups", f"{block.place}: sensor {unknown[0]} is not of this group", len(unknown))
        return
    row = block.step - delivery.first_step
    again = int(delivery.present[row, np.unique(ids)].sum())
    if again:
        findings.double(f"results: step {block.step}: {again} rows stand in two blocks", again)
    delivery.present[row, ids] = True
    for name in ("mean", "sd", "bound", "quality", "q1", "q2", "q3"):
        getattr(delivery, name)[row, ids] = getattr(block, name)
