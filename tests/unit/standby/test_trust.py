"""A log that is not the one that was read: it lost its end, was made anew, or has lost its beginning to retention."""

from __future__ import annotations

import pytest

from tests.unit.slot.small_slot import FIRST, GENERATION, load
from tests.unit.standby.shell import TICK_S, Cluster, Node, feed, pair
from tsunagi.replay.generations import generations
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.messages import EdgeOut, Founding, LogRecord, Ownership
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.ownership import Register
from tsunagi.standby.stages.base import ReplicaStage
from tsunagi.standby.trust import CHECK_S, FORGIVEN_S, PATIENCE_S, SHORT_S, Spell, Trust


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
@pytest.mark.parametrize("speculate", [False, True])
def test_a_running_owner_finds_that_its_log_lost_its_end_and_grew_past_it(
    cluster: Cluster, lost: int, batch: int | str, contexts: float, speculate: bool
) -> None:
    n1, _ = pair(cluster, batch_size=batch, context_s=contexts, speculate=speculate)
    feed(cluster, 8)
    known = cluster.end
    cluster.away(lost, FIRST + 8)
    assert n1.follows is not None
    settle(cluster, FIRST + 13)
    assert wrong(cluster) == []
    assert "another record stands before" in n1.replica.scan.declared
    owners = [node for node in cluster.nodes if node.stage() is ReplicaStage.OWN]
    assert len(owners) == 1
    assert owners[0].replica.scan.generation > GENERATION
    founding = owners[0].replica.scan.founding
    assert founding is not None
    assert founding.begin <= known - lost
    assert founding.lost_to >= known
    assert sum(node.replica.trust.foundings for node in cluster.nodes) >= 1
    others = [node for node in cluster.nodes if node is not owners[0]]
    assert all(node.replica.unready() == "" for node in others)


@pytest.mark.parametrize("quiet_s", [0.02, 0.3])
@pytest.mark.parametrize("contexts", [0.1, 1000.0])
@pytest.mark.parametrize("batch", [1, "inf"])
def test_what_a_log_lost_is_found_though_what_came_after_is_right(
    cluster: Cluster, quiet_s: float, contexts: float, batch: int | str
) -> None:
    """The log's times make another jump before the first is looked at. Behind that one nothing was lost."""
    n1, _ = pair(cluster, batch_size=batch, context_s=contexts)
    feed(cluster, 8)
    cluster.now += 0.3
    cluster.step(FIRST + 8)
    cluster.run(0.04)
    assert not n1.replica.intake.breaks  # it has just compared, and will not do so again for a second
    cluster.away(2, FIRST + 9)
    cluster.run(0.2)
    kept = len(cluster.contexts)
    for step in range(14, 17):
        cluster.now += quiet_s
        cluster.step(FIRST + step)
        cluster.run(0.02)
    if quiet_s < 0.1:
        assert n1.replica.intake.breaks
        assert len(cluster.contexts) == kept  # no context is saved of what may be lost
    settle(cluster, FIRST + 17)
    assert wrong(cluster) == []
    (owner,) = [node for node in cluster.nodes if node.stage() is ReplicaStage.OWN]
    assert owner.replica.scan.declared


@pytest.mark.parametrize("lost", [1, 4, 13])
@pytest.mark.parametrize("grown", [0, 6])
@pytest.mark.parametrize("contexts", [0.4, 1000.0])
@pytest.mark.parametrize("speculate", [False, True])
def test_who_starts_on_a_log_that_lost_its_end_takes_no_context_and_no_name_beyond_it(
    cluster: Cluster, lost: int, grown: int, contexts: float, speculate: bool
) -> None:
    n1, n2 = pair(cluster, context_s=contexts, speculate=speculate)
    feed(cluster, 8)
    n1.die()
    n2.die()
    lose(cluster, lost)
    grow(cluster, FIRST + 8, grown)
    n3 = Node(cluster, "n3", owner="n3", context_s=contexts, speculate=speculate)
    Node(cluster, "n4", owner="n3", context_s=contexts, speculate=speculate)
    settle(cluster, FIRST + 8 + grown)
    assert n3.stage() is ReplicaStage.OWN
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
    assert n2.stage() is ReplicaStage.OWN
    assert wrong(cluster) == []
    assert n2.replica.scan.declared


