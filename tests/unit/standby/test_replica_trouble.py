"""A replica that lacks something, and records that kill; time is the test's."""

from __future__ import annotations

import threading

import pytest

from tests.unit.hashes import SHA
from tests.unit.slot.small_slot import FIRST, MODEL
from tests.unit.standby.shell import DETECT_S, Cluster, Node, feed, make, pair, steps
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import PendingError
from tsunagi.runtime.messages import LogRecord, ModelChange
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.standby.stages.watch import DIFFERS_PATIENCE

# ---- what may be missing -------------------------------------------------------------------------------------------


def test_a_log_that_lost_its_end_is_not_written_for_before_a_new_generation(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    del cluster.records[6:]
    n1.die()
    cluster.run(0.3)
    assert "the log ends at 6" in n2.replica.unready()
    cluster.run(0.6)
    assert n2.stage() is ReplicaStage.WATCH
    cluster.run(3.0)
    assert n2.stage() is ReplicaStage.OWN
    assert "the log ends at 6" in n2.replica.scan.declared


def test_it_is_ready_again_when_the_end_was_only_seen_late(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 3)
    lost = cluster.records[6:]
    del cluster.records[6:]
    n1.frozen = True
    cluster.run(0.3)
    assert n2.replica.unready()
    cluster.records += lost
    n1.frozen = False
    cluster.run(1.5)
    assert n2.replica.unready() == ""


def test_a_start_whose_log_begins_too_late_waits_for_a_context(cluster: Cluster) -> None:
    n1 = Node(cluster, "n1", context_s=0.2)
    cluster.run(1.5)
    feed(cluster, 5)
    cluster.first = 6
    acks, cluster.acks = cluster.acks, []
    n2 = Node(cluster, "n2")
    cluster.run(0.5)
    assert "retention has passed the resume point: the log begins at 6, needed from 0" in n2.replica.unready()
    for ack in acks:
        n2.replica.on_ack(ack, cluster.now)
    cluster.run(1.5)
    assert n2.replica.unready() == ""
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    assert steps(cluster) == list(range(FIRST, FIRST + 7))


def test_a_standby_whose_place_retention_has_passed_does_not_look_ready(cluster: Cluster) -> None:
    _, n2 = pair(cluster, batch_size="inf", context_s=1000.0)
    feed(cluster, 3)
    assert n2.replica.unready() == ""
    cluster.forget(6)
    cluster.run(1.5)
    assert "retention has passed the resume point: the log begins at 6" in n2.replica.unready()
    assert n2.stage() is ReplicaStage.WATCH


def test_a_context_that_is_gone_is_done_without(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, batch_size="inf", context_s=0.2)
    feed(cluster, 40, 0.06)
    cluster.run(0.5)
    n1.die()
    cluster.contexts.clear()
    cluster.run(1.6)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.intake.jumps == 0
    feed(cluster, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 41))


def leave_contexts(cluster: Cluster) -> None:
    """Let an owner write 40 steps and many contexts, and die."""
    n1 = Node(cluster, "n1", context_s=0.2)
    cluster.run(1.5)
    feed(cluster, 40, 0.06)
    cluster.run(0.5)
    n1.die()


def test_where_the_acknowledged_context_is_gone_an_older_one_does(cluster: Cluster) -> None:
    """A power cut took the newest, and retention what stands before the one that is left: nothing is lost by it."""
    leave_contexts(cluster)
    cluster.contexts.pop()
    cluster.first = cluster.contexts[-1].offset
    n2 = Node(cluster, "n2")
    cluster.run(3.0)
    assert n2.stage() is ReplicaStage.OWN
    assert n2.replica.trust.foundings == 0
    feed(cluster, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 41))


