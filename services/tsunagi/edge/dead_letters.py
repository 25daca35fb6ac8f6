"""Readings that an edge cannot use are written to the topic `dead-letters`, and all of them are counted by reason.

The key of a letter names its reading, so that a reader of the topic drops repeats. It is "edge/row/sensor" for a
reading of a CSV; for a live reading it is "edge/kafka/topic/partition/offset", "edge/mqtt/incarnation/number" or
"edge/lines/incarnation/number". `DeadLetter.topic` is "source"; `DeadLetter.offset` is the row, the offset in the topic
that was read, or the number.

Every unusable reading of a live source gets a letter. Letters of a CSV, which anybody can read again, are limited in
rate.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import structlog

from tsunagi.edge.decode import FOREIGN, ONLY_COUNTED
from tsunagi.edge.source import Unusable
from tsunagi.runtime.clock import Clock
from tsunagi.runtime.log import DEAD_LETTERS, Producer
from tsunagi.runtime.messages import VERSION, DeadLetter

TOPIC = "source"
"""Topic that a letter names where the message came from an edge's source, and not from one of the log's topics."""
RATE = 10.0
"""Most letters a second that an edge writes about a CSV, on average. A file that holds nothing but rubbish must not
fill the log; the readings beyond this rate are only counted."""
BURST = 100.0
"""Most letters that an edge writes at once after a quiet time, so that the first unusable readings are all kept."""
MAX_VALUE_BYTES = 65536
"""A letter keeps this many bytes of its message, from the first."""
MAX_WAITING_BYTES = 8 << 20
"""Letters of this many bytes in all may wait while the log does not answer. When they are more, the edge stops reading
its source, so that its memory does not fill."""
_LOG_INTERVAL_S = 5.0
"""Shortest time between two lines in the edge's own log about unusable readings, in seconds."""
_EXPECTED = ONLY_COUNTED | FOREIGN
"""Reasons that are no cause for a warning where they get no letter: the user has settled that they are only counted."""


class DeadLetters:
    """Counts unusable readings and writes letters about them.

    Args:
        rate: most letters a second on average, with `BURST` at once; readings beyond it are counted and get no letter.
            None means that every reading gets one.

    Attributes:
        counts: number of unusable readings by reason, with a letter or without one.
        unwritten: how many of them have no letter because of `rate`.
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
        self._grave = False  # something has come since the last line in the log that may need somebody's attention
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
        """Whether so many letters wait for the log that the source should not be read any further."""
        return self._waiting_bytes >= MAX_WAITING_BYTES

    def write(self, item: Unusable) -> None:
        """Count an unusable reading, and write its letter if it is to have one and `rate` allows it."""
        self.counts[item.reason] += item.count
        now_s = self._clock.monotonic()
        if item.letter:
            self._write(item, now_s)
        self._grave |= item.letter or item.reason not in _EXPECTED
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            grave, self._grave = self._grave, False
            (self._logger.warning if grave else self._logger.info)(
                "unusable readings",
                **dict(self.counts),
                without_letter=self.unwritten,
                last=f"{item.reason}: {item.sensor[:80]}: {item.detail[:200]}",
            )

    def poll(self) -> None:
        """Hand waiting letters to the producer, until its queue is full."""
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
