"""Of several scalers one acts."""

from __future__ import annotations

from services.runtime.messages import Heartbeat
from services.scaler.rivals import LISTEN_S, Rivals

DEAD_S = 2.0


def beat(incarnation: int, *, leaving: bool = False) -> Heartbeat:
    return Heartbeat(node="scaler", role="scaler", incarnation=incarnation, leaving=leaving)


def listening(incarnation: int = 5) -> Rivals:
    rivals = Rivals("scaler", incarnation, DEAD_S)
    rivals.on_heartbeat(beat(incarnation), 10.0)
    return rivals


def test_one_alone_acts_after_it_has_listened_for_a_while() -> None:
    rivals = Rivals("scaler", 5, DEAD_S)
    assert not rivals.leads(100.0)
    rivals.on_heartbeat(beat(5), 100.0)
    assert not rivals.leads(100.0 + LISTEN_S / 2)
    assert rivals.leads(100.0 + LISTEN_S)


def test_the_one_started_first_acts_and_the_others_when_it_is_gone() -> None:
    first, second, third = listening(1), listening(2), listening(3)
    for rivals in (first, second, third):
        for incarnation in (1, 2, 3):
            rivals.on_heartbeat(beat(incarnation), 11.5)
    assert [rivals.leads(12.0) for rivals in (first, second, third)] == [True, False, False]
    for rivals in (second, third):
        for incarnation in (2, 3):
            rivals.on_heartbeat(beat(incarnation), 13.0)
    assert [rivals.leads(11.5 + DEAD_S) for rivals in (second, third)] == [True, False]


def test_one_that_leaves_is_not_waited_for() -> None:
    rivals = listening(5)
    rivals.on_heartbeat(beat(1), 11.0)
    assert not rivals.leads(11.1)
    assert rivals.others() == 1
    rivals.on_heartbeat(beat(1, leaving=True), 11.2)
    assert rivals.leads(11.3)
    assert rivals.others() == 0


def test_workers_and_edges_of_that_name_are_no_rivals() -> None:
    rivals = listening(5)
    rivals.on_heartbeat(Heartbeat(node="scaler", role="edge", incarnation=1), 11.0)
    rivals.on_heartbeat(Heartbeat(node="other", role="scaler", incarnation=1), 11.0)
    assert rivals.leads(11.1)