def test_what_the_generation_before_has_written_is_not_written_again_by_who_builds_its_state_of_records(
    cluster: Cluster,
) -> None:
    n1, n2 = pair(cluster, context_s=0.4)
    feed(cluster, 8)
    cluster.away(4, FIRST + 8)
    while not n1.replica.trust.foundings:
        cluster.run(0.02)
    began = n1.replica.scan.began
    n1.die()
    n2.die()
    cluster.contexts.clear()
    cluster.acks.clear()
    n3 = Node(cluster, "n3", owner="n3", context_s=1000.0)
    settle(cluster, FIRST + 13)
    assert n3.stage() is ReplicaStage.OWN
    written = list(zip(cluster.generation_of, cluster.recovered, strict=True))
    names = [output.name for generation, output in written if generation == n3.replica.scan.generation]
    assert 0 < began <= min(name.offset for name in names)
    assert wrong(cluster) == []


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("lost", [1, 3, 7])
@pytest.mark.parametrize("contexts", [0.4, 1000.0])
@pytest.mark.parametrize("speculate", [False, True])
def test_outputs_that_the_log_has_lost_are_written_again_in_a_new_generation(
    cluster: Cluster, contexts: float, lost: int, dies: bool, speculate: bool
) -> None:
    n1, _ = pair(cluster, context_s=contexts, speculate=speculate)
    feed(cluster, 8)
    cluster.run(1.0)  # the outputs are acknowledged, and the secondary keeps none of them
    del cluster.recovered[-lost:], cluster.generation_of[-lost:]
    if dies:
        n1.die()
    settle(cluster, FIRST + 8)
    assert wrong(cluster) == []
    (owner,) = [node for node in cluster.nodes if node.stage() is ReplicaStage.OWN]
    assert "`recovered` lost its end" in owner.replica.scan.declared


def test_outputs_that_are_seen_late_are_not_taken_for_lost(cluster: Cluster) -> None:
    n1, n2 = pair(cluster)
    feed(cluster, 8)
    cluster.run(1.0)
    held = cluster.recovered[-3:]
    del cluster.recovered[-3:]
    n1.die()
    while n2.stage() is not ReplicaStage.TAIL:
        cluster.run(TICK_S)
    cluster.run(0.5)
    assert n2.stage() is ReplicaStage.TAIL
    cluster.recovered += held
    cluster.run(0.5)
    assert n2.stage() is ReplicaStage.OWN
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
    assert n3.stage() is ReplicaStage.OWN
    assert n3.replica.epoch > 1
    assert n3.replica.scan.founding is not None
    assert n3.replica.scan.founding.blank
    assert "topic" in n3.replica.scan.declared
    assert wrong(cluster) == []


@pytest.mark.parametrize("batch_size", [1, 100, "inf"])
def test_who_does_not_begin_the_new_generation_stands_by_for_it(cluster: Cluster, batch_size: int | str) -> None:
    """Its resume point moves on with each acknowledgement, so that the log never holds a whole batch for it."""
    n1, n2 = pair(cluster, context_s=0.4)
    feed(cluster, 8)
    n1.die()
    n2.die()
    cluster.forget(cluster.end - 4)
    cluster.contexts.clear()
    cluster.acks.clear()
    nodes = [Node(cluster, name, owner="n3", context_s=0.4, batch_size=batch_size) for name in ("n3", "n4")]
    for later in range(FIRST + 8, FIRST + 120):
        cluster.step(later)
        cluster.run(0.1)
    assert sorted(node.stage().name for node in nodes) == ["OWN", "WATCH"]
    assert [node.replica.unready() for node in nodes] == ["", ""]


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
    owner, other = (n3, n4) if n3.stage() is ReplicaStage.OWN else (n4, n3)
    assert owner.stage() is ReplicaStage.OWN
    assert other.replica.unready() == ""
    assert owner.replica.scan.declared == other.replica.scan.declared
    assert f"begins at offset {first}" in owner.replica.scan.declared
    assert wrong(cluster) == []
    steps = [output.body.step for output in cluster.recovered]  # type: ignore[union-attr]
    assert set(range(FIRST + 4, FIRST + 55)) <= set(steps)


