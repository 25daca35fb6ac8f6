"""A log that is not the one that was read: it lost its end, was made anew, or has lost its beginning to retention."""

from __future__ import annotations

import pytest

from services.replay import generations, recompute
from services.runtime.messages import EdgeOut, Founding, LogRecord, Ownership
from services.runtime.names import NO_NAME, Name
from services.standby.ownership import Register
from services.standby.replica import Stage
from services.standby.trust import CHECK_S, PATIENCE_S
from tests.unit.gateway.small_slot import FIRST, load
from tests.unit.standby.shell import TICK_S, Cluster, Node, feed, pair


def lose(cluster: Cluster, count: int) -> None:
    """The log loses its last records."""
    del cluster.records[-count:]


def grow(cluster: Cluster, first: int, count: int) -> None:
    """Edges go on from this step: the log is longer again than it was before anybody looks."""
    for step in range(first, first + count):
        cluster.step(step)


def wrong(cluster: Cluster) -> list[str]:
    """What a reader of `recovered` does not get, or gets otherwise than the log says; a reader knows names alone."""
    begun = generations(cluster.records)
    expected = {(item.generation, item.name): item.frame.step for item in recompute(cluster.records, load)}
    found: dict[tuple[int, Name], int] = {}
    last: dict[int, Name] = {}
    for generation, output in zip(cluster.generation_of, cluster.recovered, strict=True):
        if output.name > last.get(generation, NO_NAME):
            last[generation] = output.name
            found[generation, output.name] = output.body.step  # type: ignore[union-attr]
    current = begun[-1]
    said = [f"lost {item}" for item in expected if item not in found]
    said += [
        f"not what the log says: {item}"
        for item, step in found.items()
        if expected.get(item) != step
        and not (item[0] != current.generation and (current.blank or item[1].offset >= current.begin))
    ]
    return said


def settle(cluster: Cluster, step: int) -> int:
    """Let edges go on until all have seen what there is to be seen; return the next step."""
    for _ in range(45):
        cluster.step(step)
        cluster.run(0.2)
        step += 1
    return step


@pytest.mark.parametrize("lost", [1, 2, 5, 9])
@pytest.mark.parametrize("batch", [1, "inf"])
@pytest.mark.parametrize("contexts", [0.4, 1000.0])
def test_a_running_owner_finds_that_its_log_lost_its_end_and_grew_past_it(
    cluster: Cluster, lost: int, batch: int | str, contexts: float
) -> None:
    n1, _ = pair(cluster, batch_size=batch, context_s=contexts)
    feed(cluster, 8)
    cluster.away(lost, FIRST + 8)
    assert n1.follows is not None
    settle(cluster, FIRST + 13)
    assert wrong(cluster) == []
    assert "another record stands before" in n1.replica.scan.declared
    owners = [node for node in cluster.nodes if node.stage() is Stage.OWN]
    assert len(owners) == 1
    assert sum(node.replica.trust.foundings for node in cluster.nodes) >= 1
    others = [node for node in cluster.nodes if node is not owners[0]]
    assert all(node.replica.unready() == "" for node in others)


@pytest.mark.parametrize("lost", [1, 4, 13])
@pytest.mark.parametrize("grown", [0, 6])
@pytest.mark.parametrize("contexts", [0.4, 1000.0])
def test_who_starts_on_a_log_that_lost_its_end_takes_no_context_and_no_name_beyond_it(
    cluster: Cluster, lost: int, grown: int, contexts: float
) -> None:
    n1, n2 = pair(cluster, context_s=contexts)
    feed(cluster, 8)
    n1.die()
    n2.die()
    lose(cluster, lost)
    grow(cluster, FIRST + 8, grown)
    n3 = Node(cluster, "n3", owner="n3", context_s=contexts)
    Node(cluster, "n4", owner="n3", context_s=contexts)
    settle(cluster, FIRST + 8 + grown)
    assert n3.stage() is Stage.OWN
    assert wrong(cluster) == []
    if lost > 1 or grown == 0:
        assert n3.replica.scan.declared


@pytest.mark.parametrize("contexts", [0.4, 1000.0])
def test_a_new_owner_that_dies_at_once_is_followed_by_one_that_knows_the_generation(
    cluster: Cluster, contexts: float
) -> None:
    n1, n2 = pair(cluster, context_s=contexts)
    feed(cluster, 8)
    cluster.away(4, FIRST + 8)
    for _ in range(1000):
        cluster.run(0.02)
        if n1.replica.trust.foundings:
            break
    n1.die()
    settle(cluster, FIRST + 13)
    assert n2.stage() is Stage.OWN
    assert wrong(cluster) == []
    assert n2.replica.scan.declared


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("lost", [1, 3, 7])
@pytest.mark.parametrize("contexts", [0.4, 1000.0])
def test_outputs_that_the_log_has_lost_are_written_again_in_a_new_generation(
    cluster: Cluster, contexts: float, lost: int, dies: bool
) -> None:
    n1, _ = pair(cluster, context_s=contexts)
    feed(cluster, 8)
    cluster.run(1.0)  # the outputs are acknowledged, and the secondary keeps none of them
    del cluster.recovered[-lost:], cluster.generation_of[-lost:]
    if dies:
        n1.die()
    settle(cluster, FIRST + 8)
    assert wrong(cluster) == []
    (owner,) = [node for node in cluster.nodes if node.stage() is Stage.OWN]
    assert "`recovered` lost its end" in owner.replica.scan.declared


