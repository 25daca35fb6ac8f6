"""The stages of a promotion: SURVEY, CLAIM, TAIL, BURY. They lead from a suspicion or the plan's wish to ownership.

Terms: The *epoch* is the number of an ownership: each takeover adds one. The *generation* is the number of the slot's
log: a new one begins, with a `Founding` in the claim, when the log has lost records.
"""

from __future__ import annotations

from tsunagi.runtime.log import TUPLES, LogError
from tsunagi.runtime.messages import Founding, Ownership, Quarantine
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.deciding import READ_BACK_S, control
from tsunagi.standby import actions as act
from tsunagi.standby.promotion import Promotion
from tsunagi.standby.shared import Shared
from tsunagi.standby.stages.base import STAY, GatheringStage, ReadingStage, ReplicaStage, StageTurn

SEEN_S = 10.0
"""How long before the present a new slot's first step may lie, seconds, beside the skew that edges' clocks may have."""


class Promoting(ReadingStage):
    """A stage of a promotion. It reads the log up to an end, and then goes on with `_read_up`."""

    keeps = False

    def __init__(self, shared: Shared, promotion: Promotion) -> None:
        super().__init__(shared)
        self.promotion = promotion

    def _at_fetched(self, count: int, asked: float | None, before: int, now: float) -> StageTurn:
        """Go on if all that was asked for has come. Else the rest is fetched in the next turn of the worker's loop.

        The log may hold hours of records that were not processed. Other slots of this worker have their turns between.

        Raises:
            LogError: nothing came. The log may not show its newest records yet, so the request is repeated later.
        """
        del count, asked
        intake = self.shared.intake
        if intake.scanned >= self._target:
            return self._read_up(now)
        if intake.scanned == before:
            raise LogError(f"{TUPLES}/{self.shared.slot_id}: nothing came of {before}..{self._target}")
        return STAY

    def _read_up(self, now: float) -> StageTurn:
        """Go on: the log has been read to its end."""
        del now
        return STAY

    def _give_up(self, now: float, why: str) -> StageTurn:
        if self.shared.scan.epoch > self.promotion.epoch:
            self.shared.succession.give_time(now)  # silence before now does not count against a new owner
        return StageTurn([act.Note("promotion given up", why)], ReplicaStage.WATCH)

    def _go_on(self, stage: ReplicaStage) -> StageTurn:
        return StageTurn((), stage, self.promotion)


class SurveyStage(Promoting, GatheringStage):
    """Reads the log to its end without processing it, and looks whether the slot may still be claimed."""

    kind = ReplicaStage.SURVEY

    def enter(self, now: float) -> list[act.Action]:
        return self.shared.requests.ask(now, act.AskEnd())

    def on_failed(self, now: float) -> StageTurn:
        super().on_failed(now)
        return StageTurn((), ReplicaStage.WATCH)  # when the log answers again, the owner may be heard again

    def _read(self, first: int, now: float) -> StageTurn:
        if (turn := self._is_gone(first, now)) is not None:
            return turn
        self.shared.processor.fault.end()
        return self._fetch_to(self._target, now)

    def _read_up(self, now: float) -> StageTurn:
        return self._claim(now)

    def _at_checked(self, now: float) -> StageTurn:
        return self._claim(now)

    def _claim(self, now: float) -> StageTurn:
        shared, scan, intake = self.shared, self.shared.scan, self.shared.intake
        newer = scan.epoch > self.promotion.epoch and scan.owner != self.promotion.old_owner
        if newer and not shared.succession.came_late:
            return self._give_up(now, f"{scan.owner} owns it since epoch {scan.epoch}")
        if shared.trust.blank and shared.held(now):
            return self._again("another node holds the slot after all", now)
        if intake.breaks:
            return StageTurn(shared.requests.ask(now, act.CheckRecords(*intake.doubtful())))
        return self._go_on(ReplicaStage.CLAIM)


