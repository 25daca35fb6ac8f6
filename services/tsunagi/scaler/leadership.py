"""If several scalers run by mistake, only one acts: the one that was started last.

The others end when they hear of it (`tsunagi.runtime.heartbeat.Heartbeats.heard`). This is not a lock. If two act at
once (after a network was cut and healed), the serial numbers of the plan let the first writer of each wish win, and the
logs of the slots alone say who owns what.
"""

from __future__ import annotations

from tsunagi.runtime.messages import Heartbeat

LISTEN_S = 1.0
"""A scaler listens for this many seconds before it acts. A scaler that was started before hears of it meanwhile, and
ends."""


class Leadership:
    """The other scalers that have been heard. Times are monotonic seconds of the caller's clock.

    Args:
        node: the name that all scalers have.
        incarnation: the incarnation of this scaler.
        dead_s: a scaler that is silent for this many seconds counts no more.
    """

    def __init__(self, node: str, incarnation: int, dead_s: float) -> None:
        self._node = node
        self._incarnation = incarnation
        self._dead_s = dead_s
        self._heard: dict[int, float] = {}
        self._listens_since: float | None = None

    def on_heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Take note of any heartbeat. That this scaler's own ones come back shows that it would hear others."""
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
        """Return whether this scaler is the one that acts."""
        self._heard = {other: at for other, at in self._heard.items() if now - at < self._dead_s}
        if self._listens_since is None or now - self._listens_since < LISTEN_S:
            return False
        return all(other < self._incarnation for other in self._heard)