def test_an_older_context_is_searched_for_where_the_newest_is_of_what_was_lost(cluster: Cluster) -> None:
    n1, n2 = pair(cluster, context_s=0.4)
    feed(cluster, 8)
    cluster.run(1.0)
    n1.die()
    n2.die()
    lose(cluster, 5)
    kept = [context.offset for context in cluster.contexts if context.offset <= cluster.end]
    assert 0 < len(kept) < len(cluster.contexts)
    cluster.forget(kept[-1])
    n3 = Node(cluster, "n3", owner="n3", context_s=0.4)
    settle(cluster, FIRST + 8)
    founding = n3.replica.scan.founding
    assert founding is not None
    assert (founding.begin, founding.blank) == (kept[-1], False)


def test_an_answer_about_a_place_that_is_in_doubt_no_more_is_passed_over(cluster: Cluster) -> None:
    n1, _ = pair(cluster)
    feed(cluster, 2)
    assert n1.replica.on_checked(0, cluster.end, cluster.records[:1], cluster.now) == []
    assert n1.stage() is ReplicaStage.OWN


def test_a_slot_that_somebody_holds_is_not_begun_anew(cluster: Cluster) -> None:
    n1, _ = pair(cluster, context_s=1000.0)
    feed(cluster, 4)
    cluster.forget(6)
    n3, n4 = Node(cluster, "n3"), Node(cluster, "n4")
    cluster.run(3 * PATIENCE_S)
    assert "retention has passed" in n3.replica.unready()
    assert "retention has passed" in n4.replica.unready()
    assert n1.stage() is ReplicaStage.OWN
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


def test_a_spell_lasts_from_its_beginning_and_a_break_begins_it_anew() -> None:
    spell = Spell()
    assert not spell.lasts(0.0, 2.0, so=True)
    assert not spell.lasts(1.9, 2.0, so=True)
    assert spell.lasts(2.0, 2.0, so=True)
    assert not spell.lasts(3.0, 2.0, so=False)
    assert not spell.lasts(4.0, 2.0, so=True)
    assert spell.lasts(6.0, 2.0, so=True)


def test_a_new_state_has_seen_neither_a_short_log_nor_a_slot_that_nobody_holds() -> None:
    trust = Trust(0.0)
    assert (trust.begin, trust.restored, trust.searched) == (0, False, False)
    assert not trust.short(0.0, is_short=True)
    assert not trust.forsaken(0.0, held=False)
    assert trust.short(SHORT_S, is_short=True)
    trust.restored = trust.searched = trust.blank = True
    trust.renew()
    assert not trust.restored
    assert not trust.searched
    assert not trust.blank
    assert not trust.short(SHORT_S, is_short=True)
    assert not trust.forsaken(PATIENCE_S, held=False)


def test_the_log_is_compared_once_an_interval() -> None:
    trust = Trust(0.0)
    looks = [0.5, CHECK_S, 1.5 * CHECK_S, 2 * CHECK_S]
    assert [trust.due(now) for now in looks] == [False, True, False, True]


def of_generation(generation: int, at: int, founding: Founding | None = None) -> Register:
    """Return the ownership as of a log whose present generation began with the record at the offset `at`."""
    return Register(epoch=1, owner="n1", generation=generation, founding=founding, founded_at=at)


