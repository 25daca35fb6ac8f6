"""The records of `recovered`, one slot: names rise, steps are contiguous, every known sensor is there."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from tsunagi.chaos.tally import Tally
from tsunagi.demo.evidence import Output
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.messages import EXACT, UNMODELLED
from tsunagi.runtime.names import Name

KEPT = 2000
"""Outputs of a slot that are kept to compare repeats with."""

TOLERANCE = 1e-6
"""Of repeated values: another machine may sum in another order (architecture, "The slot's log decides")."""


class OutputBook:
    """Judges the outputs of one slot as they come.

    Args:
        placement: uint32[n], slot by sensor.

    Attributes:
        newest: the last new output; None = none yet.
    """

    def __init__(self, slot: int, placement: Sensors, tally: Tally, kept: int = KEPT) -> None:
        self._slot = slot
        self._home = np.asarray(placement == slot)
        self._known = np.zeros(len(self._home), dtype=bool)
        self._tally = tally
        self._limit = kept
        self._kept: OrderedDict[Name, Output] = OrderedDict()
        self.newest: Output | None = None

    def take(self, output: Output) -> bool:
        """Judge a record; return whether it is a new output (not a repeat, and not out of order)."""
        place = f"recovered/{self._slot}, name {tuple(output.name)} (step {output.step}, epoch {output.epoch})"
        last = self.newest
        if last is not None and output.name <= last.name:
            self._judge_old(output, place)
            return False
        if last is not None:
            self._judge_step(output, last, place)
            if output.step <= last.step:
                return False
        self._judge_rows(output, place)
        self.newest = output
        self._kept[output.name] = output
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return True

    def model_changed(self) -> None:
        """Another model is in force: which sensors it knows is learnt anew."""
        self._known[:] = False

    def _judge_old(self, output: Output, place: str) -> None:
        first = self._kept.get(output.name)
        if first is not None:
            self._tally.repeats += 1
            if not same_output(first, output):
                self._tally.duplicated += max(1, len(output.sensor))
                self._tally.problem(f"{place}: repeated with another content")
        elif output.name < next(iter(self._kept)):
            self._tally.unjudged += 1
        else:
            self._tally.inverted += 1
            last = self.newest
            self._tally.problem(f"{place}: after name {tuple(last.name) if last else ()}")

    def _judge_step(self, output: Output, last: Output, place: str) -> None:
        if output.generation != last.generation:
            self._tally.amiss("generation", f"{place}: the log's generation changed")
        if output.epoch < last.epoch:
            self._tally.amiss("epoch", f"{place}: a new output of an older term, after epoch {last.epoch}")
        if output.step <= last.step:
            self._tally.duplicated += max(1, len(output.sensor))
            self._tally.problem(f"{place}: a second output of the step, the last was {last.step}")
        elif output.step != last.step + 1:
            self._tally.lost += output.step - last.step - 1
            self._tally.problem(f"{place}: after step {last.step}: {output.step - last.step - 1} steps are missing")

    def _judge_rows(self, output: Output, place: str) -> None:
        ids = output.sensor.astype(np.intp)
        foreign = (ids >= len(self._home)) | ~self._home[np.minimum(ids, len(self._home) - 1)]
        if foreign.any():
            self._tally.amiss(
                "foreign", f"{place}: sensor {ids[foreign][0]} is not of this slot by the placement", int(foreign.sum())
            )
            ids = ids[~foreign]
        differences = np.diff(ids)
        if (differences < 0).any():
            self._tally.inverted += int((differences < 0).sum())
            self._tally.problem(f"{place}: rows are not in the order of their sensors")
        there = np.zeros_like(self._known)
        there[ids] = True
        if len(ids) > int(there.sum()):
            self._tally.duplicated += len(ids) - int(there.sum())
            self._tally.problem(f"{place}: a sensor stands twice")
        missing = self._known & ~there
        if missing.any():
            self._tally.lost += int(missing.sum())
            self._tally.problem(f"{place}: {int(missing.sum())} sensors have no row, first {int(missing.argmax())}")
        if not foreign.any():
            self._known[ids[output.quality != UNMODELLED]] = True


def measured(output: Output) -> Sensors:
    """Return the sensors whose values are tagged as measured."""
    return np.asarray(output.sensor[np.isin(output.quality, (EXACT, UNMODELLED))], dtype=np.uint32)


def same_output(first: Output, second: Output) -> bool:
    """Return whether two records under one name say the same."""
    if first.step != second.step or first.generation != second.generation:
        return False
    if not np.array_equal(first.sensor, second.sensor) or not np.array_equal(first.quality, second.quality):
        return False
    columns = ((first.mean, second.mean), (first.sd, second.sd), (first.bound, second.bound))
    return all(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for a, b in columns)
