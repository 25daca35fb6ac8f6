"""Whom an edge sends what, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from tsunagi.edge.publish import _SILENCE_S, EdgePublisher
from tsunagi.edge.spool import Spool
from tsunagi.edge.window import ClosedWindow
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import floats, pack_sensors, sensors
from tsunagi.runtime.messages import LogRecord, Placement, TupleBatch
from tsunagi.runtime.moving import AGREED, DONE, HELD
from tsunagi.runtime.sensors import Sensor

OWN = tuple(Sensor(number, f"s{number}", "e") for number in (1, 2, 4, 9))
PLACEMENT = Placement(serial=1, slots=4, slot=pack_sensors([3, 0, 0, 3, 2]))
"""Sensors 1 and 2 in slot 0, 4 in slot 2; 9 has no place yet."""


class Client:
    """A log and its producer: nothing arrives before the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.appended_us = 0
        self._heard: list[Callable[[Any, int], None]] = []

    def producer(self) -> Client:
        return self

    def send(self, topic: str, slot: int, key: bytes, value: bytes, heard: Callable[[Any, int], None]) -> None:
        self.sent.append((slot, value))
        self._heard.append(heard)

    def arrive(self, count: int) -> None:
        for _ in range(count):
            self._heard.pop(0)(None, 0)

    def poll(self, timeout_s: float) -> None:
        """Nothing comes by itself."""

    flush = poll

    def close(self) -> None:
        """Nothing is held."""

    def batches(self) -> dict[int, TupleBatch]:
        return {slot: LogRecord.FromString(value).batch for slot, value in self.sent}


class Edge:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.logged: list[str] = []
        logger: Any = structlog.wrap_logger(structlog.ReturnLogger(), processors=[self._note])
        self.client = Client()
        self.spool = Spool(path, 1 << 24, logger, self.clock.monotonic())
        client: Any = self.client
        self.publisher = EdgePublisher(client, "e", OWN, self.spool, self.clock, logger)
        self.publisher.place(PLACEMENT)

    def _note(self, _: Any, __: str, event: Any) -> Any:
        self.logged.append(event["event"])
        return (), {}

    def publish(self, step: int, *, everywhere: bool = True, places: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        at = np.array(places, dtype=np.int64)
        ids = np.array([OWN[place].id for place in places], dtype=np.uint32)
        closed = ClosedWindow(step, ids, at, np.add(at, 0.5, dtype=np.float64), np.ones(len(at), dtype=np.uint32))
        self.publisher.publish(closed, step * 1000, 1, everywhere=everywhere)


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Edge]:
    made = Edge(tmp_path / "edge" / "spool")
    yield made
    made.spool.close()


def test_every_slot_with_sensors_of_the_edge_has_a_record_of_each_step(edge: Edge) -> None:
    edge.publish(7)
    told = {slot: (sensors(b.sensor).tolist(), floats(b.value).tolist()) for slot, b in edge.client.batches().items()}
    assert told == {0: ([1, 2], [0.5, 1.5]), 2: ([4], [2.5])}
    assert edge.publisher.unplaced_values == 1
    assert edge.publisher.last_step == 7
    edge.client.sent.clear()
    edge.publish(8, places=(0,))
    assert {slot: sensors(b.sensor).tolist() for slot, b in edge.client.batches().items()} == {0: [1], 2: []}
    edge.client.sent.clear()
    edge.publish(9, places=(0,), everywhere=False)
    assert list(edge.client.batches()) == [0]


def test_slots_that_ask_for_helpers_get_these_sensors_beside_their_own(edge: Edge) -> None:
    edge.publisher.help({2: frozenset({1, 4}), 3: frozenset({2}), 1: frozenset({77})})
    edge.publish(7)
    lent = {slot: sensors(b.helper).tolist() for slot, b in edge.client.batches().items()}
    assert lent == {0: [], 2: [1], 3: [2]}  # 4 is slot 2's own; nobody here has 77
    assert floats(edge.client.batches()[3].helper_value).tolist() == [1.5]
    assert not edge.client.batches()[3].sensor
    assert edge.publisher.lent_values == 2
    edge.publisher.help({})
    edge.client.sent.clear()
    edge.publish(8)
    assert sorted(edge.client.batches()) == [0, 2]


@pytest.mark.parametrize(
    ("phase", "later"), [(HELD, {0: [1, 2], 2: [4]}), (AGREED, {1: [1], 2: [2, 4]}), (DONE, {1: [1], 2: [2, 4]})]
)
def test_sensors_move_to_other_slots_behind_the_boundary(edge: Edge, phase: str, later: dict[int, list[int]]) -> None:
    moved = Placement(
        serial=2, slots=4, slot=pack_sensors([3, 1, 2, 3, 2]), before=PLACEMENT.slot, from_us=8000, move=phase
    )
    edge.publisher.help({2: frozenset({2})})
    edge.publisher.place(moved)
    for step, expected in ((7, {0: [1, 2], 2: [4]}), (8, {0: [1, 2], 2: [4]}), (9, later)):
        edge.client.sent.clear()
        edge.publish(step)
        found = edge.client.batches()
        assert {slot: sensors(batch.sensor).tolist() for slot, batch in found.items()} == expected, step
        assert sensors(found[2].helper).tolist() == ([] if 2 in expected[2] else [2]), step


def test_the_client_holds_so_many_records_and_the_others_wait_their_turn(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tsunagi.edge.publish._MOST_SENT", 20)
    for step in range(15):
        edge.publish(step)
    assert len(edge.client.sent) == 20
    assert edge.publisher.depth == 30
    edge.client.arrive(4)
    edge.publisher.poll()
    assert len(edge.client.sent) == 24
    assert (edge.publisher.delivered, edge.publisher.depth) == (4, 26)
    edge.client.arrive(20)
    edge.publisher.poll()
    order = [LogRecord.FromString(value).batch.step for _, value in edge.client.sent]
    assert order == sorted([*range(15)] * 2)


def test_a_broker_that_answers_nothing_is_told_of_and_one_that_is_slow_is_not(edge: Edge) -> None:
    def wait(seconds: float, *, answers: bool) -> int:
        before = len(edge.logged)
        for _ in range(round(seconds)):
            edge.clock.advance(1.0)
            edge.publish(int(edge.clock.monotonic()))
            if answers:
                edge.client.arrive(1)  # less than what comes: something always waits
            edge.publisher.poll()
        return edge.logged[before:].count("the broker does not answer")

    assert wait(20, answers=True) == 0
    assert wait(_SILENCE_S, answers=False) == 0
    assert 2 <= wait(3 * (_SILENCE_S + 1), answers=False) <= 3
    assert wait(1, answers=True) == 0


def test_what_the_log_says_of_its_time_is_kept_with_when_it_was_heard(edge: Edge) -> None:
    edge.publish(7)
    edge.client.arrive(1)
    assert edge.publisher.log_time is None
    edge.client.appended_us = 17
    edge.clock.advance(2.0)
    edge.client.arrive(1)
    assert edge.publisher.log_time == (17, edge.clock.monotonic())
