"""What a P-SORT core hands on to queries whose rows it adds up before the shuffle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsunagi.query.catalog import READINGS
from tsunagi.query.readings import Readings
from tsunagi.query.snapshots import Tree
from tsunagi.query.sums import Sums
from tsunagi_spark.complete_rows import CompleteRows, no_rows
from tsunagi_spark.events import Events
from tsunagi_spark.frontier import NEVER
from tsunagi_spark.layout import Ints
from tsunagi_spark.query_program import QueryProgram

_ALL = 2**62
"""A step that is later than any that a row can have."""


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Rows and events of one P-SORT core, added up.

    Attributes:
        sums: of each query or view that reads a stream, by name.
        complete: the steps, without rows.
        step, count: int64[n], how many rows and events came of each step.
    """

    sums: Mapping[str, Sums]
    complete: CompleteRows
    step: Ints
    count: Ints

    @staticmethod
    def added_up(came: CompleteRows, events: Sequence[bytes], program: QueryProgram, table: Readings) -> SummedRows:
        """Add up what has come.

        Args:
            came: what is complete, in any order.
            events: what slots have passed on, as `events.packed` returns it.
        """
        queries, compiled = program.adding, program.compiled
        named = {name: queries.named(name) for name in compiled.catalog.streams}
        waiting = Events()
        waiting.add(events, compiled, NEVER)
        streams = waiting.take(_ALL, compiled, named, table)
        steps = [came.rows["step"], *(rows.step for rows in streams.values())]
        streams[READINGS] = table.rows(came.rows["step"], came.rows["sensor"], came.rows, named[READINGS])
        step, count = np.unique(np.concatenate(steps), return_counts=True)
        sums = {name: run.added_up(streams[run.plan.sources[0].name]) for name, run in queries.runs.items()}
        return SummedRows(sums, came.without_rows(), step, count)

    def late(self, done: int) -> Ints:
        """Return the step of each row of a step that is over."""
        over = self.step <= done
        return np.repeat(self.step[over], self.count[over])

    def tree(self) -> Tree:
        """Return all as a tree."""
        sums = {name: item.tree() for name, item in self.sums.items()}
        complete = [self.complete.step, self.complete.appended_us]
        return {"sums": sums, "complete": complete, "step": self.step, "count": self.count}

    @staticmethod
    def of(tree: Tree) -> SummedRows:
        """Read what `tree` has returned."""
        sums = {name: Sums.of(item) for name, item in tree["sums"].items()}
        complete = CompleteRows(no_rows().rows, *tree["complete"])
        return SummedRows(sums, complete, tree["step"], tree["count"])
