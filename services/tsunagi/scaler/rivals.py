"""Several scalers may run by mistake. One of them acts: the one that was started last.

The others end when they hear of it (`tsunagi.runtime.heartbeat.Heartbeats.heard`). It is a courtesy, not a lock:
should two act at once (a network that is cut and heals), the plan's serial numbers let the first writer of each wish
win, and the slots' logs alone say who owns what.
"""

from __future__ import annotations

from tsunagi.runtime.messages import Heartbeat

LISTEN_S = 1.0
"""So long a scaler listens before it acts: one that was started before it hears of it meanwhile, and ends."""


class Rivals:
    """The other scalers heard of. Times are monotonic seconds of the caller's clock.

    Args:
        node: the name that all scalers have.
        incarnation: this one's.
        dead_s: one that is silent for so long counts no more.
    """

    def __init__(self, node: str, incarnation: int, dead_s: float) -> None:
        self._node = node
        self._incarnation = incarnation
        self._dead_s = dead_s
        self._heard: dict[int, float] = {}
        self._listens_since: float | None = None

    def on_heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Take in any heartbeat; our own coming back is what tells that others would be heard."""
        if beat.node != self._node or beat.role != "scaler":
            return
        if beat.incarnation == self._incarnation:
            if self._listens_since is None:
                self._listens_since = now
        elif beat.leaving:
            self._heard.pop(beat.incarnation, None)
        else:
            self._heard[beat.incarnation] = now

    def leads(self, now: float) -> bool:
        """Return whether this scaler is the one to act."""
        self._heard = {other: at for other, at in self._heard.items() if now - at < self._dead_s}
        if self._listens_since is None or now - self._listens_since < LISTEN_S:
            return False
        return all(other < self._incarnation for other in self._heard)
