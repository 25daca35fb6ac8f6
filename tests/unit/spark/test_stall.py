from __future__ import annotations

from tsunagi_spark.stall import Stall


def test_it_is_the_group_that_has_waited_longest() -> None:
    now = [100.0]
    stall = Stall(lambda: now[0])
    assert stall.seconds() == 0.0
    stall.on_delivered([("a", 5), ("b", 5)])
    now[0] = 103.0
    stall.on_delivered([("a", 6), ("b", 5)])
    now[0] = 104.0
    assert stall.seconds() == 4.0
    stall.on_delivered([("a", 6), ("b", 6)])
    assert stall.seconds() == 1.0


def test_a_group_that_is_gone_waits_for_nothing() -> None:
    now = [0.0]
    stall = Stall(lambda: now[0])
    stall.on_delivered([("a", 1), ("b", 1)])
    now[0] = 50.0
    stall.on_delivered([("a", 2)])
    assert stall.seconds() == 0.0
