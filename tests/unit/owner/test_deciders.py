"""An owner's deciders in a replica: who stands by has none, and who falls has none any more."""

from __future__ import annotations

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import EDGES, FIRST, MODEL, SLOT, load, make_config, owned, play
from tests.unit.standby.shell import DETECT_S, Cluster, Node, feed, make, pair, steps
from tsunagi.owner.deciders import make_deciders
from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.names import NO_NAME
from tsunagi.runtime.settings import Settings
from tsunagi.slot.deciding import OwnerView
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act
from tsunagi.standby.primary import Primary
from tsunagi.standby.queue import PendingQueue
from tsunagi.standby.stages.base import ReplicaStage


def announce(_operations: float) -> None:
    """Nobody listens."""


def test_an_edge_is_not_waited_for_when_its_heartbeats_have_stopped() -> None:
    cluster = Cluster()
    n1, _ = pair(cluster, make_deciders=make_deciders)
    feed(cluster, 2)
    cluster.step(FIRST + 2, "e1", "e2")
    for number in range(1, 20):
        n1.detector.on_heartbeat(Heartbeat(node="e3", role="edge", incarnation=1, sequence=number), cluster.now)
        cluster.run(0.1)
    assert steps(cluster) == [FIRST, FIRST + 1]  # it lives: its readings will come
    cluster.run(DETECT_S + 0.5)
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]


def test_a_deposed_owner_measures_no_more() -> None:
    cluster = Cluster()
    config = make({"use": "recover"})
    n1 = Node(cluster, "n1", config=config, model=SHA, load_model=lambda _: MODEL, make_deciders=make_deciders)
    cluster.run(1.5)
    feed(cluster, 2)
    recover = n1.replica.slot.recover
    assert recover is not None
    assert recover._watchers
    cluster.own(2, "n2")
    cluster.run(0.1)
    assert n1.stage() is ReplicaStage.WATCH
    assert not recover._watchers


def test_control_records_carry_the_epoch_of_their_writer() -> None:
    writer = owned(make_config())
    slot = Slot(SLOT, load)
    play(slot, [*writer.records, *(writer.batch(edge, FIRST) for edge in EDGES)])
    primary = Primary(SLOT, "n1", Settings(), PendingQueue(), NO_NAME, 0.0, make_deciders(Settings(), 0.0, announce))
    writer.own(2, "n1")
    play(slot, writer.records[-1:])
    actions: list[act.Action] = []
    for tenths in range(100):
        actions += primary.decide(OwnerView(slot, Wish(make_config()), tenths / 10))
    found = [action.record.edge_out for action in actions if isinstance(action, act.Append)]
    assert {(item.edge, item.epoch) for item in found if item.edge} == {(edge, 2) for edge in EDGES}
