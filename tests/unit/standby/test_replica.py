"""A replica through its stages, several of them on one log; time is the test's."""

from __future__ import annotations

import math

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, GENERATION, SLIDE_US, SLOT
from tests.unit.standby.shell import DETECT_S, Cluster, Node, feed, pair, steps
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import Ack, Heartbeat, Level0Ack, LogRecord, Ownership, SlotBeat
from tsunagi.standby import actions as act
from tsunagi.standby.processor import COST_PERIOD_S, COST_WEIGHT
from tsunagi.standby.stages.base import Stage
from tsunagi.standby.stages.watch import MOVE_PATIENCE_S, WatchStage

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
    assert n2.stage() is Stage.WATCH
    cluster.run(0.7)
    assert n2.stage() is Stage.OWN
    assert n2.takeovers[0].reason == "plan"


def test_nobody_begins_before_its_own_heartbeats_come_back(cluster: Cluster) -> None:
    n1 = Node(cluster, "n1")
    n1.deaf = True
    cluster.run(3.0)
    assert n1.stage() is Stage.WATCH
    assert cluster.records == []


# ---- silence -------------------------------------------------------------------------------------------------------


def test_a_silent_primary_is_replaced_and_nothing_is_lost_or_doubled(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    n1.keeps_outputs = False
    cluster.step(FIRST + 3)
    cluster.run(0.3)
    n1.die()
    cluster.step(FIRST + 4)
    cluster.run(DETECT_S + 0.2)
    assert n2.stage() is Stage.OWN
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
    (place,) = [number for number, action in enumerate(carried_out) if isinstance(action, act.Takeover)]
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
    assert n2.stage() is Stage.OWN
    assert [(output.topic, output.body.reason) for output in cluster.side] == [(LATE, "closed")]  # type: ignore[union-attr]


def test_an_upstream_backup_reads_nothing_before_it_takes_over(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf")
    feed(cluster, 3)
    assert n2.fetched == []
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is Stage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


def test_a_context_is_taken_instead_of_a_long_read(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf", context_s=0.2)
    feed(cluster, 40, 0.06)
    cluster.run(0.5)
    assert cluster.contexts
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is Stage.OWN
    assert n2.replica.intake.jumps == 1
    assert min(first for first, _ in n2.fetched) > 0
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 42))


def test_a_secondary_reads_when_it_holds_b_tuples(cluster: Cluster) -> None:
    _, n2 = pair(cluster, batch_size=20)
    n2.fetched.clear()
    feed(cluster, 2)
    assert n2.fetched == []
    feed(cluster, 8)
    assert 1 <= len(n2.fetched) <= 4
    assert n2.replica.slot.position > 20


def test_a_secondary_that_hears_the_owner_hardly_asks_for_the_end_of_the_log(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n2.asked = 0
    feed(cluster, 20)
    assert n2.asked <= 5
    assert n2.replica.intake.next == cluster.end
    n1.silent = True
    cluster.run(0.6)
    assert n2.stage() is Stage.WATCH
    assert n2.asked >= 10


def test_a_node_with_no_time_to_spare_leaves_what_only_a_standby_does_and_takes_over_all_the_same(
    cluster: Cluster,
) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    read, processed = n2.replica.intake.next, n2.replica.slot.position
    n2.spare = False
    feed(cluster, 8)
    assert (n2.replica.intake.next, n2.replica.slot.position) == (read, processed)
    assert n2.replica.batching.costs.behind >= len(EDGES)
    n1.die()
    cluster.run(DETECT_S + 0.3)
    assert n2.stage() is Stage.OWN
    assert steps(cluster) == list(range(FIRST, FIRST + 10))


def test_a_standby_far_behind_takes_the_context_for_what_it_has_read_already(cluster: Cluster) -> None:
    _, n2 = pair(cluster)
    feed(cluster, 2)
    processed, jumps = n2.replica.slot.position, n2.replica.intake.jumps
    n2.spare, n2.replica.processor.record_s = False, 1.0
    feed(cluster, 20)
    assert n2.replica.intake.jumps > jumps
    assert n2.replica.slot.position > processed + 10
    assert n2.replica.slot.position == n2.replica.intake.next - len(n2.replica.intake.backlog)
    n2.spare, n2.replica.processor.record_s = True, 0.0
    feed(cluster, 2)
    assert n2.replica.slot.position == cluster.end


def test_an_owners_heartbeat_tells_its_term_before_the_log_is_read(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf")
    n1.frozen = True
    part = SlotBeat(slot=SLOT, role="primary", epoch=5, busy_offset=-1)
    n2.detector.on_heartbeat(Heartbeat(node="n1", incarnation=1, slots=[part]), cluster.now)
    cluster.run(0.05)
    assert (n2.replica.epoch, n2.replica.owner, n2.replica.scan.epoch) == (5, "n1", 0)


def test_contexts_that_cannot_be_had_do_not_keep_a_standby_from_reading(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, n2 = pair(cluster, context_s=0.2)
    do, asked = n2.do, []

    def find_none(action: act.Action) -> list[act.Action]:
        if isinstance(action, act.ReadContext):
            asked.append(action)
            return n2.replica.on_context(None, cluster.first, cluster.now)
        return do(action)

    monkeypatch.setattr(n2, "do", find_none)
    n2.spare = False
    feed(cluster, 40, 0.06)
    n2.spare = True
    feed(cluster, 4)
    assert asked
    assert n2.replica.intake.next == cluster.end


def test_records_that_cost_more_than_a_turn_are_processed_one_a_turn(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=1000.0)
    n1.replica.processor.record_s = n2.replica.processor.record_s = 1.0
    feed(cluster, 2)
    cluster.run(0.5)
    assert n1.replica.slot.position == n2.replica.slot.position == cluster.end
    assert steps(cluster) == [FIRST, FIRST + 1]


def test_what_a_record_costs_is_a_mean_that_forgets_by_records_and_by_time(cluster: Cluster) -> None:
    replica = Node(cluster, "n1").replica
    now = cluster.now
    replica.on_worked(1.0, 1000, now)
    assert replica.processor.record_s == pytest.approx(0.001)
    replica.on_worked(0.002, 1, now)
    assert replica.processor.record_s == pytest.approx(0.001 + COST_WEIGHT * 0.001)
    replica.processor.record_s = 0.001
    replica.on_worked(0.002, 1, now + COST_PERIOD_S)
    assert replica.processor.record_s == pytest.approx(0.001 + (1.0 - math.exp(-1.0)) * 0.001)


def test_what_the_owner_says_of_its_costs_counts_once_a_heartbeat(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, n2 = pair(cluster)
    said: list[tuple[float, float]] = []
    monkeypatch.setattr(n2.replica.batching.costs, "on_owner", lambda *costs: said.append(costs))
    cluster.run(1.0)
    assert 9 <= len(said) <= 11  # ten heartbeats, fifty turns


def test_a_heartbeat_says_what_a_record_costs_and_only_an_owner_tells_of_the_way(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    for node in (n1, n2):
        node.replica.processor.record_s, node.replica.intake.send_s = 0.002, 0.003
        node.replica.intake._ways.append((cluster.now, 17))
        node.turn()
    owner, standby = (node.replica.beat(cluster.now) for node in (n1, n2))
    assert (owner.record_us, owner.send_us, owner.wait_us) == pytest.approx((2000.0, 3000.0, 17))
    assert (standby.record_us, standby.send_us, standby.wait_us) == pytest.approx((2000.0, 0.0, 0))


def test_the_record_before_a_context_is_compared_and_only_once(cluster: Cluster) -> None:
    n1, _ = pair(cluster, context_s=0.2)
    feed(cluster, 5)
    cluster.run(1.0)
    end = cluster.end
    assert cluster.contexts[-1].offset == end
    n3 = Node(cluster, "n3")
    cluster.run(0.3)
    assert n3.fetched == [(end - 1, end)]
    feed(cluster, 2)
    assert n3.fetched[1][0] == end
    assert n3.replica.intake.pulls == len(n3.fetched)
    assert n3.replica.slot.position == n1.replica.slot.position


def test_a_quarantine_that_was_read_before_a_context_came_holds(cluster: Cluster) -> None:
    pair(cluster, context_s=0.2)
    feed(cluster, 5)
    cluster.run(1.0)
    context = cluster.contexts[-1]
    killer = cluster.end
    cluster.step(FIRST + 5)
    cluster.quarantine(1, killer)
    replica = Node(cluster, "n3").replica
    replica.intake.take_in(cluster.records)
    replica.on_context(context, 0, cluster.now)
    assert replica.slot.position == context.offset
    assert replica.slot.register.quarantined == {killer}
    beat = replica.beat(cluster.now + 9.0)
    assert (beat.busy_us, beat.busy_limit_us) == (0, 0)  # the context has been taken in


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
    assert n2.stage() is Stage.OWN
    assert n2.replica.trust.contradictions == 0
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_request_s_time_has_nothing_of_what_was_processed_before_it(cluster: Cluster) -> None:
    _, n2 = pair(cluster)
    replica, now = n2.replica, cluster.now
    replica._shared.requests.ask(now, act.AskEnd())
    replica.on_request(now + 0.5)
    replica.on_end(replica.intake.first, replica.intake.end, now + 0.502)
    assert min(replica.batching.costs._asked) < 0.003
    assert max(replica.batching.costs._asked) < 0.5


def test_after_a_read_that_failed_the_log_is_asked_first(cluster: Cluster) -> None:
    _, n2 = pair(cluster)
    feed(cluster, 2)
    n2.asked, n2.fails = 0, True
    feed(cluster, 5)
    assert n2.asked >= 3
    n2.fails = False
    feed(cluster, 2)
    assert n2.replica.intake.next == cluster.end


def test_the_silent_queue_holds_what_the_downstream_does_not_have(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    cluster.run(0.5)
    assert len(n2.replica.silent) == 0
    n1.keeps_outputs = False
    feed(cluster, 1)
    cluster.step(FIRST + 4)
    cluster.run(0.6)
    assert len(n2.replica.silent) == 2
    n1.deliver(1)
    cluster.run(0.3)
    assert len(n2.replica.silent) == 1


# ---- claims --------------------------------------------------------------------------------------------------------


def test_of_two_claims_the_first_in_the_log_wins(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n3 = Node(cluster, "n3")
    cluster.run(1.5)
    n1.die()
    cluster.run(1.5)
    assert sorted(node.stage().name for node in (n2, n3)) == ["OWN", "WATCH"]
    winner, loser = (n2, n3) if n2.stage() is Stage.OWN else (n3, n2)
    assert loser.replica.owner == winner.name
    assert winner.replica.epoch == 2
    cluster.run(2.0)
    assert winner.stage() is Stage.OWN


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
    assert n2.stage() is Stage.CLAIM
    cluster.run(1.1)
    assert any("did not come back" in note for note in n2.notes)
    assert n2.stage() is Stage.OWN  # the old owner's silence counted on


def test_a_claim_that_arrives_long_after_it_was_given_up_does_no_harm(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    cluster.append(LogRecord(ownership=Ownership(epoch=2, node="n2", generation=GENERATION)))
    cluster.run(0.1)
    assert n1.stage() is Stage.WATCH  # it has been deposed, by somebody who does not know
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
    assert (n1.stage(), n2.stage()) == (Stage.OWN, Stage.WATCH)
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
    assert n2.stage() is Stage.WATCH
    cluster.run(0.6)
    assert n2.stage() is Stage.OWN
    assert n2.replica.epoch == 3


# ---- a primary's end -----------------------------------------------------------------------------------------------


def test_a_deposed_primary_stands_by_and_can_come_back(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    n1.frozen = True
    cluster.run(1.5)
    assert n2.stage() is Stage.OWN
    feed(cluster, 2)
    n1.frozen = False
    cluster.run(0.3)
    assert n1.stage() is Stage.WATCH
    assert n1.follows is None
    assert n1.replica.owner == "n2"
    cluster.run(0.5)
    n2.die()
    cluster.run(1.2)
    assert n1.stage() is Stage.OWN
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
    assert n1.stage() is Stage.WATCH
    cluster.run(2.0)
    assert n1.stage() is Stage.OWN
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
    assert (n1.stage(), n1.replica.epoch) == (Stage.OWN, 3)
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


def test_a_newer_process_of_the_same_name_deposes_the_older(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    cluster.own(2, "n1")
    cluster.run(0.1)
    assert n1.stage() is Stage.WATCH


def test_a_node_started_again_under_its_name_takes_its_slot_back_if_nobody_else_does(cluster: Cluster) -> None:
    n1 = Node(cluster, "n1")
    cluster.run(1.5)
    feed(cluster, 3)
    n1.die()
    again = Node(cluster, "n1", incarnation=2)
    cluster.run(DETECT_S)
    assert again.stage() is Stage.WATCH
    cluster.run(1.0)
    assert again.stage() is Stage.OWN
    assert again.takeovers[0].reason == "restart"
    assert again.replica.epoch == 2
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


def test_a_planned_move_needs_no_silence(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    wish = n2.replica.wish
    n2.replica.on_wish(type(wish)(wish.config, wish.model_sha256, "n2", move=True))
    cluster.run(0.2)
    assert (n1.stage(), n2.stage()) == (Stage.WATCH, Stage.OWN)
    assert (n2.takeovers[0].reason, n2.takeovers[0].detect_s) == ("move", 0.0)
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_planned_move_catches_up_before_it_takes_over(cluster: Cluster) -> None:
    """Its outputs pause from the claim until the new owner has processed what it has not: that must be little."""
    n1, n2 = pair(cluster, batch_size="inf", context_s=1000.0)
    feed(cluster, 30)
    assert n2.replica.processor.processed == 0
    wish = n2.replica.wish
    n2.replica.on_wish(type(wish)(wish.config, wish.model_sha256, "n2", move=True))
    n1.replica.processor.record_s = n2.replica.processor.record_s = 0.05
    cluster.run(2.0)
    assert (n1.stage(), n2.stage()) == (Stage.WATCH, Stage.OWN)
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
    wish = n2.replica.wish
    n2.replica.on_wish(type(wish)(wish.config, wish.model_sha256, "n2", move=True))
    cluster.run(MOVE_PATIENCE_S / 2)
    assert n2.stage() is Stage.WATCH
    cluster.run(MOVE_PATIENCE_S)
    assert (n1.stage(), n2.stage()) == (Stage.WATCH, Stage.OWN)
    assert steps(cluster) == list(range(FIRST, FIRST + 8))


def test_the_owner_dies_while_a_planned_move_is_under_way(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    wish = n2.replica.wish
    n2.replica.on_wish(type(wish)(wish.config, wish.model_sha256, "n2", move=True))
    while n2.stage() is Stage.WATCH:
        cluster.run(0.02)
    n1.die()
    cluster.run(DETECT_S + 1.0)
    assert n2.stage() is Stage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


def test_a_primary_that_leaves_in_good_order_is_replaced_at_once(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    cluster.run(0.3)
    n1.leave()
    cluster.run(0.2)  # far below DETECT_S
    assert n2.stage() is Stage.OWN
    assert n2.takeovers[0].reason == "left"
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_a_stalled_primary_is_replaced_although_it_beats(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    n1.replica.processor.work.take_up(5, 5, cluster.now - 2.0)
    n1.turn = lambda: None  # type: ignore[method-assign]
    cluster.run(0.5)
    assert n2.stage() is Stage.OWN
    assert n2.takeovers[0].reason == "stalled"
