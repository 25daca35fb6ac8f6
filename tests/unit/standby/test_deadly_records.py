"""Records that kill whoever processes them: what is announced, what is proven, and who keeps away from them."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.unit.slot.small_slot import FIRST, SLOT, batch
from tests.unit.standby.shell import TICK_S, Cluster, Node, ask_to_move, feed, hear, make, pair, steps
from tsunagi.runtime.messages import LogRecord, SlotBeat, TupleBatch
from tsunagi.slot.steps import StepBook
from tsunagi.standby import actions as act
from tsunagi.standby.detector import MIN_STALL_S
from tsunagi.standby.stages.base import ReplicaStage


class Killed(Exception):  # noqa: N818 - the fault itself
    pass


def doomed(node: Node, offset: int) -> Node:
    """Make a node die on the record at this offset, as on a bug in its code."""
    replica, turn = node.replica, node.turn
    processor, apply = replica.processor, replica.processor.apply

    def apply_or_die(limit: int, upto: int) -> object:
        if replica.intake.backlog[0][0].offset == offset and offset not in replica.slot.register.quarantined:
            raise Killed
        return apply(limit, upto)

    processor.apply = apply_or_die  # type: ignore[assignment,method-assign]

    def turn_or_die() -> None:
        try:
            turn()
        except Killed:
            node.die()

    node.turn = turn_or_die  # type: ignore[method-assign]
    return node


def test_after_two_announced_deaths_on_one_record_the_third_buries_it(cluster: Cluster) -> None:
    bad = 2 + 3 * 3 + 1  # after ownership and settings: the second batch of the fourth step
    nodes = [doomed(Node(cluster, name), bad) for name in ("n1", "n2", "n3", "n4")]
    cluster.run(1.5)
    for step in range(FIRST, FIRST + 12):
        cluster.step(step)
    assert LogRecord.FromString(cluster.records[bad].value or b"").batch.step == FIRST + 3
    cluster.run(8.0)
    assert len(cluster.nodes) == 1
    (last,) = cluster.nodes
    assert last.stage() is ReplicaStage.OWN
    assert last.replica.slot.register.quarantined == {bad}
    assert last.replica.epoch == 4
    assert [output.body.reason for output in cluster.side] == ["quarantined"]  # type: ignore[union-attr]
    assert steps(cluster) == list(range(FIRST, FIRST + 12))
    announced = [
        (beat.busy_offset, beat.busy_until) for node in nodes for beat in node.announced if beat.busy_until > 0
    ]
    assert (bad, bad + 1) in announced


def test_what_decides_ownership_is_not_buried_whoever_dies_on_it(cluster: Cluster) -> None:
    """A quiet slot: a claim is all that waits when two owners in a row die of something else."""
    pair(cluster)
    feed(cluster, 3)
    cluster.run(0.5)
    bad = cluster.end
    for name in ("n3", "n4"):
        doomed(Node(cluster, name), bad)
    for node in cluster.nodes[1::-1]:
        node.die() if node.stage() is ReplicaStage.OWN else doomed(node, bad)
    cluster.run(6.0)
    assert LogRecord.FromString(cluster.records[bad].value or b"").WhichOneof("body") == "ownership"
    assert cluster.nodes == []  # they died one after the other,
    last = Node(cluster, "n5")
    cluster.run(3.0)
    assert not last.replica.slot.register.quarantined
    assert last.stage() is ReplicaStage.OWN
    assert last.replica.slot.register.epoch == last.replica.scan.epoch == 5
    feed(cluster, 3)
    assert steps(cluster) == list(range(FIRST, FIRST + 6))


def test_an_owner_whose_state_is_of_another_epoch_ends(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    n1.replica.slot.register.epoch = 0
    ended = [action for action in n1.replica.step(cluster.now, cluster.now_us) if isinstance(action, act.EndProcess)]
    assert [action.detail for action in ended] == ["its state says epoch 0, but it owns it since 1"]


def test_a_record_that_kills_is_buried_though_the_plan_wishes_all_along_that_the_slot_moves(cluster: Cluster) -> None:
    """A planned takeover announces nothing, so it must not come between two deaths that would prove the record."""
    bad = 2 + 3 * 3 + 1
    nodes = [doomed(Node(cluster, f"n{number}"), bad) for number in range(1, 7)]
    cluster.run(1.5)
    for step in range(FIRST, FIRST + 12):
        cluster.step(step)
    for _ in range(400):
        cluster.run(0.04)
        if len(cluster.nodes) < len(nodes):
            target = cluster.nodes[-1].name
            for node in cluster.nodes:
                ask_to_move(node, target)
    # One died in full run, one had just been asked to take the slot over from that one, two proved it.
    assert len(cluster.nodes) == len(nodes) - 4
    assert cluster.nodes[0].replica.slot.register.quarantined == {bad}
    assert steps(cluster) == list(range(FIRST, FIRST + 12))


@pytest.mark.parametrize("heard_before", [False, True], ids=["", "heard-while-it-was-promoted"])
def test_a_standby_does_not_process_what_only_a_quarantine_made_survivable(
    cluster: Cluster, heard_before: bool
) -> None:
    """The owner may name its epoch before it has appended the Quarantine: between its claim and its first turn."""
    n2 = Node(cluster, "n2", batch_size=1)
    cluster.own(1, "n1", make())
    cluster.step(FIRST)
    bad = cluster.end
    cluster.step(FIRST + 1)
    cluster.own(2, "n3")
    cluster.run(0.3)
    doomed(n2, bad)
    if heard_before:
        hear(n2, "n3", SlotBeat(slot=SLOT, role="promoting", epoch=2, position=bad, lag=cluster.end - bad))
        cluster.run(0.1)
    cluster.answers = False  # it has read up to here
    cluster.quarantine(2, bad)
    after = cluster.end
    cluster.step(FIRST + 2)
    part = SlotBeat(slot=SLOT, role="primary", epoch=2, position=bad + 2, busy_offset=-1, lag=cluster.end - bad - 2)
    hear(n2, "n3", part)
    cluster.run(0.3)
    assert n2 in cluster.nodes
    assert n2.replica.slot.position <= bad
    cluster.answers = True
    hear(n2, "n3", part)
    cluster.run(0.3)
    hear(n2, "n3", SlotBeat(slot=SLOT, role="primary", epoch=2, position=after, busy_offset=-1))
    cluster.run(0.1)
    assert n2 in cluster.nodes
    assert n2.replica.slot.position == after


def test_the_position_it_tells_is_never_past_the_record_it_is_on(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    feed(cluster, 1)
    told: list[int] = []
    refusal = StepBook._refusal

    def tell(book: StepBook, item: TupleBatch, appended_us: int) -> str:
        told.append(n1.replica.beat(cluster.now).position)
        return refusal(book, item, appended_us)

    place = cluster.append(LogRecord(batch=batch("e1", FIRST + 1)))
    with patch.object(StepBook, "_refusal", tell):
        n1.turn()
    assert told == [place]


def test_records_that_are_announced_one_by_one_take_a_turn_each(cluster: Cluster) -> None:
    """Sixty-four records that a predecessor announced and may have died of: each turn is silence."""
    n2 = Node(cluster, "n2", batch_size="inf")
    cluster.own(1, "n1", make())
    cluster.own(2, "n3")
    first = cluster.end
    for step in range(FIRST, FIRST + 30):
        cluster.step(step)
    suspects = SlotBeat(slot=SLOT, role="primary", epoch=2, position=first, busy_offset=first, busy_until=first + 64)
    hear(n2, "n3", suspects)
    began = cluster.now
    while n2.stage() is not ReplicaStage.OWN:
        cluster.run(TICK_S)
        assert cluster.now < began + 20.0
    turns = 0
    while n2.replica.slot.position < first + 64:
        cluster.run(TICK_S)
        turns += 1
    assert n2.replica.scan.quarantined == set()
    assert turns <= 64 + 4


@pytest.mark.parametrize("speculate", [False, True])
def test_what_is_announced_and_not_out_is_not_processed_before_it_is_announced_again(
    cluster: Cluster, speculate: bool
) -> None:
    n2 = Node(cluster, "n2", batch_size="inf", speculate=speculate)
    cluster.own(1, "n1", make())
    first = cluster.end
    for step in range(FIRST, FIRST + 3):
        cluster.step(step)
    hear(n2, "n1", SlotBeat(slot=SLOT, role="primary", epoch=1, position=first))
    n2.announces = False
    cluster.run(3.0)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.slot.position == first
    n2.announces = True
    cluster.run(0.5)
    assert n2.replica.slot.position == cluster.end
    assert n2.announced[0].busy_offset == first
    # It had done nothing for long before: what it announces has all its time from then on.
    assert min(beat.busy_limit_us for beat in n2.announced if beat.busy_until > 0) >= 1e6 * MIN_STALL_S
