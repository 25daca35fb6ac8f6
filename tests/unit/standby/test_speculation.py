"""A standby that helps before it is sure: no step waits for the detection, and nobody's ownership changes for it."""

from __future__ import annotations

from tests.unit.hashes import NOBODYS_SHA
from tests.unit.slot.small_slot import FIRST, GENERATION, SLOT
from tests.unit.standby.shell import DETECT_S, TICK_S, Cluster, Node, feed, hear, make, output, pair, steps
from tsunagi.runtime.log import LATE
from tsunagi.runtime.messages import LogRecord, ModelChange, SlotBeat
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.standby import actions as act
from tsunagi.standby.queue import PendingQueue, SilentQueue
from tsunagi.standby.speculation import Speculated, Speculation
from tsunagi.standby.stages.base import ReplicaStage


def names_go_up(cluster: Cluster) -> bool:
    names = [output.name for output in cluster.recovered]
    return names == sorted(set(names))


def test_a_dead_owners_steps_come_out_before_it_is_known_to_be_dead(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 3)
    n1.die()
    cluster.step(FIRST + 3)
    cluster.run(0.2)
    assert steps(cluster)[-1] == FIRST + 2
    cluster.run(0.2)
    cluster.step(FIRST + 4)
    cluster.run(0.1)
    assert (n2.stage(), n2.replica.epoch) == (ReplicaStage.WATCH, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 5))
    assert n2.announced  # it may have been one of these records
    cluster.run(DETECT_S)
    assert (n2.stage(), n2.replica.epoch) == (ReplicaStage.OWN, 2)
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 7))
    assert names_go_up(cluster)
    total = n2.replica.speculated
    assert (total.begun, total.in_vain, total.outputs, total.repeats) == (1, 0, 2, 0)


def test_a_hint_that_the_owner_may_be_dead_needs_no_silence(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 3)
    n1.die()
    n2.detector.hint("n1", 1, cluster.now)
    cluster.step(FIRST + 3)
    cluster.run(0.2)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))
    assert (n2.stage(), n2.replica.epoch) == (ReplicaStage.WATCH, 1)
    assert n2.announced  # it may have been one of these records
    cluster.run(DETECT_S + 0.3)
    assert (n2.stage(), n2.replica.epoch) == (ReplicaStage.OWN, 2)
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 6))
    assert (n2.replica.speculated.begun, n2.replica.speculated.in_vain) == (1, 0)


def test_a_wrong_hint_costs_repeats_until_the_owner_is_heard_again(cluster: Cluster) -> None:
    _, n2 = pair(cluster, speculate=True)
    feed(cluster, 3)
    for _ in range(5):
        n2.detector.hint("n1", 1, cluster.now)
        feed(cluster, 1)
    feed(cluster, 5)
    total = n2.replica.speculated
    assert (total.begun, total.in_vain) == (1, 1)
    assert 0 < total.repeats < 8
    assert (n2.stage(), n2.replica.epoch) == (ReplicaStage.WATCH, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 13))
    written = [output.name for output in cluster.recovered]
    assert len(written) == len(set(written)) + total.repeats, "readers drop them by name"


def test_records_that_cost_more_than_a_turn_are_written_ahead_one_a_turn(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True, context_s=1000.0)
    feed(cluster, 3)
    n2.replica.processor.record_s = 1.0
    n1.die()
    cluster.step(FIRST + 3)
    cluster.run(0.6)
    assert n2.stage() is ReplicaStage.WATCH
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


def test_what_was_computed_silently_comes_first(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 2)
    n1.keeps_outputs = False  # the owner's outputs do not arrive, its heartbeats do
    feed(cluster, 3)
    assert len(n2.replica.silent) == 3
    n1.die()
    cluster.run(0.45)
    assert n2.stage() is ReplicaStage.WATCH
    assert steps(cluster) == list(range(FIRST, FIRST + 5))
    cluster.run(DETECT_S)
    assert names_go_up(cluster)


def test_an_owner_that_is_heard_again_stays_the_owner_and_repeats_are_counted(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 3)
    n1.silent = True  # it works on, but is not heard
    cluster.step(FIRST + 3)
    cluster.run(0.45)
    assert n2.replica.speculated.begun == 1
    n1.silent = False
    feed(cluster, 2)
    cluster.run(1.0)
    assert (n1.stage(), n2.stage()) == (ReplicaStage.OWN, ReplicaStage.WATCH)
    assert (n1.replica.epoch, n2.replica.epoch) == (1, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 6))
    total = n2.replica.speculated
    assert total.in_vain == 1
    assert total.repeats == total.outputs <= 1
    assert n2.replica.processor.work.on_records is None
    assert len(n2.replica.silent) == 0


def test_a_frozen_owner_that_goes_on_repeats_what_was_written_for_it(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 3)
    n1.frozen = True
    cluster.step(FIRST + 3)
    cluster.run(0.5)
    assert steps(cluster) == list(range(FIRST, FIRST + 4))
    n1.frozen = False
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 6))
    assert not names_go_up(cluster)
    assert n2.replica.speculated.repeats == 1
    assert n2.replica.epoch == 1


