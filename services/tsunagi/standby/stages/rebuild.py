"""START: build the state once, from the newest context and what follows it."""

from __future__ import annotations

from tsunagi.standby.stages.base import ReadingStage, ReplicaStage, StageTurn


class RebuildStage(ReadingStage):
    """Reads the newest context that fits, or an older one where that is lost, else the log from its beginning."""

    kind = ReplicaStage.START

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        del count, asked, before
        return self._stand_by(now)

    def _read(self, first: int, now: float) -> StageTurn:
        trust, intake = self.shared.trust, self.shared.intake
        if self._may_search():
            known = (intake.end, trust.upto, trust.acknowledged)
            return self._read_context(now, trust.place, min(offset for offset in known if offset is not None))
        if (turn := self._is_gone(first, now)) is not None:
            return turn
        self.shared.processor.fault.end()
        return self._fetch_to(intake.next, now) if self._compares() else self._stand_by(now)

    def _stand_by(self, now: float) -> StageTurn:
        self.shared.succession.give_time(now)
        return StageTurn((), ReplicaStage.WATCH)

    def _may_search(self) -> bool:
        """Return whether an older context may be the place to begin: there is no state, and the newest does not fit.

        Never a newer one than has been acknowledged: outputs that follow from what is before it may be missing.
        """
        trust = self.shared.trust
        stateless = self.shared.slot.book is None and self.shared.intake.level1 is None
        return stateless and not trust.searched and (trust.upto is not None or trust.acknowledged is not None)
