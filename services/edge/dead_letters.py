"""Readings that an edge could not use go to `dead-letters`, at a bounded rate; all of them are counted.

Key: "edge/row/sensor", so that a reader drops repeats by name. `DeadLetter.topic` is "source", `offset` the row.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import structlog

from services.runtime.clock import Clock
from services.runtime.log import DEAD_LETTERS, Producer
from services.runtime.messages import VERSION, DeadLetter

TOPIC = "source"
RATE = 10.0
BURST = 100.0
_LOG_INTERVAL_S = 5.0


class DeadLetters:
    """Writes at most `RATE` letters a second (`BURST` at once); the rest is counted and said so in the log.

    Attributes:
        counts: unusable readings by reason, whether written or not.
        unwritten: how many of them have no letter.
    """

    def __init__(self, producer: Producer, edge: str, clock: Clock, logger: structlog.stdlib.BoundLogger) -> None:
        self.counts: Counter[str] = Counter()
        self.unwritten = 0
        self._producer = producer
        self._edge = edge
        self._clock = clock
        self._logger = logger
        self._allowance = BURST
        self._filled_s = clock.monotonic()
        self._logged_s = -math.inf
        self._waiting: deque[tuple[bytes, bytes]] = deque()

    def write(self, reason: str, sensor: str, row: int, detail: str, value: str) -> None:
        """Count a reading and write its letter, if the rate allows."""
        self.counts[reason] += 1
        now_s = self._clock.monotonic()
        self._allowance = min(BURST, self._allowance + (now_s - self._filled_s) * RATE)
        self._filled_s = now_s
        if self._allowance < 1.0:
            self.unwritten += 1
        else:
            self._allowance -= 1.0
            key = f"{self._edge}/{row}/{sensor}".encode()
            letter = DeadLetter(
                version=VERSION,
                topic=TOPIC,
                offset=row,
                reason=reason,
                detail=f"edge {self._edge!r}, sensor {sensor!r}, row {row}: {detail}",
                key=key,
                value=value.encode()[:65536],
            )
            self._waiting.append((key, letter.SerializeToString()))
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            self._logger.warning("unusable readings", **dict(self.counts), without_letter=self.unwritten)

    def poll(self) -> None:
        """Hand the letters to the producer; what its queue has no room for waits."""
        while self._waiting:
            key, value = self._waiting[0]
            try:
                self._producer.send(DEAD_LETTERS, 0, key, value)
            except BufferError:
                return
            self._waiting.popleft()