@pytest.mark.parametrize("spoilt", [1, 2])
def test_a_context_that_cannot_be_restored_is_asked_for_no_more(cluster: Cluster, spoilt: int) -> None:
    """Whoever wrote it: it must neither end those who come by nor keep them asking for ever."""
    leave_contexts(cluster)
    for context in cluster.contexts[-spoilt:]:
        context.settings.text = "{}"
    n2 = Node(cluster, "n2")
    cluster.run(3.0)
    assert n2.stage() is ReplicaStage.OWN
    assert sum(note.startswith("unusable context") for note in n2.notes) == spoilt
    feed(cluster, 1)
    assert steps(cluster) == list(range(FIRST, FIRST + 41))


def test_a_context_that_is_older_than_what_retention_has_left_is_none(cluster: Cluster) -> None:
    leave_contexts(cluster)
    cluster.contexts.pop()
    cluster.first = cluster.contexts[-1].offset + 1
    n2 = Node(cluster, "n2")
    cluster.run(3.0)
    assert "retention has passed the resume point" in n2.replica.unready()


class Store:
    def __init__(self) -> None:
        self.models: dict[str, Model] = {}

    def __call__(self, sha256: str) -> Model:
        if sha256 not in self.models:
            raise ModelError(f"the store has no {sha256}")
        return self.models[sha256]


def test_a_secondary_without_the_model_is_not_ready_until_it_arrives(cluster: Cluster) -> None:
    store = Store()
    config = make({"use": "recover"})
    n1 = Node(cluster, "n1", config=config, model=SHA, load_model=lambda _: MODEL)
    n2 = Node(cluster, "n2", config=config, model=SHA, load_model=store)
    cluster.run(1.5)
    feed(cluster, 2)
    assert "the store has no aa" in n2.replica.unready()
    n1.frozen = True
    cluster.run(1.5)
    assert n2.stage() is ReplicaStage.WATCH
    n1.frozen = False
    cluster.run(0.5)
    store.models[SHA] = MODEL
    cluster.run(0.5)
    assert n2.replica.unready() == ""
    n1.die()
    cluster.run(1.2)
    assert n2.stage() is ReplicaStage.OWN


def test_a_primary_without_the_model_waits_acknowledges_nothing_and_is_not_held_to_be_stuck(cluster: Cluster) -> None:
    store = Store()
    config = make({"use": "recover"})
    n1 = Node(cluster, "n1", config=config, load_model=store)
    cluster.run(1.5)
    feed(cluster, 2)
    place = cluster.append(LogRecord(model=ModelChange(epoch=1, sha256=SHA)))
    cluster.step(FIRST + 2)
    cluster.run(2.0)
    beat = n1.replica.beat(cluster.now)
    assert (beat.position, beat.busy_offset, beat.role) == (place, -1, "primary")
    assert "the store has no aa" in beat.reason
    assert max(ack.level0.offset for ack in cluster.acks) <= place
    store.models[SHA] = MODEL
    cluster.run(0.5)
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]


# ---- a model that takes long to read -------------------------------------------------------------------------------


class Slow:
    """Reads its model beside whoever asks, as `tsunagi.worker.shelf.Shelf` does."""

    def __init__(self) -> None:
        self.ready = threading.Event()

    def __call__(self, sha256: str) -> Model:
        if not self.ready.is_set():
            raise PendingError(sha256, self.ready)
        return MODEL


def test_an_owner_whose_model_is_being_read_waits_for_it_and_is_not_held_to_be_stuck(cluster: Cluster) -> None:
    slow, config = Slow(), make({"use": "recover"})
    n1 = Node(cluster, "n1", config=config, load_model=slow)
    n2 = Node(cluster, "n2", config=config, load_model=slow)
    cluster.run(1.5)
    feed(cluster, 2)
    place = cluster.append(LogRecord(model=ModelChange(epoch=1, sha256=SHA)))
    cluster.step(FIRST + 2)
    cluster.run(0.9)
    beat = n1.replica.beat(cluster.now)
    assert (beat.position, beat.busy_offset, beat.role) == (place, -1, "primary")
    assert beat.reason == "its model is being read"
    assert 0 < beat.busy_us < beat.busy_limit_us
    assert not n1.replica.behind
    assert n2.stage() is ReplicaStage.WATCH
    assert steps(cluster) == [FIRST, FIRST + 1]
    slow.ready.set()
    cluster.run(0.5)
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]
    assert n1.replica.beat(cluster.now).busy_limit_us == 0
    assert (n1.replica.unready(), n2.replica.unready()) == ("", "")


