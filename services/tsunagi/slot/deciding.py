"""The interface of deciders: what they decide depends on time or measurements, so only a slot's owner may decide it.

A decision takes effect for all replicas, the owner included, when its control record is read back from the slot's log
(architecture, "Ownership"). The standby protocol asks the deciders in turn and does not know how they decide.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tsunagi.recovery.model import Model
from tsunagi.runtime.messages import VERSION, HelperRequest, LogRecord, TupleBatch
from tsunagi.slot.models import Announce
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish

READ_BACK_S = 1.0
"""A control record is written again if it has not been read back within this time, seconds."""

Decision = LogRecord | HelperRequest | Model
"""A control record for the slot's log, a request for helpers for the topic `plan`, or a model for the store."""


@dataclass(frozen=True, slots=True)
class OwnerView:
    """What an owner knows when it decides. It has then processed all records that it has read.

    Attributes:
        slot: the slot's state.
        wish: what the plan wishes for the slot.
        now: monotonic seconds of the owner's clock, like all times here.
        connected: whether the owner's own heartbeats come back. If not, heartbeats of edges do not arrive either.
        lost: edges whose heartbeats have stopped, each with the time at which its next heartbeat should have come.
        silent: returns whether the heartbeats of an edge (of any slot) have stopped.
        model_ready: whether the model of the wish is ready on this node. Until it is, the slot would wait for it.
    """

    slot: Slot
    wish: Wish
    now: float
    connected: bool = True
    lost: Mapping[str, float] = field(default_factory=dict)
    silent: Callable[[str], bool] = lambda _edge: False
    model_ready: bool = True

    @property
    def epoch(self) -> int:
        """The epoch (number of the ownership) that a control record written now carries."""
        return self.slot.register.epoch


class Decider(ABC):
    """Takes one kind of decision for a slot's owner, as long as the node owns the slot."""

    @property
    def urgent(self) -> bool:
        """Whether it decides again as soon as its last record is read back, so that the loop should not wait."""
        return False

    @abstractmethod
    def decide(self, view: OwnerView) -> Sequence[Decision]:
        """Return the decisions to write now."""

    def on_batch(self, batch: TupleBatch, now: float) -> None:
        """Take in that the owner has processed a new batch, which is not a repeat."""
        del batch, now

    def on_late(self, batch: TupleBatch) -> None:
        """Take in that the owner has processed a batch whose step had closed before."""
        del batch

    def on_leaving(self, edge: str, incarnation: int, step: int) -> None:
        """Take in that a process of an edge has stopped in good order after it had delivered this step."""
        del edge, incarnation, step

    def on_stored(self, sha256: str, slot: Slot) -> None:
        """Take in that the store now has a model that this owner wanted to be stored."""
        del sha256, slot

    def stop(self, slot: Slot) -> None:
        """End: this node does not own the slot any more."""
        del slot


MakeDeciders = Callable[[float, Announce], Sequence[Decider]]
"""Makes the deciders of a new owner from the present time and the function that announces long work."""


class Repeats:
    """Says when a control record may be written. It is repeated until it is read back, but not at each turn."""

    def __init__(self) -> None:
        self._written_at: dict[str, float] = {}

    def due(self, what: str, now: float) -> bool:
        """Return whether the record named `what` may be written now; if so, it counts as written."""
        if now - self._written_at.get(what, -math.inf) < READ_BACK_S:
            return False
        self._written_at[what] = now
        return True


def control(**body: object) -> LogRecord:
    """Return a control record with this body."""
    return LogRecord(version=VERSION, **body)  # type: ignore[arg-type]
