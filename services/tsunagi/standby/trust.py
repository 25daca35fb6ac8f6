"""Whether what a replica knows is of the log that is there.

A log may lose its end in a power cut and grow past it again, be made anew, or lose its beginning to retention. Whoever
goes on from a context, or takes a slot over, compares the record before with the one that was read there; so does
whoever finds a break in the log's times between two reads (`tsunagi.standby.intake`), for there the log may have lost
what was read and have grown again. What was found stays said until a new generation declares it.
"""

from __future__ import annotations

from tsunagi.runtime.messages import Founding, Level1Ack

CHECK_S = 1.0
"""Least time between two comparisons while nothing waits for them, seconds."""

SHORT_S = 1.0
"""A log shorter than what was read of it is asked again after this time: a new leader may see its end late."""

PATIENCE_S = 5.0
"""A slot that nobody holds, and that nobody has a state of, is begun anew after this time: longer than any takeover."""

FORGIVEN_S = 15.0
"""An owner that lives for so long beside a contradiction has no part in it: it has compared what it read."""


class Spell:
    """How long something has been so, without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, now: float, seconds: float, *, so: bool) -> bool:
        """Take in whether it is so; return whether it has been for this time."""
        if not so:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= seconds


class Trust:
    """What is known of the log's identity. Times are monotonic seconds.

    Attributes:
        topic_id: of `tuples`, as the cluster says; "" = not known.
        contradiction: what was found, until a new generation begins; "" = nothing.
        contradictions, foundings: how many were found, and how many generations this node has begun.
        blank: there is neither an owner nor a context, and what retention has left is all that there is.
        begin: where the state begins if it is made of records.
        upto: contexts and acknowledgements beyond this offset hold only in `generation`; None = all hold.
        place: where in `contexts` to search from; None = from the end.
        acknowledged: of a context that is not there any more, or not whole; older ones may be; None = none is missing.
        searched: no context fits.
        lost_to: the end of the log that was, as far as known.
        restored: the state comes from a context, and the record before it has not been compared yet.
    """

    def __init__(self, now: float, topic_id: str = "") -> None:
        self.topic_id = topic_id
        self.contradiction = ""
        self.contradictions = 0
        self.foundings = 0
        self.blank = False
        self.begin = 0
        self.upto: int | None = None
        self.generation = 0
        self.place: int | None = None
        self.acknowledged: int | None = None
        self.searched = False
        self.lost_to = 0
        self.restored = False
        self._checked_at = now
        self._found_at = now
        self._short = Spell()
        self._outputs_short = Spell()
        self._forsaken = Spell()

    def usable(self, offset: int, generation: int) -> bool:
        """Return whether a context or an acknowledgement of this place may be of the log that is there."""
        return self.upto is None or offset <= self.upto or (generation == self.generation != 0)

    def due(self, now: float) -> bool:
        """Return whether there is time to compare; if so, the next time is `CHECK_S` away."""
        if now - self._checked_at < CHECK_S:
            return False
        self._checked_at = now
        return True

    def short(self, now: float, *, is_short: bool) -> bool:
        """Return whether the log has been shorter than what was read of it for long enough to be believed."""
        return self._short.lasts(now, SHORT_S, so=is_short)

    def outputs_short(self, now: float, *, is_short: bool) -> bool:
        """Return whether `recovered` has lacked an output that had arrived for long enough to be believed."""
        return self._outputs_short.lasts(now, SHORT_S, so=is_short)

    def forsaken(self, now: float, *, held: bool) -> bool:
        """Return whether the slot has been without anybody who holds it for long enough."""
        return self._forsaken.lasts(now, PATIENCE_S, so=not held)

    def contradict(self, why: str, upto: int, lost_to: int, now: float) -> None:
        """The log is not the one that was read: nothing beyond `upto` is believed."""
        self.contradiction, self._found_at = why, now
        self.contradictions += 1
        self.upto = upto if self.upto is None else min(upto, self.upto)
        self.generation = 0
        self.lost_to = max(lost_to, self.lost_to)

    def forgive(self, now: float) -> None:
        """Another owner lives and has found nothing: what was read here alone was wrong."""
        if self.contradiction and now - self._found_at > FORGIVEN_S:
            self.contradiction, self.upto = "", None

    def renew(self) -> None:
        """The state is built anew."""
        self.restored = self.searched = self.blank = False
        self.acknowledged = None
        self._short, self._outputs_short, self._forsaken = Spell(), Spell(), Spell()

    def forget_context(self, level1: Level1Ack | None) -> None:
        """The context that was acknowledged so cannot be had, but older ones may; None = no older one was found."""
        if level1 is None:
            self.searched = True
        else:
            self.place, self.acknowledged = level1.context_offset - 1, level1.offset

    def begin_blank(self, first: int) -> None:
        """Nobody has the slot's state, and retention has left the log from this offset on."""
        self.lost_to = max(self.lost_to, first)
        self.blank = True

    def founded(self, founding: Founding, generation: int, *, by_us: bool) -> None:
        """A new generation has begun: what was lost is declared."""
        self.foundings += by_us
        self.contradiction, self.blank, self.lost_to = "", False, 0
        self.upto = -1 if founding.blank else founding.begin
        self.begin = founding.begin if founding.blank else 0
        self.generation = generation
