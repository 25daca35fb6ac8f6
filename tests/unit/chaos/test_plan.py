from __future__ import annotations

from collections import Counter

import pytest

from tsunagi.chaos.plan import FAULTS, TARGETS, PlanError, rounds


def test_the_seed_says_it_all():
    assert list(rounds(["all"], ["all"], 100, 7)) == list(rounds(["all"], ["all"], 100, 7))
    assert list(rounds(["all"], ["all"], 100, 7)) != list(rounds(["all"], ["all"], 100, 8))


def test_a_longer_run_begins_as_the_shorter_one():
    assert list(rounds(["all"], ["all"], 100, 7))[:30] == list(rounds(["all"], ["all"], 30, 7))


def test_every_pair_comes_before_any_comes_again():
    pairs = len(TARGETS) * len(FAULTS)
    found = Counter((item.target, item.fault) for item in rounds(["all"], ["all"], 2 * pairs, 3))
    assert set(found.values()) == {2}
    assert len(found) == pairs


def test_one_pair():
    found = list(rounds(["gateway"], ["kill"], 50, 1))
    assert {(item.target, item.fault, item.seconds) for item in found} == {("gateway", "kill", 0.0)}
    assert [item.number for item in found] == list(range(1, 51))
    assert len({item.phase for item in found}) == 50


def test_how_hard_only_where_it_means_something():
    for item in rounds(["edge"], ["all"], 70, 1):
        assert (item.delay_ms > 0) == (item.fault == "delay")
        assert (0.1 <= item.loss <= 0.2) == (item.fault == "loss")
        assert (item.cpus > 0) == (item.fault == "cpu")
        assert (item.seconds > 0) == (item.fault not in ("kill", "restart"))


def test_a_pick_does_not_hang_on_the_order_of_the_names():
    for item in rounds(["edge"], ["kill"], 20, 1):
        assert item.pick(["b", "a", "c"]) == item.pick(["c", "b", "a"])


@pytest.mark.parametrize(
    ("targets", "faults", "count", "words"),
    [
        (["broker"], ["kill"], 1, "--target: found 'broker', expected gateway"),
        (["edge"], ["murder"], 1, "--fault: found 'murder', expected kill"),
        ([], ["kill"], 1, "--target: found none"),
        (["edge"], ["kill"], 0, "--count: found 0"),
    ],
)
def test_refusals(targets, faults, count, words):
    with pytest.raises(PlanError, match=words):
        list(rounds(targets, faults, count, 1))
