"""How a replica comes to own its slot: as the first, after a death, and where several claim it."""

from __future__ import annotations

import pytest

from tests.unit.slot.small_slot import FIRST, GENERATION, SLIDE_US
from tests.unit.standby.shell import DETECT_S, HEARTBEAT_S, TICK_S, Cluster, Node, feed, pair, steps
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import LogRecord, Ownership
from tsunagi.standby import actions as act
from tsunagi.standby.detector import SETTLE_S
from tsunagi.standby.stages.base import ReplicaStage

# ---- the first owner -----------------------------------------------------------------------------------------------


def test_the_node_that_the_plan_names_begins_and_the_other_stands_by(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    assert n1.takeovers[0].reason == "plan"
    assert (n1.replica.epoch, n2.replica.epoch) == (1, 1)
    assert n2.replica.owner == "n1"
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]
    settings = LogRecord.FromString(cluster.records[1].value or b"").settings
    assert settings.hash == n1.config.hash


def test_the_first_step_is_the_oldest_that_was_sent(cluster: Cluster) -> None:
    oldest = cluster.now_us // SLIDE_US - 1
    for step in (oldest, oldest + 1):
        cluster.step(step)
    pair(cluster)
    assert LogRecord.FromString(cluster.records[6].value or b"").ownership.first_step == oldest
    assert steps(cluster) == [oldest, oldest + 1]


@pytest.mark.parametrize(("behind", "counts"), [(40, True), (60, False)])
def test_a_step_far_behind_the_logs_clock_is_none_to_begin_with(cluster: Cluster, behind: int, counts: bool) -> None:
    clock = cluster.now_us // SLIDE_US + 1
    cluster.step(clock - behind)
    Node(cluster, "n1")
    cluster.run(1.5)
    claim = LogRecord.FromString(cluster.records[3].value or b"").ownership
    assert (claim.first_step == clock - behind) is counts
    assert claim.first_step == clock - behind or abs(claim.first_step - clock) < 10


def test_the_newest_record_is_the_clock_of_a_slot_that_begins(cluster: Cluster) -> None:
    first = cluster.now_us // SLIDE_US
    cluster.step(first)
    cluster.now += 20.0
    cluster.step(first + 100)
    Node(cluster, "n1")
    cluster.run(1.5)
    assert LogRecord.FromString(cluster.records[6].value or b"").ownership.first_step == first + 101


def test_a_slot_without_a_record_begins_by_the_owners_clock(cluster: Cluster) -> None:
    clock = cluster.now_us // SLIDE_US
    pair(cluster)
    first_step = LogRecord.FromString(cluster.records[0].value or b"").ownership.first_step
    assert clock < first_step <= cluster.now_us // SLIDE_US + 1


def test_a_named_owner_that_never_comes_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    n2 = Node(cluster, "n2", owner="n1")
    cluster.run(DETECT_S)
    assert n2.stage() is ReplicaStage.WATCH
    cluster.run(0.7)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.takeovers[0].reason == "plan"


def test_nobody_begins_before_its_own_heartbeats_come_back(cluster: Cluster) -> None:
    n1 = Node(cluster, "n1")
    n1.deaf = True
    cluster.run(3.0)
    assert n1.stage() is ReplicaStage.WATCH
    assert cluster.records == []


# ---- a primary that is gone ----------------------------------------------------------------------------------------


