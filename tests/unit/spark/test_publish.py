"""What a task sends comes in order, however full the producer's queue is. A record that is refused ends the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from tsunagi.runtime.log import Delivered, Log, LogError
from tsunagi_spark.publish import ResultPublisher


@dataclass
class NarrowProducer:
    """A log and its producer, whose queue has room for three records between two polls."""

    refuses: bytes = b""
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    _room: int = 3
    _reports: list[tuple[Delivered, LogError | None]] = field(default_factory=list)

    def producer(self) -> NarrowProducer:
        return self

    def send_run(self, _topic: str, partition: int, pairs: Sequence[tuple[bytes, bytes]], delivered: Delivered) -> int:
        count = min(self._room, len(pairs))
        self._room -= count
        self.taken += [(partition, key) for key, _ in pairs[:count]]
        if count == len(pairs):
            error = LogError("refused") if any(key == self.refuses for key, _ in pairs) else None
            self._reports.append((delivered, error))
        return count

    def poll(self, _timeout_s: float = 0.0) -> int:
        self._room = 3
        for delivered, error in self._reports:
            delivered(error, 0)
        self._reports = []
        return 0

    def flush(self, _timeout_s: float) -> int:
        return self.poll()


def test_records_of_a_partition_come_in_order_when_the_queue_is_full() -> None:
    log = NarrowProducer()
    out = ResultPublisher(cast(Log, log))
    for number in range(200):
        out.send("results", number % 2, b"%d" % number, b"x" * number)
    out.flush()
    for partition in range(2):
        keys = [key for place, key in log.taken if place == partition]
        assert keys == [b"%d" % number for number in range(partition, 200, 2)]
    assert out.bytes == sum(range(200))


def test_a_record_that_is_refused_is_an_error_at_the_latest_when_all_are_out() -> None:
    out = ResultPublisher(cast(Log, NarrowProducer(refuses=b"7")))
    for number in range(9):
        out.send("results", 0, b"%d" % number, b"")
    with pytest.raises(LogError, match="refused"):
        out.flush()
