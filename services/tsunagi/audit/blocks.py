"""Judges the records of `results`: every (query, group) must have each step once, in order."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tsunagi.audit.evidence import AuditedBlock
from tsunagi.audit.rules import check_rows, content
from tsunagi.audit.tally import Tally

KEPT = 20_000
"""Steps of a group of which a digest of 16 bytes is kept. A restarted job may send these steps again, and a digest
shows whether a repeat has the same content. `RowBook` waits for results for as many steps."""


@dataclass(slots=True)
class _Group:
    partition: int
    last: int
    missing: set[int] = field(default_factory=set)
    content: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


class BlockBook:
    """Judges result blocks as they come.

    Args:
        step_us: length of a step, in microseconds; 0 takes it from the first block.
        whole: whether the topic is read from its beginning. A block that is older than all known ones is then out of
            order; otherwise it may be a repeat of a block from before the reading began.
    """

    def __init__(self, tally: Tally, *, step_us: int = 0, whole: bool = False) -> None:
        self.step_us = step_us
        self._tally = tally
        self._whole = whole
        self._groups: dict[tuple[str, str], _Group] = {}

    def take(self, block: AuditedBlock) -> bool:
        """Judge a block, and return whether it is new, that is, no repeat."""
        self.step_us = self.step_us or (block.event_time_us // block.step if block.step else 0)
        if block.event_time_us != block.step * self.step_us:
            self._tally.amiss("event time", f"{block.place}: event time {block.event_time_us} is not the step's")
        name = (block.query, block.group)
        group = self._groups.get(name)
        if group is None:
            self._groups[name] = group = _Group(block.partition, block.step - 1)
        if group.partition != block.partition:
            self._tally.amiss("partitions", f"{block.place}: the group is in partition {group.partition} as well")
        if block.step <= group.last:
            return self._judge_old(block, group)
        gap = block.step - group.last - 1
        if gap:
            self._tally.amiss(
                "missing blocks", f"{block.place}: after step {group.last}: {gap} steps have no block", gap
            )
            group.missing |= set(range(max(group.last + 1, block.step - KEPT), block.step))
        check_rows(block.sensor, block.group, block.place, self._tally)
        group.last = block.step
        self._keep(group, block)
        return True

    def newest(self) -> dict[tuple[str, str], int]:
        """Return the newest step of each (query, group)."""
        return {name: group.last for name, group in self._groups.items()}

    def _judge_old(self, block: AuditedBlock, group: _Group) -> bool:
        known = group.content.get(block.step)
        if known is None and (block.step in group.missing or self._whole):
            if block.step in group.missing:  # the block had been counted as missing, and has come late
                group.missing.discard(block.step)
                self._tally.wrong["missing blocks"] -= 1
            self._tally.invert(block.group, f"{block.place}: after step {group.last}")
            check_rows(block.sensor, block.group, block.place, self._tally)
            self._keep(group, block)
            return True
        if known is None:
            self._tally.unjudged += 1
            return False
        self._tally.repeat(block.place, len(block.sensor), same=known == content(block))
        return False

    def _keep(self, group: _Group, block: AuditedBlock) -> None:
        group.content[block.step] = content(block)
        if len(group.content) > KEPT and not self._whole:
            group.content.popitem(last=False)
