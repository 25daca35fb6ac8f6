"""Follows what was set aside: the topics `dead-letters` and `late`."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.log import DEAD_LETTERS, LATE, Log, Position, Record
from tsunagi.runtime.messages import DeadLetter, Late

READ_S = 0.2
"""Longest wait of a read, in seconds."""
READ_RECORDS = 2000
"""Most records that are read at once."""
BACK = 20_000
"""Records before the end of each topic that are read at the start."""
KEPT = 100
"""Dead letters that are shown, the newest."""
SHOWN_BYTES = 200
"""Bytes of a dead letter's value that are shown."""


class Asides:
    """What was set aside, counted; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._letters: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._late: Counter[tuple[str, str]] = Counter()
        self._first = {DEAD_LETTERS: 0, LATE: 0}
        self._ends = {DEAD_LETTERS: 0, LATE: 0}

    def begin(self, topic: str, first: int, counted: int) -> None:
        """Count anew the records of a topic from this offset on.

        Args:
            first: offset of the first record that the topic has.
            counted: offset of the first record that is counted.
        """
        with self._lock:
            self._first[topic], self._ends[topic] = counted, counted
            if topic == DEAD_LETTERS:
                self._reasons.clear()
                self._letters.clear()
            else:
                self._late.clear()

    def take(self, record: Record) -> None:
        """Count a record."""
        with self._lock:
            self._ends[record.topic] = record.offset + 1
            try:
                if record.topic == DEAD_LETTERS:
                    self._letter(decode(DeadLetter, record.value), record)
                else:
                    self._add_late(decode(Late, record.value))
            except UnusableError as error:
                self._reasons[record.topic, error.reason] += 1

    def _letter(self, letter: DeadLetter, record: Record) -> None:
        self._reasons[letter.topic, letter.reason] += 1
        self._letters.append(
            {
                "at_us": record.appended_us,
                "topic": letter.topic,
                "partition": letter.partition,
                "offset": letter.offset,
                "reason": letter.reason,
                "detail": letter.detail,
                "key": letter.key.decode("utf-8", "backslashreplace")[:SHOWN_BYTES],
                "value": shown(letter.value),
                "bytes": len(letter.value),
            }
        )

    def _add_late(self, late: Late) -> None:
        if late.HasField("batch"):
            self._late[late.batch.edge, late.reason] += len(late.batch.sensor) // 4
        else:
            self._late[f"slot {late.slot}", late.reason] += len(late.recovered.sensor) // 4

    def view(self) -> dict[str, Any]:
        """Return the counts, and the newest dead letters."""
        with self._lock:
            return {
                "reasons": [
                    {"topic": topic, "reason": reason, "count": count}
                    for (topic, reason), count in self._reasons.most_common()
                ],
                "letters": list(reversed(self._letters)),
                "late": [
                    {"edge": edge, "reason": reason, "values": count}
                    for (edge, reason), count in self._late.most_common()
                ],
                "counted_from": dict(self._first),
                "ends": dict(self._ends),
            }


class AsidesFollower:
    """A follower (`tsunagi.console.following`) of both topics."""

    def __init__(self, log: Log, asides: Asides) -> None:
        self._reader = log.reader()
        self._asides = asides
        places = []
        for topic in (DEAD_LETTERS, LATE):
            first, end = self._reader.range(topic, 0)
            begin = max(first, end - BACK)
            asides.begin(topic, first, begin)
            places.append(Position(topic, 0, begin))
        self._reader.assign(places)

    def turn(self) -> None:
        for record in self._reader.read(READ_RECORDS, READ_S):
            self._asides.take(record)

    def close(self) -> None:
        self._reader.close()


def shown(value: bytes) -> str:
    """Return the beginning of a payload as text: readable where it is text, else its bytes in hexadecimal."""
    some = value[:SHOWN_BYTES]
    try:
        text = some.decode("utf-8")
        if text.isprintable():
            return text
    except UnicodeDecodeError:
        pass
    return some.hex(" ")
