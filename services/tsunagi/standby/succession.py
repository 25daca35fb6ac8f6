"""Who owns a slot, as far as a node has read it in the slot's log or heard it from other nodes.

The *epoch* is the number of an ownership: each takeover adds one.
"""

from __future__ import annotations

from tsunagi.standby.intake import Intake


class Succession:
    """The newest owner known. Times are monotonic seconds.

    An acknowledgement or a heartbeat may name an owner before its claim is read in the log. Only the log decides.

    Attributes:
        since: when the newest owner was first known. Silence before that does not count.
        term: the epoch in which this node owns the slot, or owned it last; 0 = it has never owned it.
        given_up: the epoch that this process claimed last without reading the claim back in time; 0 = none.
    """

    def __init__(self, node: str, intake: Intake, now: float) -> None:
        self.since = now
        self.term = 0
        self.given_up = 0
        self._node = node
        self._intake = intake
        self._heard_epoch = 0
        self._heard_owner = ""
        self._watched_epoch = 0

    @property
    def epoch(self) -> int:
        """The newest epoch that was read in the log or heard from others."""
        return max(self._intake.scan.epoch, self._heard_epoch)

    @property
    def owner(self) -> str:
        """The owner of the newest epoch known; "" = nobody has owned the slot."""
        return self._intake.scan.owner if self._intake.scan.epoch >= self._heard_epoch else self._heard_owner

    @property
    def lost(self) -> bool:
        """Whether other nodes name an epoch but the log read so far has none: then it is another log."""
        return self._intake.scan.epoch == 0 and self._heard_epoch > 0

    @property
    def outdated(self) -> bool:
        """Whether others have named a newer owner than this node, whose claim has not been read yet."""
        return self._heard_epoch > self.term

    @property
    def came_late(self) -> bool:
        """Whether the claim that was given up stands in the log after all, and is the newest.

        Then this node is the owner for all others, and nobody acts as the owner until it does.
        """
        scan = self._intake.scan
        return scan.owner == self._node and 0 < scan.epoch == self.given_up

    def learn(self, epoch: int, owner: str, now: float) -> None:
        """Take in that a node owns the slot since this epoch, as others say."""
        if epoch > self.epoch:
            self._heard_epoch, self._heard_owner = epoch, owner
            self.since = now

    def own(self) -> None:
        """Take in that this node's own claim was read back."""
        self.term = self._heard_epoch = self._intake.scan.epoch
        self._heard_owner = self._node

    def give_time(self, now: float) -> None:
        """Let silence before now count against nobody."""
        self.since = now

    def watch(self, now: float) -> None:
        """Let silence before now not count against a new owner, of which nothing may have been heard yet."""
        if self.epoch > self._watched_epoch:
            self._watched_epoch, self.since = self.epoch, now
