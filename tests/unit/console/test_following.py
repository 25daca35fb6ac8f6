"""What was set aside is counted, from where it is said; a log that does not answer is tried again, and said."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from tsunagi.console.asides import KEPT, SHOWN_BYTES, Asides, AsidesFollower, shown
from tsunagi.console.following import Following
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_sensors
from tsunagi.runtime.log import DEAD_LETTERS, LATE, LogError
from tsunagi.runtime.messages import VERSION, DeadLetter, Late, TupleBatch
from tsunagi.runtime.testing import MemoryLog


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_dead_letters_and_late_values_are_counted_and_the_newest_letters_shown() -> None:
    log = MemoryLog(ManualClock(), {DEAD_LETTERS: 1, LATE: 1})
    for number in range(KEPT + 5):
        letter = DeadLetter(version=VERSION, topic="tuples", offset=number, reason="unreadable", value=b"\xff<b>")
        log.append(DEAD_LETTERS, 0, b"", letter.SerializeToString())
    batch = TupleBatch(edge="north", sensor=pack_sensors([1, 2]), value=pack_floats([1.0, 2.0]))
    log.append(LATE, 0, b"", Late(version=VERSION, reason="closed", batch=batch).SerializeToString())
    log.append(LATE, 0, b"", b"\xff\xff")
    asides = Asides()
    follower = AsidesFollower(log, asides)
    follower.turn()
    follower.close()

    found = asides.view()

    counts = {(item["topic"], item["reason"]): item["count"] for item in found["reasons"]}
    assert counts[("tuples", "unreadable")] == KEPT + 5
    assert sum(count for (topic, _), count in counts.items() if topic == LATE) == 1  # the damaged record
    assert [item["offset"] for item in found["letters"]] == list(range(KEPT + 4, 4, -1))
    assert found["letters"][0]["value"] == "ff 3c 62 3e"
    assert found["late"] == [{"edge": "north", "reason": "closed", "values": 2}]
    assert (found["counted_from"], found["ends"]) == ({DEAD_LETTERS: 0, LATE: 0}, {DEAD_LETTERS: KEPT + 5, LATE: 2})


def test_a_payload_is_shown_as_text_where_it_is_one_and_never_whole() -> None:
    assert shown(b'{"value": "Halle S\xc3\xbcd"}') == '{"value": "Halle Süd"}'
    assert shown(b"a\x00b") == "61 00 62"
    assert len(shown(b"x" * 10_000)) == SHOWN_BYTES


class Reader:
    """Fails when a test says so."""

    def __init__(self, broken: list[str], opened: list[int]) -> None:
        if broken:
            raise LogError(broken[0])
        opened.append(1)
        self._broken = broken
        self._opened = opened

    def turn(self) -> None:
        if self._broken:
            raise LogError(self._broken[0])
        time.sleep(0.002)

    def close(self) -> None:
        self._opened.append(-1)


def test_a_log_that_does_not_answer_is_said_and_opened_again_when_it_does() -> None:
    broken: list[str] = []
    opened: list[int] = []
    following = Following("results", lambda: Reader(broken, opened), structlog.get_logger())
    assert following.fault
    following.start()
    until(lambda: not following.fault)
    broken.append("no broker answers")
    until(lambda: following.fault == "no broker answers")
    assert sum(opened) == 0  # what was opened has been closed
    broken.clear()
    until(lambda: not following.fault)
    following.close()
    assert sum(opened) == 0
