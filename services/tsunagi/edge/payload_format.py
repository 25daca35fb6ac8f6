"""What edges know of the format of live messages ([source] format)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from tsunagi.edge.inbox import Message


class SourceAwayError(Exception):
    """Something that messages cannot be read without does not answer; the text says what."""


class PayloadFormat(ABC):
    """Makes of messages the objects in which `[[source.fields]]` find readings.

    It is given the messages of one source in the order in which they came.

    Attributes:
        ask: publishes (topic, payload) where the messages come from; None = nothing may be published there.
    """

    ask: Callable[[str, bytes], None] | None = None

    @abstractmethod
    def bodies(self, message: Message) -> Iterator[object]:
        """Yield what a message has as JSON values, and a `ReadingFault` for each part that cannot be read."""

    def fetch(self, payload: bytes) -> None:  # noqa: B027 - most formats need nothing
        """Get what `bodies` will need from elsewhere. A feed's thread calls it, so that the edge's loop never waits.

        Raises:
            SourceAwayError: it cannot be had now.
        """
