"""Whether what a replica knows belongs to the log that is there now.

A log may lose its end in a power cut and grow again, be made anew, or lose its beginning to retention. So a node that
goes on from a context (the slot's whole state at one offset of the log) or takes a slot over compares the record before
that place with the digest of the one that was read there. It does the same where the log's times make a jump between
two records (`tsunagi.standby.intake`), since the log may have lost its end and grown again there. A contradiction stays
noted until a new *generation* of the log declares it. The generation is the number of the slot's log.
"""

from __future__ import annotations

from tsunagi.runtime.messages import Level1Ack
from tsunagi.slot.ownership import Register

CHECK_S = 1.0
"""Least time between two comparisons of records behind a jump in the log's times, seconds."""

SHORT_S = 1.0
"""A log that is shorter than what was read of it is believed to be so after this time, seconds.

After an election the new leader may name a smaller end for a moment.
"""

PATIENCE_S = 5.0
"""A slot is begun anew after nobody has held it or its state for this time, seconds. No takeover takes so long."""

FORGIVEN_S = 15.0
"""A contradiction is dropped if another owner has lived on for this time, seconds: it has made the same comparisons."""


class Spell:
    """Measures for how long a condition has held without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, now: float, seconds: float, *, so: bool) -> bool:
        """Take in whether the condition holds now; return whether it has held for so many seconds."""
        if not so:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= seconds


class Trust:
    """What is known of the log's identity. Times are monotonic seconds.

    Attributes:
        topic_id: the id of the topic `tuples`, as the cluster tells it; "" = not known.
        contradiction: how the log differs from what was read, until a new generation begins; "" = it does not.
        contradictions: how many contradictions were found.
        foundings: how many generations this node has begun.
        blank: there is neither an owner nor a context, so the state can only be made of what retention has left.
        begin: the offset where the state begins if it is made without a context.
        upto: contexts and acknowledgements beyond this offset count only if they are of `generation`; None = all count.
        generation: the generation that began last, see `upto`; 0 = none.
        limit: none beyond this offset count, since the log is contradicted; None = it is not.
        place: the offset of `contexts` from which to search backwards; None = from the end.
        acknowledged: the position of an acknowledged context that cannot be had (an older one may be there); None =
            none is missing.
        searched: whether a search for older contexts has found none that fits.
        lost_to: the end that the log had before it lost records, as far as known.
        restored: whether the state is that of a context and the record before it has not been compared yet.
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
        self.limit: int | None = None
        self.place: int | None = None
        self.acknowledged: int | None = None
        self.searched = False
        self.lost_to = 0
        self.restored = False
        self._known: set[int] = set()  # generations that had begun before the contradiction, or that were read
        self._right_to = 0  # the contradicted log is right below this offset
        self._checked_at = now
        self._found_at = now
        self._short = Spell()
        self._outputs_short = Spell()
        self._forsaken = Spell()

    def usable(self, offset: int, generation: int) -> bool:
        """Return whether a context or an acknowledgement with this offset may belong to the log that is there."""
        if self.limit is not None and offset > self.limit:
            return False
        return self.upto is None or offset <= self.upto or (generation == self.generation != 0)

    def bounds(self) -> list[int]:
        """Return the offsets beyond which no context is searched for, as far as there are any."""
        known = (self.upto, self.limit, self.acknowledged)
        return [offset for offset in known if offset is not None]

    def due(self, now: float) -> bool:
        """Return whether a comparison is due; if so, the next one is due `CHECK_S` later."""
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
        """Return whether nobody has held the slot or its state for `PATIENCE_S`."""
        return self._forsaken.lasts(now, PATIENCE_S, so=not held)

    def contradict(self, why: str, upto: int, lost_to: int, now: float, *, right_to: int, scan: Register) -> None:
        """Take in that the log is not the one that was read.

        Args:
            why: how it differs.
            upto: contexts and acknowledgements beyond this offset are not believed.
            lost_to: the log had reached to this offset at least.
            right_to: the log that is there has not been found to differ below this offset.
            scan: the ownership as of what was read.
        """
        self.contradiction, self._found_at = why, now
        self.contradictions += 1
        self.limit = upto if self.limit is None else min(upto, self.limit)
        self.lost_to = max(lost_to, self.lost_to)
        self._right_to = right_to
        self._known.add(scan.generation)
        if scan.founding is not None and not 0 <= scan.founded_at < right_to:
            # The log may have lost the record that began the generation. Then none of its contexts counts.
            self.upto = upto if self.upto is None else min(upto, self.upto)
            self.generation = 0

    def forgive(self, now: float) -> None:
        """Drop a contradiction that this node has found if another owner has lived on for `FORGIVEN_S`."""
        if self.contradiction and now - self._found_at > FORGIVEN_S:
            self.contradiction, self.limit = "", None
            if not self.generation:  # what the contradiction itself has set
                self.upto = None

    def renew(self) -> None:
        """Reset what belongs to the state that was thrown away."""
        self.restored = self.searched = self.blank = False
        self.acknowledged = None
        self._short, self._outputs_short, self._forsaken = Spell(), Spell(), Spell()

    def forget_context(self, level1: Level1Ack | None) -> None:
        """Take in that the context that this Level-1-Ack names cannot be had. Older ones are searched for next.

        A Level-1-Ack names a context whose outputs are all in `recovered`. None = a search has found no context.
        """
        if level1 is None:
            self.searched = True
        else:
            self.place, self.acknowledged = level1.context_offset - 1, level1.offset

    def begin_blank(self, first: int) -> None:
        """Take in that nobody has the slot's state, and that retention has left the log only from this offset on."""
        self.lost_to = max(self.lost_to, first)
        self.blank = True

    def founded(self, scan: Register, *, by_us: bool) -> None:
        """Take in that a new generation has begun, which declares what was lost; `by_us` = this node began it.

        Where the state is built anew, the log's earlier generations are read once more. They declare nothing of what
        has been lost since.
        """
        founding = scan.founding
        assert founding is not None  # noqa: S101 - the caller has seen it
        self.blank = False
        self.upto = -1 if founding.blank else founding.begin
        self.begin = founding.begin if founding.blank else 0
        self.generation = scan.generation
        known = scan.generation in self._known
        self._known.add(scan.generation)
        if known and scan.founded_at < self._right_to:
            return
        self.foundings += by_us and not known
        self.contradiction, self.limit, self.lost_to = "", None, 0