def test_a_silent_primary_is_replaced_and_nothing_is_lost_or_doubled(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    n1.keeps_outputs = False
    cluster.step(FIRST + 3)
    cluster.run(0.3)
    n1.die()
    cluster.step(FIRST + 4)
    cluster.run(DETECT_S + 0.2)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.epoch == 2
    assert steps(cluster) == list(range(FIRST, FIRST + 5))
    (takeover,) = n2.takeovers
    assert (takeover.reason, takeover.old_owner, takeover.epoch) == ("silent", "n1", 2)
    assert DETECT_S < takeover.detect_s < DETECT_S + 0.2


def test_a_takeover_is_over_when_its_outputs_have_been_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    n1.die()
    cluster.step(FIRST + 3)
    carried_out: list[act.Action] = []
    do = n2.do

    def note(action: act.Action) -> list[act.Action]:
        carried_out.append(action)
        return do(action)

    monkeypatch.setattr(n2, "do", note)
    cluster.run(DETECT_S + 0.2)
    (place,) = [number for number, action in enumerate(carried_out) if isinstance(action, act.TakeoverComplete)]
    written = [output for action in carried_out[:place] if isinstance(action, act.Emit) for output in action.outputs]
    assert [output.body.step for output in written] == [FIRST + 3]  # type: ignore[union-attr]


def test_late_batches_that_the_dead_did_not_report_are_reported(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    n1.keeps_outputs = False
    cluster.step(FIRST, "e1")
    cluster.run(0.3)
    assert cluster.side == []
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is ReplicaStage.OWN
    assert [(output.topic, output.body.reason) for output in cluster.side] == [(LATE, "closed")]  # type: ignore[union-attr]


def test_the_last_output_may_be_of_the_very_record_that_comes_next(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    cluster.step(FIRST + 3, "e1", "e2")
    cluster.run(0.5)
    n2.spare = False
    cluster.step(FIRST + 3, "e3")
    cluster.run(0.1)
    assert cluster.recovered[-1].name.offset == n2.replica.slot.position
    n1.die()
    cluster.run(DETECT_S + 0.5)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.trust.contradictions == 0
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_primary_that_leaves_in_good_order_is_replaced_at_once(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    cluster.run(0.3)
    n1.leave()
    cluster.run(0.2)  # far below DETECT_S
    assert n2.stage() is ReplicaStage.OWN
    assert n2.takeovers[0].reason == "left"
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_stalled_primary_is_replaced_although_it_beats(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n1.replica.processor.work.take_up(5, 5, cluster.now - 2.0)
    n1.turn = lambda: None  # type: ignore[method-assign]
    cluster.run(0.5)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.takeovers[0].reason == "stalled"


def test_a_node_started_again_under_its_name_takes_its_slot_back_if_nobody_else_does(cluster: Cluster) -> None:
    n1 = Node(cluster, "n1")
    cluster.run(1.5)
    feed(cluster, 3)
    n1.die()
    again = Node(cluster, "n1", incarnation=2)
    cluster.run(DETECT_S)
    assert again.stage() is ReplicaStage.WATCH
    cluster.run(1.0)
    assert again.stage() is ReplicaStage.OWN
    assert again.takeovers[0].reason == "restart"
    assert again.replica.epoch == 2
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


# ---- claims --------------------------------------------------------------------------------------------------------


def test_of_two_claims_the_first_in_the_log_wins(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n3 = Node(cluster, "n3")
    cluster.run(1.5)
    n1.die()
    cluster.run(1.5)
    assert sorted(node.stage().name for node in (n2, n3)) == ["OWN", "WATCH"]
    winner, loser = (n2, n3) if n2.stage() is ReplicaStage.OWN else (n3, n2)
    assert loser.replica.owner == winner.name
    assert winner.replica.epoch == 2
    cluster.run(2.0)
    assert winner.stage() is ReplicaStage.OWN


def test_a_claim_that_gets_lost_is_given_up_and_made_again_at_once(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n1.die()
    lost = 0
    append = cluster.append

    def lose_the_first(message: LogRecord) -> int:
        nonlocal lost
        if message.WhichOneof("body") == "ownership" and not lost:
            lost = 1
            return -1
        return append(message)

    cluster.append = lose_the_first  # type: ignore[method-assign]
    cluster.run(DETECT_S + 0.2)
    assert n2.stage() is ReplicaStage.CLAIM
    cluster.run(1.1)
    assert any("did not come back" in note for note in n2.notes)
    assert n2.stage() is ReplicaStage.OWN  # the old owner's silence counted on


@pytest.mark.parametrize("deaf_s", [0.0, 3.0])
def test_a_claim_that_comes_after_it_was_given_up_is_gone_on_with_at_once(cluster: Cluster, deaf_s: float) -> None:
    """Where many workers start on few cores, the log takes a claim only after seconds.

    No node hears its own heartbeats meanwhile, so that none may judge the others.
    """
    late: list[LogRecord] = []
    append = cluster.append

    def hold_the_first(message: LogRecord) -> int:
        if message.WhichOneof("body") == "ownership" and not late:
            late.append(message)
            return -1
        return append(message)

    cluster.append = hold_the_first  # type: ignore[method-assign]
    cluster.step(FIRST)
    n1, n2 = Node(cluster, "n1"), Node(cluster, "n2")
    while not any("did not come back" in note for note in n1.notes):
        cluster.run(TICK_S)
    assert n1.stage() is ReplicaStage.WATCH
    n1.deaf = n2.deaf = True
    cluster.run(deaf_s)
    append(late[0])
    cluster.run(deaf_s)
    n1.deaf = n2.deaf = False
    cluster.run(0.2 if not deaf_s else SETTLE_S + 4 * HEARTBEAT_S)
    assert n1.stage() is ReplicaStage.OWN
    cluster.run(2.0)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.OWN, ReplicaStage.WATCH)
    assert not n2.takeovers
    assert not any("owns it since" in note for note in n1.notes)


def test_a_claim_that_arrives_long_after_it_was_given_up_does_no_harm(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    cluster.append(LogRecord(ownership=Ownership(epoch=2, node="n2", generation=GENERATION)))
    cluster.run(0.1)
    assert n1.stage() is ReplicaStage.WATCH  # it has been deposed, by somebody who does not know
    feed(cluster, 1)
    cluster.run(2.0)
    assert sorted(node.stage().name for node in (n1, n2)) == ["OWN", "WATCH"]
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]


def test_a_suspicion_does_not_outlive_an_outage(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n1.silent = True
    cluster.answers = False
    cluster.run(1.2)
    assert any("promotion begins" in note for note in n2.notes)
    n1.silent = False
    cluster.run(0.4)
    cluster.answers = True
    cluster.run(1.0)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.OWN, ReplicaStage.WATCH)
    assert n1.replica.epoch == 1


def test_an_owner_whom_the_secondary_has_not_heard_of_gets_its_time(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf")
    feed(cluster, 1)
    n1.die()
    cluster.run(0.5)
    cluster.own(2, "n9")
    cluster.run(0.5)
    assert any("n9 owns it since epoch 2" in note for note in n2.notes)
    assert n2.replica.epoch == 2
    cluster.run(0.4)
    assert n2.stage() is ReplicaStage.WATCH
    cluster.run(0.6)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.epoch == 3
