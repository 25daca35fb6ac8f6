"""What is complete of the rows that queries read: what P-SORT cores hand on, and what waits in query cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tsunagi.query.values import Array
from tsunagi_spark.kway import block_order
from tsunagi_spark.layout import Flags, Ints
from tsunagi_spark.merge import Ordered

_READING = ("step", "sensor", "mean", "sd", "quality", "bound")
"""The columns of the rows that queries read."""


class CompleteRows(NamedTuple):
    """Rows in the order of (step, sensor), and when their steps' inputs were appended.

    Attributes:
        rows: the columns `step`, `sensor`, `mean`, `sd`, `quality`, `bound`.
        step, appended_us: int64[m], of the steps, ascending.
    """

    rows: Mapping[str, Array]
    step: Ints
    appended_us: Ints

    @staticmethod
    def of(parts: Sequence[CompleteRows]) -> CompleteRows:
        """Return the rows of several cores together."""
        rows = {name: np.concatenate([part.rows[name] for part in parts]) for name in _READING}
        step, place = np.unique(np.concatenate([part.step for part in parts]), return_inverse=True)
        appended_us = np.full(len(step), np.iinfo(np.int64).min)
        np.maximum.at(appended_us, place, np.concatenate([part.appended_us for part in parts]))
        order = block_order(rows["step"], rows["sensor"])
        return CompleteRows({name: column[order] for name, column in rows.items()}, step, appended_us)

    @staticmethod
    def from_ordered(ordered: Ordered) -> CompleteRows:
        """Return what one core has of complete steps, in no order."""
        rows = {name: getattr(ordered.rows, name) for name in _READING}
        return CompleteRows(rows, ordered.step, ordered.appended_us)

    def some(self, which: Flags) -> CompleteRows:
        """Return some of the rows, by a mask; the steps stay."""
        return self._replace(rows={name: column[which] for name, column in self.rows.items()})

    def without_rows(self) -> CompleteRows:
        """Return the steps alone."""
        return self.some(np.zeros(len(self.rows["step"]), dtype=np.bool_))

    def behind(self, step: int) -> tuple[CompleteRows, int]:
        """Return the rows of later steps, and the number of the others."""
        first = int(np.searchsorted(self.rows["step"], step, side="right"))
        at = int(np.searchsorted(self.step, step, side="right"))
        rows = {name: column[first:] for name, column in self.rows.items()}
        return CompleteRows(rows, self.step[at:], self.appended_us[at:]), first

    def appended_at(self, step: Ints) -> Ints:
        """Return when the inputs of steps were appended, or those of the next step if nothing came for one."""
        if not len(self.step):
            return np.zeros_like(step)
        return self.appended_us[np.minimum(np.searchsorted(self.step, step), len(self.step) - 1)]

    def arrays(self) -> dict[str, Array]:
        """Return all columns by name."""
        return {f"rows.{name}": column for name, column in self.rows.items()} | {
            "steps": self.step,
            "appended_us": self.appended_us,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any]) -> CompleteRows:
        """Read the columns that `arrays` has returned."""
        return CompleteRows({name: arrays[f"rows.{name}"] for name in _READING}, arrays["steps"], arrays["appended_us"])


def no_rows() -> CompleteRows:
    """Return rows of no step."""
    kinds = {"step": np.int64, "sensor": np.uint32, "quality": np.uint8}
    nothing = np.zeros(0, dtype=np.int64)
    return CompleteRows(
        {name: np.zeros(0, dtype=kinds.get(name, np.float64)) for name in _READING}, nothing, nothing.copy()
    )