def test_without_the_switch_nothing_is_written_before_a_promotion(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    n1.die()
    cluster.step(FIRST + 3)
    cluster.run(0.6)
    assert (n2.stage(), steps(cluster)[-1]) == (ReplicaStage.WATCH, FIRST + 2)


def test_whoever_does_not_hear_itself_suspects_nobody(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    n1.silent = True
    n2.deaf = True
    cluster.step(FIRST)
    cluster.run(2.0)
    assert n2.replica.speculated.begun == 0


def test_an_upstream_backup_reads_up_at_the_weak_suspicion(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True, batch_size="inf")
    feed(cluster, 4)
    assert n2.fetched == []
    n1.die()
    cluster.step(FIRST + 4)
    cluster.run(0.5)
    assert (n2.stage(), steps(cluster)) == (ReplicaStage.WATCH, list(range(FIRST, FIRST + 5)))
    assert names_go_up(cluster)  # it had read nothing of this log before


def test_the_last_output_is_asked_for_again_once_the_records_are_of_another_generation(cluster: Cluster) -> None:
    """Else all that follows from them would be written behind outputs of records that the log has lost since."""
    n1, n2 = pair(cluster, speculate=True, batch_size="inf")
    feed(cluster, 4)
    cluster.written = GENERATION - 1  # the last output is of another generation than the records
    n1.die()
    cluster.step(FIRST + 4)
    while len(n2.tails) < 2:
        assert len(cluster.recovered) == 4
        cluster.run(TICK_S)
        assert cluster.now < 110.0
    assert n2.tails == [0, GENERATION]  # it had read nothing when it began
    cluster.run(0.2)
    assert n2.tails == [0, GENERATION]
    assert steps(cluster)[4:] == [FIRST + 4]  # the others are acknowledged


def test_what_the_owner_survived_but_did_not_get_out_is_not_passed_over(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True, batch_size="inf")
    feed(cluster, 2)
    n1.keeps_outputs = False
    for step in range(FIRST + 2, FIRST + 5):
        cluster.step(step)
        cluster.run(0.2)
    assert n2.fetched == []
    n1.die()
    cluster.step(FIRST + 5)
    cluster.run(0.5)
    assert (n2.stage(), steps(cluster)) == (ReplicaStage.WATCH, list(range(FIRST, FIRST + 6)))


def test_what_was_processed_before_a_record_that_cannot_be_is_written(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True, batch_size="inf")
    feed(cluster, 2)
    n1.keeps_outputs = False
    cluster.step(FIRST + 2)
    cluster.append(LogRecord(model=ModelChange(epoch=1, sha256=NOBODYS_SHA)))
    n1.die()
    cluster.run(0.5)
    assert NOBODYS_SHA in n2.replica.processor.fault.text
    assert n2.replica.waits
    assert steps(cluster) == list(range(FIRST, FIRST + 3))


def test_a_log_that_lost_its_end_ends_it(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 2)
    n1.die()
    cluster.step(FIRST + 2)
    cluster.run(0.4)
    assert not n2.replica.waits
    del cluster.records[-1]
    cluster.run(0.3)
    assert "lost records" in n2.replica.processor.fault.text
    assert n2.replica.waits
    cluster.run(4.0)
    assert "lost records" in n2.replica.scan.declared
    assert n2.stage() is ReplicaStage.OWN


def test_side_records_are_written_too(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 2)
    n1.die()
    cluster.step(FIRST, "e1")
    cluster.run(0.5)
    assert n2.stage() is ReplicaStage.WATCH
    assert [output.topic for output in cluster.side] == [LATE]


def test_another_node_that_takes_over_ends_it(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, speculate=True)
    feed(cluster, 2)
    n1.die()
    cluster.step(FIRST + 2)
    cluster.run(0.4)
    assert n2.replica.speculated.begun == 1
    cluster.own(2, "n3")
    cluster.run(0.2)
    assert n2.replica.owner == "n3"
    assert n2.replica.waits
    cluster.run(0.5)
    assert n2.stage() is ReplicaStage.WATCH  # it has all its time


def test_nobody_speculates_on_records_of_which_somebody_has_died(cluster: Cluster) -> None:
    n2 = Node(cluster, "n2", batch_size="inf", speculate=True)
    cluster.own(1, "n1", make())
    first = cluster.end
    for step in range(FIRST, FIRST + 3):
        cluster.step(step)
    hear(n2, "n1", SlotBeat(slot=SLOT, role="primary", epoch=1, position=first))
    hear(n2, "n3", SlotBeat(slot=SLOT, role="standby", epoch=1, busy_offset=first, busy_until=first + 5))
    cluster.run(2.0)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.speculated.begun == 0


def test_what_is_written_ahead_is_on_its_way_until_the_broker_has_it() -> None:
    """A node that owns the slot later must not acknowledge outputs that it wrote ahead and that have not arrived."""
    pending = PendingQueue()
    speculation = Speculation(Speculated(), SilentQueue(), pending)
    assert speculation.announced == 0  # nothing may be processed before it is announced
    speculation.begin(7, Name(3, 0), 0)
    assert speculation.emit([], 7) == []
    assert speculation.emit([output(3), output(4)], 7) == [act.Emit((output(4),), 7)]
    assert len(pending) == 1


def test_of_a_log_begun_anew_nothing_is_known_to_be_written() -> None:
    silent = SilentQueue()
    silent.add([output(4)])
    speculation = Speculation(Speculated(), silent, PendingQueue())
    speculation.begin(7, Name(9, 0), 0)
    assert speculation.emit([output(4)], 8) == [act.Emit((output(4),), 8)]


def test_an_output_that_no_processed_record_caused_is_found_before_anything_is_written() -> None:
    silent = SilentQueue()
    silent.add([output(3), output(5)])
    for tail, appended_us, found in (
        (Name(3, 0), 1, True),  # made here of another record
        (Name(4, 0), 1, True),  # nothing was made of this record here
        (Name(4, 0), 0, False),  # an early release did not say of which record it was made
        (Name(9, 0), 1, False),  # not processed here yet
        (NO_NAME, 0, False),
    ):
        speculation = Speculation(Speculated(), silent, PendingQueue())
        speculation.begin(7, tail, appended_us)
        assert speculation.foreign(6, 7) == (tail if found else None)
        assert speculation.foreign(6, 8) is None  # of another generation
