"""Judges the records of one slot in `recovered`: names rise, steps have no gap, and no known sensor is missing."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from tsunagi.audit.evidence import AuditedOutput
from tsunagi.audit.rules import check_rows, same_output
from tsunagi.audit.tally import Tally
from tsunagi.runtime.columns import Floats, Sensors
from tsunagi.runtime.messages import UNMODELLED
from tsunagi.runtime.names import Name


class OutputBook:
    """Judges the outputs of one slot as they come.

    Args:
        placement: uint32[n], the slot of each sensor.
        tally: receives the findings.
        kept: how many outputs are kept to compare repeats with. None keeps all; it is for a topic that is read from its
            beginning, and another check then judges whether the sensors that the model knows have rows.
        scale: float64[n], the standard deviation of each sensor; None if it is not known.

    Attributes:
        newest: the last new output; None before the first one.
    """

    def __init__(
        self, slot: int, placement: Sensors, tally: Tally, kept: int | None, scale: Floats | None = None
    ) -> None:
        self._where = f"recovered/{slot}"
        self._home = np.asarray(placement == slot)
        self._known = np.zeros(len(self._home), dtype=bool)
        self._tally = tally
        self._limit = kept
        self._scale = scale
        self._kept: OrderedDict[Name, AuditedOutput] = OrderedDict()
        self.newest: AuditedOutput | None = None

    def take(self, output: AuditedOutput) -> bool:
        """Judge a record, and return whether it is a new output: no repeat, and not out of order."""
        place, last = output.place, self.newest
        if last is not None and output.name <= last.name:
            self._judge_old(output, last, place)
            return False
        self._kept[output.name] = output
        if self._limit is not None and len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        if last is not None:
            self._judge_step(output, last, place)
            if output.step <= last.step:
                return False
        self._judge_rows(output, place)
        self.newest = output
        return True

    def model_changed(self) -> None:
        """Forget which sensors the model knows, because another model has come into force."""
        self._known[:] = False

    def _judge_old(self, output: AuditedOutput, last: AuditedOutput, place: str) -> None:
        first = self._kept.get(output.name)
        if first is not None:
            self._tally.repeat(place, len(output.sensor), same=same_output(first, output, self._scale))
        elif self._limit is not None and output.name < next(iter(self._kept)):
            self._tally.unjudged += 1
        else:
            self._tally.invert(self._where, f"{place}: after name {tuple(last.name)}")

    def _judge_step(self, output: AuditedOutput, last: AuditedOutput, place: str) -> None:
        if output.generation != last.generation:
            self._tally.amiss("generation", f"{place}: the log's generation changed")
        gap = output.step - last.step - 1
        if gap < 0:
            self._tally.double(
                f"{place}: a second output of the step, the last was {last.step}", max(1, len(output.sensor))
            )
        elif gap:
            self._tally.amiss("missing outputs", f"{place}: after step {last.step}: {gap} steps have no output", gap)

    def _judge_rows(self, output: AuditedOutput, place: str) -> None:
        check_rows(output.sensor, self._where, place, self._tally)
        ids = output.sensor.astype(np.intp)
        foreign = (ids >= len(self._home)) | ~self._home[np.minimum(ids, len(self._home) - 1)]
        if foreign.any():
            self._tally.amiss(
                "foreign", f"{place}: sensor {ids[foreign][0]} is not of this slot by the placement", int(foreign.sum())
            )
        missing = self._known.copy()
        missing[ids[~foreign]] = False
        if missing.any():
            count = int(missing.sum())
            self._tally.lose(f"{place}: {count} sensors have no row, first {int(missing.argmax())}", count)
        if self._limit is not None and not foreign.any():
            self._known[ids[output.quality != UNMODELLED]] = True
