"""Judges batches that were set aside: none of them may have come in time from an edge that lived."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tsunagi.audit.evidence import Aside, AuditedOutput, Batch
from tsunagi.audit.tally import Tally
from tsunagi.runtime.log import LATE


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch with readings that was set aside.

    Attributes:
        aside: where it went, and why.
        output: the output of its step; None if it is not known.
    """

    batch: Batch
    aside: Aside
    output: AuditedOutput | None = None


class LateJudge:
    """Judges batches that were set aside and have no excuse.

    Args:
        tally: receives the findings.
        grace_us: how long after its time a step waits for a batch, in microseconds.
        slow_share: share of all tuples that may be `slow`.

    Attributes:
        slow: how many tuples reached the log too late for their steps, though nothing was done to their edges.
    """

    def __init__(self, tally: Tally, grace_us: int, slow_share: float) -> None:
        self._tally = tally
        self._grace_us = grace_us
        self._slow_share = slow_share
        self._until_us: dict[tuple[int, str], int] = {}
        self.slow = 0

    def judge(self, items: Iterable[Refused], excused: Callable[[Refused], bool], step_us: int, tuples: int) -> None:
        """Judge batches of one slot or of several.

        Args:
            items: the batches; those of each slot are in log order.
            excused: tells whether a disturbance of the system explains that a batch was set aside.
            step_us: length of a step, in microseconds.
            tuples: how many tuples the edges have handed over in all so far.
        """
        unexplained: dict[tuple[str, int, str, str], list[Batch]] = {}
        for item in items:
            aside, batch = item.aside, item.batch
            if excused(item):
                continue
            if aside.topic == LATE and self._is_slow(batch, step_us):
                self.slow += len(batch.sensor)
            else:
                unexplained.setdefault((aside.topic, batch.slot, batch.edge, aside.reason), []).append(batch)
        for (topic, slot, edge, reason), batches in unexplained.items():
            count = sum(len(batch.sensor) for batch in batches)
            delays_s = [(batch.appended_us - batch.step * step_us) / 1e6 for batch in batches]
            self._tally.amiss(
                topic,
                f"tuples/{slot}: {count} tuples of {edge}, which lived, went to {topic} ({reason}), the first at "
                f"offset {batches[0].offset}, step {batches[0].step}; they had come {min(delays_s):.3f} to "
                f"{max(delays_s):.3f} s after their times",
                count,
            )
        if self.slow > self._slow_share * tuples and "slow" not in self._tally.wrong:
            self._tally.amiss(
                "slow", f"{self.slow} of {tuples} tuples came too late for their steps from edges that lived", self.slow
            )

    def _is_slow(self, batch: Batch, step_us: int) -> bool:
        """Return whether a batch reached the log after its step had waited for it long enough.

        Batches that follow such a batch are slow too, until their edge has been taken back. An owner waits a step and
        the grace period after the last batch of an edge, and that batch came at its own time at the earliest.
        """
        key, time_us = (batch.slot, batch.edge), batch.step * step_us
        if batch.appended_us > time_us + self._grace_us:
            self._until_us[key] = batch.appended_us + step_us + self._grace_us
        return time_us <= self._until_us.get(key, -1)
