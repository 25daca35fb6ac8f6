"""Readings that an edge could not use go to `dead-letters`; all of them are counted, by reason.

Key: "edge/row/sensor" for a row of a CSV, "edge/kafka/topic/partition/offset", "edge/mqtt/incarnation/number" or
"edge/lines/incarnation/number" for a live reading, so that a reader of the topic drops repeats by name.
`DeadLetter.topic` is "source"; `offset` is the row, the offset in the topic read, or the number.

Of a live source every letter is written; of a CSV, which anybody can read again, at a bounded rate.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import structlog

from tsunagi.edge.source import Unusable
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import DEAD_LETTERS, Producer
from tsunagi.runtime.messages import VERSION, DeadLetter

TOPIC = "source"
"""What a letter names as its topic where the message came from an edge's source, not from one of the log's topics."""
RATE = 10.0
BURST = 100.0
"""Letters a second that an edge writes at most, and letters at once after a quiet time. A source that sends nothing but
rubbish must not fill the log; the rest is counted."""
MAX_VALUE_BYTES = 65536
"""Bytes of a message that its letter keeps, from the first."""
MAX_WAITING_BYTES = 8 << 20
"""Bytes of letters that may wait while the log does not answer. A source that can be read again waits from then on."""
_LOG_INTERVAL_S = 5.0


class DeadLetters:
    """Writes the letters.

    Args:
        rate: letters a second at most (`BURST` at once); the rest is counted and said so in the log. None = no limit.

    Attributes:
        counts: unusable readings by reason, whether written or not.
        unwritten: how many of them have no letter because of the rate.
    """

    def __init__(
        self,
        producer: Producer,
        edge: str,
        clock: Clock,
        logger: structlog.stdlib.BoundLogger,
        rate: float | None = RATE,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.unwritten = 0
        self._producer = producer
        self._edge = edge
        self._clock = clock
        self._logger = logger
        self._rate = rate
        self._allowance = BURST
        self._filled_s = clock.monotonic()
        self._logged_s = -math.inf
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0

    @property
    def full(self) -> bool:
        """Whether so many letters wait for the log that the source should not be read on."""
        return self._waiting_bytes >= MAX_WAITING_BYTES

    def write(self, item: Unusable) -> None:
        """Count a reading and write its letter, if there is to be one and the rate allows."""
        self.counts[item.reason] += item.count
        now_s = self._clock.monotonic()
        if item.letter:
            self._write(item, now_s)
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            self._logger.warning(
                "unusable readings",
                **dict(self.counts),
                without_letter=self.unwritten,
                last=f"{item.reason}: {item.sensor[:80]}: {item.detail[:200]}",
            )

    def poll(self) -> None:
        """Hand the letters to the producer; what its queue has no room for waits."""
        while self._waiting:
            key, value = self._waiting[0]
            try:
                self._producer.send(DEAD_LETTERS, 0, key, value)
            except BufferError:
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(value)

    def _write(self, item: Unusable, now_s: float) -> None:
        if self._rate is not None:
            self._allowance = min(BURST, self._allowance + (now_s - self._filled_s) * self._rate)
            self._filled_s = now_s
            if self._allowance < 1.0:
                self.unwritten += item.count
                return
            self._allowance -= 1.0
        origin = item.origin
        if origin is None:
            key = f"{self._edge}/{item.number}/{item.sensor}"
            where = f"row {item.number}"
        else:
            key = f"{self._edge}/{origin.name}"
            where = origin.place
        letter = DeadLetter(
            version=VERSION,
            topic=TOPIC,
            partition=0 if origin is None else origin.partition,
            offset=item.number if origin is None else origin.offset,
            reason=item.reason,
            detail=f"edge {self._edge!r}, sensor {item.sensor[:200]!r}, {where}: {item.detail}",
            key=key.encode(),
            value=item.payload[:MAX_VALUE_BYTES],
        )
        value = letter.SerializeToString()
        self._waiting.append((letter.key, value))
        self._waiting_bytes += len(value)
