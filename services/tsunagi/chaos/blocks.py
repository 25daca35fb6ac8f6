"""The records of `results`: every (query, group) has each step once, in order."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from tsunagi.chaos.tally import Tally
from tsunagi.demo.evidence import Block

KEPT = 20_000
"""Steps of a group whose content is remembered (16 bytes each): what a restarted job may send again."""

_COLUMNS = ("sensor", "mean", "sd", "quality", "bound", "q1", "q2", "q3")


@dataclass(slots=True)
class _Group:
    partition: int
    first: int
    last: int
    missing: set[int] = field(default_factory=set)
    content: OrderedDict[int, bytes] = field(default_factory=OrderedDict)


class BlockBook:
    """Judges result blocks as they come."""

    def __init__(self, tally: Tally, kept: int = KEPT) -> None:
        self._tally = tally
        self._limit = kept
        self._groups: dict[tuple[str, str], _Group] = {}

    def take(self, block: Block) -> bool:
        """Judge a block; return whether it is new (not a repeat, and not out of order)."""
        name = (block.query, block.group)
        place = f"results/{block.partition}, offset {block.offset}: group {block.group!r}, step {block.step}"
        group = self._groups.get(name)
        if group is None:
            self._groups[name] = group = _Group(block.partition, block.step, block.step - 1)
        if group.partition != block.partition:
            self._tally.amiss("partitions", f"{place}: the group is in partition {group.partition} as well")
        if block.step <= group.last:
            return self._judge_old(block, group, place)
        gap = block.step - group.last - 1
        if gap:
            self._tally.lost += gap
            self._tally.problem(f"{place}: after step {group.last}: {gap} steps have no block")
            group.missing |= set(range(max(group.last + 1, block.step - self._limit), block.step))
        self._judge_rows(block, place)
        group.last = block.step
        self._keep(group, block)
        return True

    def newest(self) -> dict[tuple[str, str], int]:
        """Return the newest step of each (query, group)."""
        return {name: group.last for name, group in self._groups.items()}

    def _judge_old(self, block: Block, group: _Group, place: str) -> bool:
        if block.step in group.missing:  # it was no loss after all
            group.missing.discard(block.step)
            self._tally.lost -= 1
            self._tally.inverted += 1
            self._tally.problem(f"{place}: after step {group.last}")
            self._keep(group, block)
            return True
        known = group.content.get(block.step)
        if known is None:
            self._tally.unjudged += 1
            return False
        self._tally.repeats += 1
        if known != content(block):
            self._tally.duplicated += max(1, len(block.sensor))
            self._tally.problem(f"{place}: repeated with other rows")
        return False

    def _judge_rows(self, block: Block, place: str) -> None:
        differences = np.diff(block.sensor.astype(np.int64))
        if (differences < 0).any():
            self._tally.inverted += int((differences < 0).sum())
            self._tally.problem(f"{place}: rows are not in the order of their sensors")
        twice = len(block.sensor) - len(np.unique(block.sensor))
        if twice:
            self._tally.duplicated += twice
            self._tally.problem(f"{place}: {twice} rows stand twice")

    def _keep(self, group: _Group, block: Block) -> None:
        group.content[block.step] = content(block)
        if len(group.content) > self._limit:
            group.content.popitem(last=False)


def content(block: Block) -> bytes:
    """Return a digest of all columns."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _COLUMNS:
        column = getattr(block, name).tobytes()
        digest.update(len(column).to_bytes(4, "little") + column)
    return digest.digest()