class ClaimStage(Promoting):
    """Appends this node's claim (an Ownership record), and reads until its own or another node's comes back."""

    kind = ReplicaStage.CLAIM
    checks = True

    def enter(self, now: float) -> list[act.Action]:
        shared, scan, promotion = self.shared, self.shared.scan, self.promotion
        founding = self._founding()
        blank = founding is not None and founding.blank
        epoch = max(shared.succession.epoch, shared.intake.seen_epoch) if blank else scan.epoch
        generation = 0 if founding is not None else scan.generation
        promotion.claimed, promotion.claimed_at = epoch + 1, now
        promotion.deadline = now + READ_BACK_S
        claim = Ownership(
            epoch=promotion.claimed,
            node=shared.node,
            generation=generation or shared.new_generation(),
            first_step=self._first_step(blank=blank),
            settings_hash=shared.wish.config.hash,
            founding=founding,
        )
        return [act.Append(control(ownership=claim))]

    def _due(self, now: float) -> StageTurn:
        if now > self.promotion.deadline:
            self.shared.succession.given_up = self.promotion.claimed
            return self._give_up(now, "the claim did not come back")
        return super()._due(now)

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        del first
        return self._fetch_to(end, now)

    def _read_up(self, now: float) -> StageTurn:
        shared, scan, promotion = self.shared, self.shared.scan, self.promotion
        if scan.epoch < promotion.claimed:
            return STAY
        if scan.owner != shared.node or scan.epoch > promotion.claimed:
            return self._give_up(now, f"{scan.owner} was first")
        promotion.owned_at = now
        promotion.catch_up_to = shared.intake.scanned
        return self._go_on(ReplicaStage.TAIL)

    def _founding(self) -> Founding | None:
        """Return what the claim declares if it begins a new generation; None = the generation goes on."""
        shared, trust, level0 = self.shared, self.shared.trust, self.shared.level0
        if not (shared.doubted or shared.succession.lost):
            return None
        blank = trust.blank or shared.scan.epoch == 0
        begin = shared.slot.position
        lost_from = begin if level0 is None or not trust.blank else min(level0.offset, begin)
        reason = trust.contradiction or "neither an owner nor a context was left"
        return Founding(begin=begin, blank=blank, lost_from=lost_from, lost_to=trust.lost_to, reason=reason)

    def _first_step(self, *, blank: bool) -> int:
        """Return the first step of a new slot: the oldest one that an edge has sent, if it is near the clock's step.

        The clock is the time at which the log appended its newest record. In a blank generation (one without a state to
        go on from) it is the time of the first batch, since the log may have waited for days.
        """
        intake, steps = self.shared.intake, self.shared.settings.steps
        since_us = intake.first_us if blank and intake.first_us else intake.appended_us
        clock_step = (since_us or self.shared.wall_us) // self.shared.wish.config.slide_us + 1
        oldest = intake.oldest_step
        reach = steps.max_skew_steps + round(SEEN_S / steps.slide_s)
        if oldest is not None and clock_step - reach <= oldest <= clock_step:
            return oldest
        return clock_step


class TailStage(Promoting):
    """Owns the slot according to the log, and asks which output is the last in `recovered`."""

    kind = ReplicaStage.TAIL

    def enter(self, now: float) -> list[act.Action]:
        return self.shared.requests.ask(now, self.shared.read_tail())

    def _due(self, now: float) -> StageTurn:
        return StageTurn(self.shared.requests.ask(now, self.shared.read_tail()))

    def _at_tail(self, generation: int, name: Name, appended_us: int, now: float) -> StageTurn:
        shared, promotion = self.shared, self.promotion
        tail = promotion.tail = name if generation == shared.scan.generation else NO_NAME
        processed = name.offset < shared.slot.position
        if tail != NO_NAME and (
            (processed and appended_us and shared.silent.contradicts(name, appended_us))
            or not shared.intake.caused(name.offset, appended_us)
        ):
            return self._foreign_output(name, now)
        suspects = promotion.suspects if promotion.proven else None
        if suspects is not None and tail.offset < suspects[0] and not shared.intake.claims(suspects[0]):
            return self._go_on(ReplicaStage.BURY)
        return self._go_on(ReplicaStage.OWN)


class BuryStage(Promoting):
    """Owns the slot according to the log, and sets aside the record on which two owners died.

    It appends a Quarantine and reads until that comes back.
    """

    kind = ReplicaStage.BURY

    def enter(self, now: float) -> list[act.Action]:
        promotion = self.promotion
        promotion.deadline = now + READ_BACK_S
        offset = promotion.suspects[0] if promotion.suspects is not None else -1
        letter = Quarantine(epoch=self.shared.scan.epoch, offset=offset)
        return [
            act.Note("quarantine", f"two owners died on the record at offset {offset}"),
            act.Append(control(quarantine=letter)),
        ]

    def _due(self, now: float) -> StageTurn:
        return self._go_on(ReplicaStage.BURY) if now > self.promotion.deadline else super()._due(now)

    def _at_end(self, first: int, end: int, now: float) -> StageTurn:
        del first
        return self._fetch_to(end, now)

    def _read_up(self, now: float) -> StageTurn:
        scan, suspects = self.shared.scan, self.promotion.suspects
        if scan.owner != self.shared.node:
            return self._give_up(now, f"{scan.owner} took over")
        if suspects is not None and suspects[0] in scan.quarantined:
            return self._go_on(ReplicaStage.OWN)
        return STAY
