"""What a replica keeps from the suspicion of the old owner until it has caught up as the new one.

The *epoch* is the number of an ownership: each takeover adds one. To *announce* records is to name them in a heartbeat
before they are processed, since one of them may kill the process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.standby import actions as act
from tsunagi.standby.detector import Detector

PARTS = 8
"""After an owner's death its successor cuts the backlog into at most this many parts, and announces each of them."""

NARROW_PARTS = 64
"""The number of parts for records that a dead owner had announced. No part of a first cut is smaller than this many
records either, so that the second cut can announce its records one by one."""

DEATHS = frozenset({"silent", "stalled", "restart"})
"""Reasons of a promotion that mean that the old owner is dead."""


@dataclass(slots=True)
class Promotion:
    """One attempt to become a slot's primary. Times are monotonic seconds.

    Attributes:
        reason: plan | move | left | silent | stalled | restart | contradiction.
        old_owner: the node that owned the slot; "" = nobody did.
        epoch: the epoch of the old owner, as known when the promotion began.
        began: when the promotion began.
        detect_s: seconds from the old owner's last sign of life to the suspicion.
        estimated_s: R_time* (recovery time by the cost model) at the present batch size, seconds; infinite = not known.
        claimed: the epoch of the claim; 0 = the claim has not been appended.
        claimed_at: when the claim was appended. The old owner of a moving slot works until then.
        deadline: if the claim (or Quarantine) is not read back by then, it is given up (or appended again).
        owned_at: when the claim was read back.
        catch_up_to: the end of what had been read when the claim was read back.
        records: how many records were to be caught up with.
        tail: name of the last output in `recovered` when the claim was read back.
        announced: records below this offset may be processed; None = nothing has been announced.
        suspects: records [from, until) that a dead process announced and did not survive; None = there are none.
        proven: two owners died on one record, which `suspects` names alone.
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
        """Find out which records the dead owners had announced, and whether one record killed two of them.

        An owner that has caught up announces nothing, so its death proves nothing. Two deaths on announced records are
        proof if one of the announcements named a single record and the other named it, too. A standby that died during
        a speculation counts like an owner. The order of the two deaths does not matter.

        Args:
            survived: the offset below which this node has processed every record itself.
        """
        if self.reason not in DEATHS:
            return
        found = [(begin, end) for begin, end in detector.announced(slot, self.epoch) if end > survived]
        if not found:
            return
        begin, end = found[0]
        for other_begin, other_end in found[1:]:  # usually both died of the same record, so both named it
            if max(begin, other_begin) < min(end, other_end):
                begin, end = max(begin, other_begin), min(end, other_end)
        self.suspects = begin, end
        alone = end - begin == 1 and self.suspects in found
        self.proven = alone and sum(one <= begin < other for one, other in found) > 1

    def next_part(self, first: int, backlog: int) -> int:
        """Return how many records from the offset `first` on are announced together.

        There are few announcements, since each costs a round trip. Records that a dead owner had announced are cut into
        small parts, down to single records.

        Args:
            backlog: how many records have been read and not processed.
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
