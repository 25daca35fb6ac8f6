"""START: build the slot's state from its newest context (the whole state at one offset of the log)."""

from __future__ import annotations

from tsunagi.standby.stages.base import GatheringStage, ReplicaStage, StageTurn


class RebuildStage(GatheringStage):
    """Reads the newest context that fits, or an older one if that is lost. Without any, the state begins with the log.

    The records behind the context are read in the next stage.
    """

    kind = ReplicaStage.START

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        del count, asked, before
        return self._stand_by(now)

    def _read(self, first: int, now: float) -> StageTurn:
        trust, intake = self.shared.trust, self.shared.intake
        if self._may_search():
            return self._read_context(now, trust.place, min([intake.end, *trust.bounds()]))
        if (turn := self._is_gone(first, now)) is not None:
            return turn
        self.shared.processor.fault.end()
        return self._fetch_to(intake.next, now) if self._compares() else self._stand_by(now)

    def _stand_by(self, now: float) -> StageTurn:
        self.shared.succession.give_time(now)
        return StageTurn((), ReplicaStage.WATCH)

    def _may_search(self) -> bool:
        """Return whether to search for an older context: there is no state yet, and the newest context does not fit.

        The search never goes beyond the last Level-1-Ack: outputs of the inputs behind it may not be in `recovered`.
        """
        trust = self.shared.trust
        stateless = self.shared.slot.book is None and self.shared.intake.level1 is None
        return stateless and not trust.searched and bool(trust.bounds())
