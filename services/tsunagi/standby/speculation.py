"""Speculative takeover (architecture, "Evidence of death"): a standby helps before it is sure that the owner is dead.

Outputs are named by the inputs that caused them, so two writers are harmless: at a weak suspicion the standby reads its
log up, and writes what follows behind the last name in `recovered`. It writes no control records and no
acknowledgements, and it owns nothing: if the owner is heard again, what was written has cost some repeats, which
readers drop by name; if not, it goes on until a promotion at the strong suspicion.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.outputs import Output
from tsunagi.standby import actions as act
from tsunagi.standby.queue import PendingQueue, SilentQueue, unwritten

POLL_S = 0.01
"""How often the log's end is asked for meanwhile."""


@dataclass(slots=True)
class Speculated:
    """What has come of it so far.

    Attributes:
        begun: weak suspicions acted upon; in_vain: those after which the owner was heard again.
        outputs: written; repeats: those of them that the owner writes, or has written, as well.
    """

    begun: int = 0
    in_vain: int = 0
    outputs: int = 0
    repeats: int = 0


class Speculation:
    """One weak suspicion. Times are monotonic seconds of the caller's clock.

    Args:
        silent: what the standby has computed and not written; all of it stays there until it is trimmed.
        pending: what the node has written and the broker has not acknowledged.

    Attributes:
        announced: records below this offset may be processed; the owner may have died of one of them.
        begun: the last name in `recovered` is known, so that outputs may be written.
        owes: what was computed before the suspicion is still to be written.
    """

    def __init__(self, total: Speculated, silent: SilentQueue, pending: PendingQueue) -> None:
        self.announced = 0
        self._total = total
        self._silent = silent
        self._pending = pending
        self._tail = NO_NAME
        self._generation = 0
        self._written = 0
        self.begun = False
        self.owes = True
        total.begun += 1

    def begin(self, generation: int, tail: Name) -> None:
        """Take in the last name in `recovered`, and which log's it is."""
        self.begun, self._generation, self._tail = True, generation, tail

    def emit(self, outputs: list[Output], generation: int) -> list[act.Action]:
        """Write what follows from records, and keep it; the first time, what was computed before comes first."""
        self._silent.add(outputs)
        tail = self._tail if generation == self._generation else NO_NAME
        wanted = tuple(self._silent.behind(tail) if self.owes else unwritten(outputs, tail))
        self.owes = False
        if not wanted:
            return []
        count = sum(output.topic == RECOVERED for output in wanted)
        self._written += count
        self._total.outputs += count
        self._pending.sent(wanted)
        return [act.Emit(wanted, generation)]

    def end(self, *, in_vain: bool) -> None:
        """Count what came of it."""
        self._total.in_vain += in_vain
        self._total.repeats += self._written if in_vain else 0
