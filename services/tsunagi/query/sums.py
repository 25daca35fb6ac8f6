"""Sums: the rows of each group and step, added up where the rows are, before they go to the place of their query.

States of aggregates are put together exactly (`tsunagi.query.aggregates`), so a query gives the same from sums as from
rows, however many places have added them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.query.aggregates import State, blank, folded, pick
from tsunagi.query.relations import KeyNumbers
from tsunagi.query.snapshots import Tree, of_column, to_column
from tsunagi.query.values import Column, Flags, Ints


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows added up: one cell for each step and group that has any.

    Attributes:
        step: int64[cells].
        key: int64[cells], the group of each cell: its place in `groups`.
        groups: what rows are grouped by, one column for each expression of GROUP BY.
        state: the state of each cell, of all measures together.
    """

    step: Ints
    key: Ints
    groups: Sequence[Column]
    state: State

    def __len__(self) -> int:
        return len(self.step)

    def some(self, which: Flags) -> Sums:
        """Return some of the cells, by a mask."""
        return Sums(self.step[which], self.key[which], self.groups, pick(self.state, which))

    def tree(self) -> Tree:
        """Return the sums as a tree."""
        return [self.step, self.key, [of_column(item) for item in self.groups], self.state]

    @staticmethod
    def of(tree: Tree) -> Sums:
        """Return the sums of a tree."""
        step, key, groups, state = tree
        return Sums(step, key, [to_column(item) for item in groups], state)


def panes_of(parts: Sequence[Sums], keys: KeyNumbers, pane: int) -> tuple[Ints, Ints, State]:
    """Return sums of any places as cells in the order of (pane, key), one for each.

    Args:
        keys: numbers the groups; new ones are added.
        pane: steps in a pane.
    """
    numbers = [_numbers(part, keys) for part in parts]
    panes = np.concatenate([(part.step - 1) // pane for part in parts])
    key = np.concatenate(numbers)
    kinds = {name: array.dtype for part in parts for name, array in part.state.items()}
    order = np.lexsort((key, panes))
    panes, key = panes[order], key[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (panes[1:] != panes[:-1]) | (key[1:] != key[:-1])
    begins = np.flatnonzero(fresh)
    state = {
        name: np.concatenate([part.state.get(name, blank(name, kind, part.step.shape)) for part in parts])[order]
        for name, kind in kinds.items()
    }
    return panes[begins], key[begins], folded(state, begins)


def _numbers(part: Sums, keys: KeyNumbers) -> Ints:
    if not part.groups:
        return np.zeros(len(part), dtype=np.int64)
    return keys.numbers(part.groups, len(part.groups[0]))[part.key]
