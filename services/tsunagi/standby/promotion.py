"""What a promotion remembers from the first suspicion until everything missed has been caught up with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.standby import actions as act
from tsunagi.standby.detector import Detector

PARTS = 8
"""At most so many parts a backlog is cut into after a predecessor's death, each announced before it is processed."""

NARROW_PARTS = 64
"""The same for records that the predecessor had announced when it died. A part of the first cut is not smaller: the
second tells its records one by one."""

DEATHS = frozenset({"silent", "stalled", "restart"})
"""Reasons that say the old owner is gone."""


@dataclass(slots=True)
class Promotion:
    """One attempt to become a slot's primary. Times are monotonic seconds.

    Attributes:
        reason: plan | move | left | silent | stalled | restart.
        epoch: of the old owner, as known when the promotion began.
        detect_s: last sign of the old owner -> suspicion.
        estimated_s: R_time* at the batch size in force.
        claimed: the epoch claimed, 0 = not yet.
        claimed_at: when it was; until then the old owner of a slot that moves goes on.
        deadline: a claim (or quarantine) not read back by then is given up.
        catch_up_to: what the log held when the claim was read back.
        tail: name of the last output in `recovered` when the promotion was read back.
        announced: records below this offset may be processed; None = no announcement is needed.
        suspects: records [from, until) that the old owner announced and did not report survived.
        proven: two owners in a row died on that one record.
    """

    reason: str
    old_owner: str
    epoch: int
    began: float
    detect_s: float
    estimated_s: float = math.inf
    claimed: int = 0
    claimed_at: float = 0.0
    deadline: float = 0.0
    owned_at: float = 0.0
    catch_up_to: int = 0
    records: int = 0
    tail: Name = NO_NAME
    announced: int | None = None
    suspects: tuple[int, int] | None = None
    proven: bool = False

    def gather_evidence(self, detector: Detector, slot: int, survived: int = 0) -> None:
        """Ask what the dead announced.

        A primary in full run announces nothing, so its death proves nothing: two that were announced do, one of them
        on that record alone. A standby that died as it speculated counts like an owner, and in whichever order.

        Args:
            survived: the offset below which this node has processed every record itself.
        """
        if self.reason not in DEATHS:
            return
        found = [(begin, end) for begin, end in detector.announced(slot, self.epoch) if end > survived]
        if not found:
            return
        begin, end = found[0]
        for other_begin, other_end in found[1:]:  # whoever announced more died of the same record, as a rule
            if max(begin, other_begin) < min(end, other_end):
                begin, end = max(begin, other_begin), min(end, other_end)
        self.suspects = begin, end
        alone = end - begin == 1 and self.suspects in found
        self.proven = alone and sum(one <= begin < other for one, other in found) > 1

    def next_part(self, first: int, backlog: int) -> int:
        """Return how many records from offset `first` on are announced together.

        Few announcements, since each costs a round trip; one record alone where the old owner is known to have died.
        """
        if self.suspects is None:
            return max(min(backlog, NARROW_PARTS), -(-backlog // PARTS))
        lo, hi = self.suspects
        if first < lo:
            return lo - first
        if first < hi:
            return max(1, -(-(hi - lo) // NARROW_PARTS))
        return backlog

    def report(self, epoch: int) -> act.TakeoverComplete:
        """Return the figures of a finished takeover."""
        return act.TakeoverComplete(
            epoch=epoch,
            reason=self.reason,
            old_owner=self.old_owner,
            detect_s=self.detect_s,
            promote_s=self.owned_at - self.began,
            claimed_at=self.claimed_at,
            owned_at=self.owned_at,
            estimated_s=self.estimated_s,
            records=self.records,
        )
