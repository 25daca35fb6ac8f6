"""Planned moves of a slot: its target takes it over from an owner that lives."""

from __future__ import annotations

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SLOT
from tests.unit.standby.shell import DETECT_S, Cluster, Node, ask_to_move, feed, hear, make, pair, steps
from tsunagi.runtime.messages import SlotBeat
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.standby.stages.watch import MOVE_PATIENCE_S, WatchStage


def test_a_planned_move_needs_no_silence(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    ask_to_move(n2)
    cluster.run(0.2)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.WATCH, ReplicaStage.OWN)
    assert (n2.takeovers[0].reason, n2.takeovers[0].detect_s) == ("move", 0.0)
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_planned_move_catches_up_before_it_takes_over(cluster: Cluster) -> None:
    """Its outputs pause from the claim until the new owner has processed what it has not: that must be little."""
    n1, n2 = pair(cluster, batch_size="inf", context_s=1000.0)
    feed(cluster, 30)
    assert n2.replica.processor.processed == 0
    ask_to_move(n2)
    n1.replica.processor.record_s = n2.replica.processor.record_s = 0.05
    cluster.run(2.0)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.WATCH, ReplicaStage.OWN)
    assert n2.takeovers[0].records <= 2 * len(EDGES)  # of 30 steps, one from each edge
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 32))


def test_a_planned_move_to_a_slower_machine_is_not_put_off_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    n1, n2 = pair(cluster, context_s=1000.0)
    monkeypatch.setattr(WatchStage, "_process_silently", lambda _self, _upto: None)
    feed(cluster, 8)
    n1.replica.processor.record_s = n2.replica.processor.record_s = 0.05
    cluster.run(0.2)
    ask_to_move(n2)
    cluster.run(MOVE_PATIENCE_S / 2)
    assert n2.stage() is ReplicaStage.WATCH
    cluster.run(MOVE_PATIENCE_S)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.WATCH, ReplicaStage.OWN)
    assert steps(cluster) == list(range(FIRST, FIRST + 8))


def test_the_owner_dies_while_a_planned_move_is_under_way(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    ask_to_move(n2)
    while n2.stage() is ReplicaStage.WATCH:
        cluster.run(0.02)
    n1.die()
    cluster.run(DETECT_S + 1.0)
    assert n2.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


def test_a_planned_move_does_not_come_between_an_owner_and_its_first_turn(cluster: Cluster) -> None:
    """An owner that is being promoted has not announced yet what its predecessor may have died of."""
    n2 = Node(cluster, "n2", batch_size=1)
    cluster.own(1, "n1", make())
    feed(cluster, 2)
    cluster.own(2, "n3")
    cluster.run(0.2)
    ask_to_move(n2)
    for role, stage in (("promoting", ReplicaStage.WATCH), ("primary", ReplicaStage.OWN)):
        for _ in range(4):
            hear(n2, "n3", SlotBeat(slot=SLOT, role=role, epoch=2, position=cluster.end, ready=True))
            cluster.run(0.1)
        assert n2.stage() is stage