def test_outputs_that_are_seen_late_are_not_taken_for_lost(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 8)
    cluster.run(1.0)
    held = cluster.recovered[-3:]
    del cluster.recovered[-3:]
    n1.die()
    while n2.stage() is not Stage.TAIL:
        cluster.run(TICK_S)
    cluster.run(0.5)
    assert n2.stage() is Stage.TAIL
    cluster.recovered += held
    cluster.run(0.5)
    assert n2.stage() is Stage.OWN
    assert n2.replica.scan.declared == ""


def test_a_log_made_anew_is_begun_with_an_epoch_above_all_that_are_known(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.4)
    feed(cluster, 8)
    n1.die()
    n2.die()
    cluster.records.clear()
    grow(cluster, FIRST + 8, 30)
    for context in cluster.contexts:
        context.topic_id = "one"
    n3 = Node(cluster, "n3", owner="n3", context_s=0.4)
    n3.replica.trust.topic_id = "another"
    settle(cluster, FIRST + 38)
    assert n3.stage() is Stage.OWN
    assert n3.replica.epoch > 1
    assert n3.replica.scan.founding is not None
    assert n3.replica.scan.founding.blank
    assert wrong(cluster) == []


def test_a_slot_of_which_retention_has_left_nothing_but_batches_is_begun_anew(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.4)
    feed(cluster, 4)
    n1.die()
    n2.die()
    first = cluster.end
    grow(cluster, FIRST + 4, 10)
    cluster.forget(first)
    cluster.contexts.clear()
    n3 = Node(cluster, "n3", owner="n3")
    n4 = Node(cluster, "n4", owner="n3")
    cluster.run(PATIENCE_S - 2.0)
    assert "retention has passed" in n3.replica.unready()
    settle(cluster, FIRST + 14)
    owner, other = (n3, n4) if n3.stage() is Stage.OWN else (n4, n3)
    assert owner.stage() is Stage.OWN
    assert other.replica.unready() == ""
    assert owner.replica.scan.declared == other.replica.scan.declared
    assert f"begins at offset {first}" in owner.replica.scan.declared
    assert wrong(cluster) == []
    steps = [output.body.step for output in cluster.recovered]  # type: ignore[union-attr]
    assert set(range(FIRST + 4, FIRST + 55)) <= set(steps)


def test_a_slot_that_somebody_holds_is_not_begun_anew(cluster: Cluster) -> None:
    n1, _ = pair(cluster, context_s=1000.0)
    feed(cluster, 4)
    cluster.forget(6)
    n3 = Node(cluster, "n3")
    cluster.run(3 * PATIENCE_S)
    assert "retention has passed" in n3.replica.unready()
    assert n1.stage() is Stage.OWN
    assert n1.replica.scan.declared == ""


def test_an_undisturbed_log_is_compared_and_nothing_is_found(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.4)
    for _ in range(3):
        feed(cluster, 5)
        cluster.run(2 * CHECK_S)
    feed(cluster, 15)
    assert not n1.replica.intake.breaks
    assert n1.replica.trust.contradictions == n2.replica.trust.contradictions == 0
    assert wrong(cluster) == []


@pytest.mark.parametrize(
    ("epoch", "blank", "counts"),
    [(5, True, True), (9, True, True), (4, True, False), (5, False, True), (6, False, False)],
)
def test_which_founding_counts_where_the_epoch_is_4(epoch: int, blank: bool, counts: bool) -> None:
    register = Register(epoch=4, generation=7)
    founding = Founding(begin=3, blank=blank, lost_from=3, lost_to=9, reason="it was lost")
    claim = Ownership(epoch=epoch, node="n", generation=8, founding=founding)
    assert register.read(20, LogRecord(ownership=claim)) is counts
    assert (register.generation, register.began) == ((8, 3) if counts else (7, 0))
    assert ("records 3..8 are lost" in register.declared) is counts
    assert not register.read(21, LogRecord(edge_out=EdgeOut(epoch=4 if counts else 3, edge="e")))
    assert not register.read(22, LogRecord(ownership=claim))
