"""The one request to the broker that a replica may have outstanding."""

from __future__ import annotations

from tsunagi.standby import actions as act

RETRY_S = 0.2
"""After a request that failed, the next one is made this much later, seconds."""


class Requests:
    """Lets a replica have one outstanding request at a time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._retry_at = 0.0

    def ask(self, now: float, action: act.Action) -> list[act.Action]:
        """Note that a request is outstanding; return its action for the shell."""
        self._asked = now
        return [action]

    def sent(self, now: float) -> None:
        """Take in that the request goes out now. Its duration counts from here."""
        if self._asked is not None:
            self._asked = now

    def answered(self) -> float | None:
        """Take in that an answer has come; return when its request was sent, None = there was no request."""
        asked, self._asked = self._asked, None
        return asked

    def failed(self, now: float) -> None:
        """Take in that no answer will come; the next request waits for `RETRY_S`."""
        self._asked = None
        self.pause(now, RETRY_S)

    def pause(self, now: float, seconds: float) -> None:
        """Make no request for so many seconds."""
        self._retry_at = now + seconds

    def wait(self, now: float) -> bool:
        """Return whether no request may be made now: one is outstanding, or a pause is not over."""
        return self._asked is not None or now < self._retry_at

    def paused(self, now: float) -> bool:
        """Return whether a pause is not over."""
        return now < self._retry_at
