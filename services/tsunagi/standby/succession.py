"""Who owns a slot, as far as a node has read it in the slot's log or heard it from others."""

from __future__ import annotations

from tsunagi.standby.intake import Intake


class Succession:
    """The newest owner known. Times are monotonic seconds.

    An acknowledgement or a heartbeat may tell of an owner before its promotion is read; but only what is read counts.

    Attributes:
        since: when the newest owner was first known; silence counts from then on at the earliest.
        term: the epoch that this node is, or was last, the primary of; 0 = of none yet.
    """

    def __init__(self, intake: Intake, now: float) -> None:
        self.since = now
        self.term = 0
        self._intake = intake
        self._heard_epoch = 0
        self._heard_owner = ""
        self._watched_epoch = 0

    @property
    def epoch(self) -> int:
        """The newest epoch known."""
        return max(self._intake.scan.epoch, self._heard_epoch)

    @property
    def owner(self) -> str:
        """The owner of the newest epoch known; "" = nobody has owned the slot."""
        return self._intake.scan.owner if self._intake.scan.epoch >= self._heard_epoch else self._heard_owner

    @property
    def lost(self) -> bool:
        """Whether the log has never heard of epochs that are known: it is another log."""
        return self._intake.scan.epoch == 0 and self._heard_epoch > 0

    @property
    def outdated(self) -> bool:
        """Whether a newer owner than this node is known although the log has not told of it."""
        return self._heard_epoch > self.term

    def learn(self, epoch: int, owner: str, now: float) -> None:
        """Take in that somebody owns the slot."""
        if epoch > self.epoch:
            self._heard_epoch, self._heard_owner = epoch, owner
            self.since = now

    def own(self, node: str) -> None:
        """This node's own promotion was read back."""
        self.term = self._heard_epoch = self._intake.scan.epoch
        self._heard_owner = node

    def give_time(self, now: float) -> None:
        """Let nobody's silence before now count."""
        self.since = now

    def watch(self, now: float) -> None:
        """Give a new owner, of whom nothing may have been heard yet, all its time."""
        if self.epoch > self._watched_epoch:
            self._watched_epoch, self.since = self.epoch, now
