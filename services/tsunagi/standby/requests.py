"""What a replica has asked its shell for and not been answered yet."""

from __future__ import annotations

from tsunagi.standby import actions as act

RETRY_S = 0.2
"""After a request that the log has not answered the next one is made this much later, seconds."""


class Requests:
    """One request at a time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._retry_at = 0.0

    def ask(self, now: float, action: act.Action) -> list[act.Action]:
        """Make a request."""
        self._asked = now
        return [action]

    def sent(self, now: float) -> None:
        """The request goes out now: what was processed in the turn that asks for it took no part of its time."""
        if self._asked is not None:
            self._asked = now

    def answered(self) -> float | None:
        """Take in that an answer has come; return when its request was made, None = nothing was asked for."""
        asked, self._asked = self._asked, None
        return asked

    def failed(self, now: float) -> None:
        """Take in that no answer will come: try again a little later."""
        self._asked = None
        self.pause(now, RETRY_S)

    def pause(self, now: float, seconds: float) -> None:
        """Ask for nothing for so long."""
        self._retry_at = now + seconds

    def wait(self, now: float) -> bool:
        """Return whether nothing may be asked for now."""
        return self._asked is not None or now < self._retry_at

    def paused(self, now: float) -> bool:
        """Return whether the time since a failed request is not over."""
        return now < self._retry_at
