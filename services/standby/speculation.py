"""Speculative takeover (DESIGN section 3): a standby helps before it is sure that the owner is dead.

Outputs are named by the inputs that caused them, so two writers are harmless: at a weak suspicion the standby reads its
log up, and writes what follows behind the last name in `recovered`. It writes no control records and no
acknowledgements, and it owns nothing: if the owner is heard again, what was written has cost some repeats, which
readers drop by name; if not, it goes on until a promotion at the strong suspicion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.gateway.slot import Output
from services.runtime.log import RECOVERED
from services.runtime.names import NO_NAME, Name
from services.standby import actions as act
from services.standby.queue import PendingQueue, SilentQueue

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
    """

    def __init__(self, total: Speculated, silent: SilentQueue, pending: PendingQueue) -> None:
        self.announced = 0
        self._total = total
        self._silent = silent
        self._pending = pending
        self._tail = NO_NAME
        self._generation = 0
        self._written = 0
        self._begun = False
        self._all = True  # nothing has been written yet
        total.begun += 1

    @property
    def begun(self) -> bool:
        """Whether the last name in `recovered` is known, so that outputs may be written."""
        return self._begun

    @property
    def owes(self) -> bool:
        """Whether what was computed before the suspicion is still to be written."""
        return self._all

    def begin(self, generation: int, tail: Name) -> None:
        """Take in the last name in `recovered`, and which log's it is."""
        self._begun, self._generation, self._tail = True, generation, tail

    def emit(self, outputs: list[Output], generation: int) -> list[act.Action]:
        """Write what follows from records, and keep it; the first time, what was computed before comes first."""
        self._silent.add(outputs)
        tail = self._tail if generation == self._generation else NO_NAME
        ahead: Iterator[Output] = (item for item in outputs if item.topic != RECOVERED or item.name > tail)
        if self._all:
            self._all, ahead = False, iter(self._silent.behind(tail))
        return self._write(ahead, generation)

    def end(self, *, in_vain: bool) -> None:
        """Count what came of it."""
        self._total.in_vain += in_vain
        self._total.repeats += self._written if in_vain else 0

    def _write(self, outputs: Iterable[Output], generation: int) -> list[act.Action]:
        wanted = tuple(outputs)
        if not wanted:
            return []
        count = sum(output.topic == RECOVERED for output in wanted)
        self._written += count
        self._total.outputs += count
        self._pending.sent(wanted)
        return [act.Emit(wanted, generation)]
