"""The end of a primary's term: it stands by, and nothing of what it left on its way does harm."""

from __future__ import annotations

from tests.unit.slot.small_slot import FIRST, SLOT
from tests.unit.standby.shell import Cluster, feed, pair, steps
from tsunagi.runtime.messages import Ack, Level0Ack, LogRecord
from tsunagi.standby.stages.base import ReplicaStage


def test_a_deposed_primary_stands_by_and_can_come_back(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    n1.frozen = True
    cluster.run(1.5)
    assert n2.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    n1.frozen = False
    cluster.run(0.3)
    assert n1.stage() is ReplicaStage.WATCH
    assert n1.follows is None
    assert n1.replica.owner == "n2"
    cluster.run(0.5)
    n2.die()
    cluster.run(1.2)
    assert n1.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 6))


def test_an_owner_that_hears_of_the_next_term_before_it_reads_of_it_does_not_claim_it(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    feed(cluster, 2)
    n1.replica.on_ack(Ack(level0=Level0Ack(slot=SLOT, node="n2", epoch=2, offset=1)), cluster.now)
    beat = n1.replica.beat(cluster.now)
    assert (beat.role, beat.epoch) == ("primary", 1)
    cluster.own(2, "n2")
    cluster.run(0.1)
    beat = n1.replica.beat(cluster.now)
    assert (beat.role, beat.epoch) == ("standby", 2)


def test_a_newer_process_of_the_same_name_deposes_the_older(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    cluster.own(2, "n1")
    cluster.run(0.1)
    assert n1.stage() is ReplicaStage.WATCH


def test_a_zombies_control_records_are_void(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    n1.frozen = True
    cluster.run(1.5)
    feed(cluster, 1)
    cluster.append(LogRecord(edge_out={"epoch": 1, "edge": "e1", "from_step": FIRST}))
    cluster.append(LogRecord(punctuation={"epoch": 1, "step": FIRST + 50}))
    cluster.run(0.3)
    assert n2.replica.slot.register.void == 2
    assert n2.replica.slot.cursor == FIRST + 3


def test_outputs_on_their_way_since_an_earlier_term_are_not_acknowledged(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.2)
    feed(cluster, 2)
    n1.keeps_outputs = False
    cluster.step(FIRST + 2)
    first_held = cluster.end - 1
    cluster.run(0.3)
    assert len(n1.way) == 1
    n2.die()
    cluster.own(2, "n9")  # somebody who dies before it writes anything
    cluster.run(0.1)
    assert n1.stage() is ReplicaStage.WATCH
    cluster.run(2.0)
    assert n1.stage() is ReplicaStage.OWN
    assert n1.replica.epoch == 3
    cluster.run(1.0)
    floors = [ack.level0.offset or ack.level1.offset for ack in cluster.acks]
    assert max(floors) <= first_held
    n1.deliver()
    cluster.run(0.5)
    assert max(ack.level0.offset for ack in cluster.acks) > first_held


def test_a_context_on_its_way_since_an_earlier_term_is_not_taken_for_a_later_one(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.5)
    n1.keeps_outputs = False
    feed(cluster, 1, 0.7)
    (old,) = n1.saves
    n2.die()
    cluster.own(2, "n9")
    cluster.run(2.0)
    assert (n1.stage(), n1.replica.epoch) == (ReplicaStage.OWN, 3)
    cluster.step(FIRST + 1)
    cluster.run(1.0)
    assert n1.saves[0] is old
    assert len(n1.saves) == 2
    n1.deliver()
    n1.save()
    cluster.run(0.5)
    level1 = [ack.level1 for ack in cluster.acks if ack.HasField("level1")]
    assert level1
    assert all(cluster.contexts[ack.context_offset].offset == ack.offset for ack in level1)
