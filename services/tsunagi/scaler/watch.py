"""Observes the slots from outside: it knows what a dead owner can no longer report.

Everything comes from heartbeats and acknowledgements, which the scaler reads anyway and which are a few bytes each. It
sends no requests of its own, so a slow broker does not hold up the scaler.

- silence: a primary's Level-0-Ack names the last output that `recovered` has;
- Spark's lag: Spark's Level-0-Ack names the last output that it has read;
- the resume point's age: a Level-1-Ack says when the log appended the record before that point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsunagi.runtime.messages import Ack, Heartbeat, Level0Ack, Level1Ack, SlotBeat
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.scaler.thinning import thin

Parts = Sequence[tuple[str, SlotBeat]]
"""What workers, by name, say of one slot."""
SPARK = "spark"
"""Node name in the acknowledgements of Spark."""
MARK_S = 0.5
"""Shortest time between two marks, in seconds. A mark says which output was the last one at what time."""


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """The state of one slot at one moment.

    Attributes:
        protected: whether a living node owns it and another one could take it over now.
        silence_s: seconds since its last output; None if it never wrote one.
        spark_lag_s: seconds since the oldest output that Spark has not read; 0 if there is none.
        resume_age_s: seconds since the newest record before its resume point was appended, or, while there is no such
            point, since an owner was first heard; None if no owner was heard.
    """

    protected: bool
    silence_s: float | None
    spark_lag_s: float
    resume_age_s: float | None


class SlotMonitor:
    """The observations of one slot. Times are monotonic seconds of the caller's clock."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._epoch = 0
        self._generation = 0
        self._last = NO_NAME
        self._last_at = 0.0
        self._marks: deque[tuple[float, Name]] = deque()
        self._mark_s = MARK_S
        self._spark: Name | None = None
        self._spark_at = 0.0
        self._spark_generation = 0
        self._resume: Level1Ack | None = None
        self._resume_us = 0

    def on_ack(self, ack: Ack, appended_us: int, at: float, *, old: bool = False) -> None:
        """Take note of an acknowledgement of this slot, in log order.

        Args:
            appended_us: time when the log appended it, in microseconds.
            at: the same moment by the caller's clock.
            old: whether it was in the log before this process began; compaction has left only the last one of each node
                there.
        """
        if ack.WhichOneof("body") == "level1":
            self._on_level1(ack.level1, appended_us)
        elif ack.level0.node == SPARK:
            self._on_spark(ack.level0, at)
        else:
            self._resume_us = self._resume_us or appended_us
            self._on_level0(ack.level0, at, old=old)

    def _on_level0(self, ack: Level0Ack, at: float, *, old: bool) -> None:
        if ack.generation != self._generation:  # the slot's log was made anew, so names start again
            self._marks.clear()
            self._last = NO_NAME
        elif ack.epoch < self._epoch:
            return  # it is from a deposed owner
        self._generation, self._epoch = ack.generation, ack.epoch
        name = Name(ack.last_offset, ack.last_index)
        if name <= self._last:
            return
        self._last, self._last_at = name, at
        if self._behind(name) and (not self._marks or at - self._marks[-1][0] >= self._mark_s):
            # What Spark had not read before this start has waited since about Spark's last acknowledgement.
            since = self._spark_at if old and self._spark is not None and not self._marks else at
            self._marks.append((since, name))
            if thin(self._marks):
                self._mark_s *= 2

    def _on_spark(self, ack: Level0Ack, at: float) -> None:
        self._spark, self._spark_at = Name(ack.last_offset, ack.last_index), at
        self._spark_generation = ack.generation
        while self._marks and not self._behind(self._marks[0][1]):
            self._marks.popleft()
        if not self._marks:
            self._mark_s = MARK_S

    def _on_level1(self, ack: Level1Ack, appended_us: int) -> None:
        known = self._resume
        same = known is not None and known.generation == ack.generation
        if known is not None and same and (ack.epoch, ack.offset) <= (known.epoch, known.offset):
            return
        self._resume, self._resume_us = ack, ack.appended_us or appended_us

    def _behind(self, name: Name) -> bool:
        """Return whether Spark has not yet read an output of this name."""
        return self._spark is None or self._spark_generation != self._generation or name > self._spark

    def snapshot(self, parts: Parts, now: float, now_us: int) -> SlotSnapshot:
        """Return the state of the slot.

        Args:
            parts: what living workers say of the slot.
        """
        waiting = self._last > NO_NAME and self._behind(self._last)
        since = self._marks[0][0] if self._marks else self._last_at
        return SlotSnapshot(
            protected=_protected(self._slot, parts),
            silence_s=max(0.0, now - self._last_at) if self._last > NO_NAME else None,
            spark_lag_s=max(0.0, now - since) if waiting else 0.0,
            resume_age_s=max(0.0, (now_us - self._resume_us) / 1e6) if self._resume_us else None,
        )


def by_slot(alive: Mapping[str, Heartbeat]) -> dict[int, list[tuple[str, SlotBeat]]]:
    """Return what living workers say of each slot."""
    found: dict[int, list[tuple[str, SlotBeat]]] = {}
    for name, beat in alive.items():
        for part in beat.slots:
            found.setdefault(part.slot, []).append((name, part))
    return found


def _protected(slot: int, parts: Parts) -> bool:
    owners = [(part.epoch, name) for name, part in parts if part.slot == slot and part.role == "primary"]
    return bool(owners) and any(
        part.slot == slot and part.role == "standby" and part.ready and name != max(owners)[1] for name, part in parts
    )
