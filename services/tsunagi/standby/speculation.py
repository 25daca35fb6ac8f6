"""Speculative takeover (architecture, "Evidence of death"): a standby helps before it is sure that the owner is dead.

Outputs are named by the inputs that caused them, so two writers are harmless. After a short silence of the owner (a
weak suspicion) the standby reads the log to its end, and writes the outputs behind the last name in `recovered`. It
writes no control records and no acknowledgements, and does not own the slot. If the owner is heard again, some outputs
were written twice, and readers drop them by name. If not, the standby is promoted after `detect_s` of silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.outputs import Output
from tsunagi.standby import actions as act
from tsunagi.standby.queue import PendingQueue, SilentQueue, unwritten

POLL_S = 0.01
"""Interval at which a speculating standby asks for the log's end, seconds."""


@dataclass(slots=True)
class Speculated:
    """Counts of a replica's speculations so far.

    Attributes:
        begun: speculations that began.
        in_vain: speculations after which the owner was heard again.
        outputs: outputs written to `recovered` in speculations.
        repeats: those of them that the owner writes, or has written, as well.
    """

    begun: int = 0
    in_vain: int = 0
    outputs: int = 0
    repeats: int = 0


class Speculation:
    """One speculation.

    Args:
        total: the counts over all speculations of the replica.
        silent: outputs that the standby has computed. Those that are written now stay in it until it is trimmed.
        pending: outputs that the node has written and the broker has not acknowledged.

    Attributes:
        announced: records below this offset were announced, since the owner may have died of one, and may be processed.
        asked: the generation (number of the slot's log) whose last name in `recovered` was asked for.
        begun: whether the last name in `recovered` is known, so that outputs may be written.
        owes: whether the outputs that were computed before the speculation are still to be written.
    """

    def __init__(self, total: Speculated, silent: SilentQueue, pending: PendingQueue) -> None:
        self.announced = 0
        self.asked = 0
        self._total = total
        self._silent = silent
        self._pending = pending
        self._tail = NO_NAME
        self._tail_us = 0
        self._generation = 0
        self._written = 0
        self.begun = False
        self.owes = True
        total.begun += 1

    def begin(self, generation: int, tail: Name, appended_us: int) -> None:
        """Take in the last name in `recovered`.

        Args:
            generation: the generation (number of the slot's log) that it belongs to.
            appended_us: when the log appended the record that it names, as the output says, microseconds; 0 = not said.
        """
        self.begun, self._generation, self._tail, self._tail_us = True, generation, tail, appended_us

    def knows_tail(self, generation: int) -> bool:
        """Return whether the last name in `recovered` of this generation is known, or that there is none."""
        return generation in (self.asked, self._generation)

    def begin_anew(self) -> None:
        """Take in that the records that were processed are of a generation whose last name is not known.

        Nothing may be written until it is.
        """
        self.begun, self.owes = False, True

    def foreign(self, position: int, generation: int) -> Name | None:
        """Return the last name in `recovered` if the records that were processed cannot have caused it, else None.

        Then the log has lost its end since, and nothing may be written before a new generation declares that.

        Args:
            position: all records below this offset have been processed, and their outputs are in the queue.
            generation: the generation of those records.
        """
        tail = self._tail
        if generation != self._generation or tail == NO_NAME or tail.offset >= position or not self._tail_us:
            return None
        return tail if self._silent.contradicts(tail, self._tail_us) else None

    def emit(self, outputs: list[Output], generation: int) -> list[act.Action]:
        """Write outputs that are in the queue. The first call also writes those computed before the speculation."""
        tail = self._tail if generation == self._generation else NO_NAME
        wanted = tuple(self._silent.behind(tail) if self.owes else unwritten(outputs, tail))
        self.owes = False
        if not wanted:
            return []
        count = sum(output.topic == RECOVERED for output in wanted)
        self._written += count
        self._total.outputs += count
        self._pending.sent(wanted, generation)
        return [act.Emit(wanted, generation)]

    def end(self, *, in_vain: bool) -> None:
        """Count how the speculation ended; `in_vain` = the owner was heard again."""
        self._total.in_vain += in_vain
        self._total.repeats += self._written if in_vain else 0
