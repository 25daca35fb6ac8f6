"""A replica that stands by: what it reads and processes, what that costs, and what it holds back."""

from __future__ import annotations

import math

import pytest

from tests.unit.slot.small_slot import EDGES, FIRST, SLOT
from tests.unit.standby.shell import DETECT_S, TICK_S, Cluster, Node, feed, hear, pair, steps
from tsunagi.runtime.messages import SlotBeat
from tsunagi.standby import actions as act
from tsunagi.standby.processor import COST_PERIOD_S, COST_WEIGHT
from tsunagi.standby.stages.base import ReplicaStage

# ---- what it reads -------------------------------------------------------------------------------------------------


def test_an_upstream_backup_reads_nothing_before_it_takes_over(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf")
    feed(cluster, 3)
    assert n2.fetched == []
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))


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
    assert n2.stage() is ReplicaStage.WATCH
    assert n2.asked >= 10


def test_after_a_read_that_failed_the_log_is_asked_first(cluster: Cluster) -> None:
    _, n2 = pair(cluster)
    feed(cluster, 2)
    n2.asked, n2.fails = 0, True
    feed(cluster, 5)
    assert n2.asked >= 3
    n2.fails = False
    feed(cluster, 2)
    assert n2.replica.intake.next == cluster.end


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
    assert n2.stage() is ReplicaStage.OWN
    assert steps(cluster) == list(range(FIRST, FIRST + 10))


def test_an_owners_heartbeat_tells_its_term_before_the_log_is_read(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf")
    n1.frozen = True
    part = SlotBeat(slot=SLOT, role="primary", epoch=5, busy_offset=-1)
    hear(n2, "n1", part)
    cluster.run(0.05)
    assert (n2.replica.epoch, n2.replica.owner, n2.replica.scan.epoch) == (5, "n1", 0)


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


# ---- contexts ------------------------------------------------------------------------------------------------------


def test_a_context_is_taken_instead_of_a_long_read(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf", context_s=0.2)
    feed(cluster, 40, 0.06)
    cluster.run(0.5)
    assert cluster.contexts
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.intake.jumps == 1
    assert min(first for first, _ in n2.fetched) > 0
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 42))


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
    replica.intake.on_records(cluster.records)
    replica.on_context(context, 0, cluster.now)
    assert replica.slot.position == context.offset
    assert replica.slot.register.quarantined == {killer}
    beat = replica.beat(cluster.now + 9.0)
    assert (beat.busy_us, beat.busy_limit_us) == (0, 0)  # the context has been taken in


# ---- what it costs -------------------------------------------------------------------------------------------------


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
        cluster.now += TICK_S
        node.turn()
    owner, standby = (node.replica.beat(cluster.now) for node in (n1, n2))
    assert (owner.record_us, owner.send_us, owner.wait_us) == pytest.approx((2000.0, 3000.0, 17))
    assert (standby.record_us, standby.send_us, standby.wait_us) == pytest.approx((2000.0, 0.0, 0))


def test_a_request_s_time_has_nothing_of_what_was_processed_before_it(cluster: Cluster) -> None:
    _, n2 = pair(cluster)
    replica, now = n2.replica, cluster.now
    replica._shared.requests.ask(now, act.AskEnd())
    replica.on_request(now + 0.5)
    replica.on_end(replica.intake.first, replica.intake.end, now + 0.502)
    assert min(replica.batching.costs._asked) < 0.003
    assert max(replica.batching.costs._asked) < 0.5
