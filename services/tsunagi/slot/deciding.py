"""What only a slot's owner may decide, since it hangs on time or on what the owner alone measures.

A decision takes effect for everybody, the owner included, when its control record is read back from the slot's log
(architecture, "Ownership"). The standby protocol asks its deciders in turn; what they decide by is their own affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tsunagi.recovery.model import Model
from tsunagi.runtime.messages import VERSION, HelperRequest, LogRecord, TupleBatch
from tsunagi.slot.models import Announce
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish

READ_BACK_S = 1.0
"""A control record that has not been read back within this time, in seconds, is written again."""

Decision = LogRecord | HelperRequest | Model
"""A control record for the slot's log, a request for helpers for `plan`, or a model for the store."""


@dataclass(frozen=True, slots=True)
class OwnerView:
    """What an owner sees when it decides; it has processed every record that it has read.

    Attributes:
        now: monotonic seconds of the owner's clock, as all times here.
        connected: the owner's own heartbeats come back to it. While they do not, those of the edges do not come either.
        lost: edges whose heartbeats have stopped, and when the next heartbeat of each should have come.
        silent: tells of an edge of any slot whether its heartbeats have stopped.
    """

    slot: Slot
    wish: Wish
    now: float
    connected: bool = True
    lost: Mapping[str, float] = field(default_factory=dict)
    silent: Callable[[str], bool] = lambda _edge: False

    @property
    def epoch(self) -> int:
        """The epoch that a control record written now carries."""
        return self.slot.register.epoch


class Decider:
    """One kind of decision of a slot's owner, from its promotion to its fall."""

    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return what is to be written now."""
        raise NotImplementedError

    def on_batch(self, batch: TupleBatch, now: float) -> None:
        """The owner has processed a batch that an edge had not delivered before."""

    def on_late(self, batch: TupleBatch) -> None:
        """The owner has processed a batch whose step was closed already."""

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        """A process of an edge has stopped in good order after it had delivered this step."""

    def on_stored(self, sha256: str, slot: Slot) -> None:
        """The store has a model that this owner asked to have stored."""

    def stop(self, slot: Slot) -> None:
        """The owner has read of its fall."""


MakeDeciders = Callable[[float, Announce], Sequence[Decider]]
"""Makes the deciders of a new owner, given the time and what it announces long work by (`Slot`)."""


class Repeats:
    """Tells when a control record may be written: it is repeated until it is read back, but not at each turn."""

    def __init__(self) -> None:
        self._written_at: dict[str, float] = {}

    def due(self, what: str, now: float) -> bool:
        """Return whether `what` may be written now, and count it as written if so."""
        if now - self._written_at.get(what, -math.inf) < READ_BACK_S:
            return False
        self._written_at[what] = now
        return True


def control(**body: object) -> LogRecord:
    """Return a control record with this body."""
    return LogRecord(version=VERSION, **body)  # type: ignore[arg-type]