def test_an_owner_whose_model_is_read_for_longer_than_announced_is_replaced(cluster: Cluster) -> None:
    slow, config = Slow(), make({"use": "recover"})
    n1 = Node(cluster, "n1", config=config, load_model=slow)
    n2 = Node(cluster, "n2", config=config, load_model=lambda _: MODEL)
    cluster.run(1.5)
    feed(cluster, 2)
    cluster.append(LogRecord(model=ModelChange(epoch=1, sha256=SHA)))
    cluster.step(FIRST + 2)
    cluster.run(4.0)
    assert n2.stage() is ReplicaStage.OWN
    assert n1.stage() is ReplicaStage.WATCH
    assert steps(cluster) == [FIRST, FIRST + 1, FIRST + 2]


def test_a_standby_is_not_ready_before_the_model_that_the_plan_has_for_it_is(cluster: Cluster) -> None:
    prepared = threading.Event()
    Node(cluster, "n1")
    standby = Node(cluster, "n2", preparing=prepared)
    cluster.run(1.5)
    feed(cluster, 2)
    assert standby.replica.unready() == "its model is being read"
    prepared.set()
    assert standby.replica.unready() == ""


def test_a_state_is_restored_once_its_model_is_there(cluster: Cluster) -> None:
    config = make({"use": "recover"})
    Node(cluster, "n1", config=config, model=SHA, context_s=0.2)
    cluster.run(1.0)
    feed(cluster, 20, 0.06)
    cluster.run(0.5)
    slow = Slow()
    cluster.forget(cluster.end - 5)
    late = Node(cluster, "n2", config=config, model=SHA, load_model=slow)
    cluster.run(1.0)
    assert late.stage() is ReplicaStage.START
    beat = late.replica.beat(cluster.now)
    assert 0 < beat.busy_us < beat.busy_limit_us
    slow.ready.set()
    cluster.run(0.5)
    assert late.stage() is ReplicaStage.WATCH
    assert late.replica.unready() == ""


# ---- other settings ------------------------------------------------------------------------------------------------


def test_a_secondary_of_other_settings_comes_last_but_comes(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 2)
    cluster.run(1.0)
    other = make({"use": "select", "at_least": 0.0})
    n2.die()
    n3 = Node(cluster, "n3", config=other)
    cluster.run(1.0)
    assert n3.replica.unready() == "its settings differ from those in the slot's log"
    n1.die()
    cluster.run(DETECT_S * DIFFERS_PATIENCE - 0.2)
    assert n3.stage() is ReplicaStage.WATCH
    cluster.run(0.6)
    assert n3.stage() is ReplicaStage.OWN
    feed(cluster, 2)
    assert n3.replica.slot.settings.hash == other.hash
    assert n3.replica.unready() == ""
    assert steps(cluster) == list(range(FIRST, FIRST + 4))


@pytest.mark.parametrize("batch_size", [1, 10_000])
def test_a_whole_fleet_started_with_new_settings_goes_on(cluster: Cluster, batch_size: int) -> None:
    """The standby becomes ready whatever its batch size B is.

    The new owner writes the new settings into the log. With a large B the standby would not read them for a long time,
    and would count as a node of other settings, which must not take over.
    """
    n1, n2 = pair(cluster, context_s=0.2)
    feed(cluster, 5)
    cluster.run(0.5)
    n1.die()
    n2.die()
    other = make({"use": "select", "at_least": 0.0})
    again = [Node(cluster, name, config=other, incarnation=2, batch_size=batch_size) for name in ("n1", "n2")]
    cluster.run(6.0)
    assert sorted(node.stage().name for node in again) == ["OWN", "WATCH"]
    assert all(node.replica.unready() == "" for node in again)