def test_nothing_beyond_a_contradiction_counts_but_what_the_new_generation_says() -> None:
    trust = Trust(0.0)
    first = of_generation(3, -1)
    assert trust.usable(100, 3)
    trust.contradict("another record", upto=10, lost_to=20, now=1.0, right_to=10, scan=first)
    assert trust.usable(10, 3)
    assert not any(trust.usable(11, generation) for generation in range(4))
    # What was doubted stays so.
    trust.contradict("another record", upto=15, lost_to=12, now=2.0, right_to=15, scan=first)
    assert [trust.usable(10, 3), trust.usable(11, 3)] == [True, False]
    assert (trust.contradictions, trust.lost_to) == (2, 20)
    second = of_generation(5, 25, Founding(begin=8, lost_from=8, lost_to=20))
    trust.founded(second, by_us=True)
    assert (trust.contradiction, trust.lost_to, trust.begin, trust.foundings) == ("", 0, 0, 1)
    assert [trust.usable(8, 3), trust.usable(9, 3), trust.usable(9, 5)] == [True, False, True]
    trust.contradict("once more", upto=30, lost_to=40, now=3.0, right_to=30, scan=second)
    assert [trust.usable(30, 5), trust.usable(31, 5), trust.usable(9, 3)] == [True, False, False]


def test_a_generation_that_is_read_again_declares_nothing_of_what_was_lost_since() -> None:
    trust = Trust(0.0)
    second = of_generation(5, 25, Founding(begin=8, lost_from=8, lost_to=20))
    trust.founded(second, by_us=True)
    trust.contradict("lost its end twice", upto=30, lost_to=40, now=3.0, right_to=30, scan=second)
    trust.founded(second, by_us=True)  # the state is built anew, from before it
    assert (trust.contradiction, trust.lost_to, trust.foundings) == ("lost its end twice", 40, 1)
    assert [trust.usable(30, 5), trust.usable(31, 5)] == [True, False]
    trust.founded(of_generation(6, 45, Founding(begin=28)), by_us=False)
    assert trust.contradiction == ""


def test_a_generation_whose_beginning_the_log_may_have_lost_keeps_no_context() -> None:
    for at in (25, -1):  # -1: it was not read, since the state was that of a context
        trust = Trust(0.0)
        second = of_generation(5, at, Founding(begin=8))
        trust.founded(second, by_us=False)
        trust.contradict("the log is shorter", upto=25, lost_to=40, now=3.0, right_to=25, scan=second)
        assert [trust.usable(8, 3), trust.usable(9, 5)] == [True, False]
        trust.forgive(3.1 + FORGIVEN_S)
        assert trust.usable(100, 5)


def test_a_generation_behind_the_place_that_differs_may_declare_it_though_it_was_read_before() -> None:
    """A standby that reads on compares what stood before the new generation once more, and finds what that declares."""
    trust = Trust(0.0)
    second = of_generation(5, 25, Founding(begin=8))
    trust.founded(second, by_us=False)
    trust.contradict("another record", upto=20, lost_to=22, now=3.0, right_to=20, scan=second)
    trust.founded(second, by_us=False)
    assert trust.contradiction == ""


def test_of_the_log_before_a_blank_founding_nothing_counts() -> None:
    trust = Trust(0.0)
    trust.blank = True
    trust.founded(of_generation(5, 9, Founding(begin=8, blank=True)), by_us=False)
    assert not trust.blank
    assert trust.begin == 8
    assert [trust.usable(0, 3), trust.usable(0, 5)] == [False, True]
    trust.founded(of_generation(6, 14, Founding(begin=12)), by_us=False)
    assert trust.begin == 0


def test_a_contradiction_is_forgiven_once_another_owner_has_lived_beside_it_for_long() -> None:
    trust = Trust(0.0)
    trust.contradict("another record", upto=10, lost_to=20, now=100.0, right_to=10, scan=of_generation(3, -1))
    trust.forgive(100.0 + FORGIVEN_S)
    assert not trust.usable(11, 3)
    trust.forgive(100.1 + FORGIVEN_S)
    assert trust.contradiction == ""
    assert trust.usable(11, 3)
