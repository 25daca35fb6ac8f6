"""The evidence of the dead, and how a backlog is cut after a death."""

from __future__ import annotations

import pytest

from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.standby.detector import Detector
from tsunagi.standby.promotion import NARROW_PARTS, PARTS, Promotion

SLOT = 1


Announced = dict[int, tuple[int, int]]


def say(to: Detector, role: str, announced: Announced) -> None:
    for epoch, (first, until) in announced.items():
        part = SlotBeat(slot=SLOT, role=role, epoch=epoch, busy_offset=first, busy_until=until)
        to.on_heartbeat(Heartbeat(node=f"{role}-{epoch}", incarnation=1, slots=[part]), 0.0)


def detector(announced: Announced, speculated: Announced | None = None) -> Detector:
    made = Detector("me", 1, 0.1)
    say(made, "primary", announced)
    say(made, "standby", speculated or {})
    return made


@pytest.mark.parametrize(
    ("announced", "suspects", "proven"),
    [
        ({}, None, False),
        ({4: (10, 90)}, (10, 90), False),  # nothing was heard of the last owner
        ({5: (10, 90)}, (10, 90), False),  # one death proves nothing
        ({4: (10, 90), 5: (40, 50)}, (40, 50), False),  # many records are not one
        ({4: (10, 90), 5: (40, 41)}, (40, 41), True),
        ({4: (10, 40), 5: (40, 41)}, (40, 41), False),  # two deaths on two records
        ({4: (40, 90), 5: (40, 41)}, (40, 41), True),
        ({4: (10, 41), 5: (40, 41)}, (40, 41), True),
        ({4: (40, 90), 5: (39, 40)}, (39, 40), False),
        ({3: (10, 90), 5: (40, 41)}, (40, 41), True),  # nothing was heard of the one between
        ({6: (10, 90)}, None, False),  # a later owner's: somebody else's promotion
    ],
)
def test_two_deaths_on_one_record_prove_it(
    announced: dict[int, tuple[int, int]], suspects: tuple[int, int] | None, proven: bool
) -> None:
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0)
    promotion.gather_evidence(detector(announced), SLOT)
    assert (promotion.suspects, promotion.proven) == (suspects, proven)


@pytest.mark.parametrize(
    ("announced", "speculated", "suspects", "proven"),
    [
        ({5: (53, 54)}, {5: (53, 111)}, (53, 54), True),  # the owner came closer than the standby after it
        ({5: (40, 48)}, {5: (40, 90)}, (40, 48), False),
        ({4: (34, 58)}, {5: (53, 111)}, (53, 58), False),  # where both have died
        ({4: (54, 55)}, {5: (53, 111)}, (54, 55), True),
        ({4: (34, 54)}, {5: (53, 111)}, (53, 54), False),  # nobody has died on it alone
        ({4: (30, 40)}, {5: (53, 111)}, (53, 111), False),
    ],
)
def test_a_standby_that_dies_as_it_speculates_hides_nothing_of_what_owners_have_announced(
    announced: Announced, speculated: Announced, suspects: tuple[int, int], proven: bool
) -> None:
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0)
    promotion.gather_evidence(detector(announced, speculated), SLOT)
    assert (promotion.suspects, promotion.proven) == (suspects, proven)


def test_what_the_owner_survives_is_no_evidence_against_it() -> None:
    made = detector({}, {5: (40, 90)})
    for position, left in ((60, [(40, 90)]), (90, [])):
        part = SlotBeat(slot=SLOT, role="primary", epoch=5, position=position, busy_offset=-1)
        made.on_heartbeat(Heartbeat(node="primary-5", incarnation=1, slots=[part]), 0.0)
        assert made.announced(SLOT, 5) == left


@pytest.mark.parametrize(("position", "suspects", "proven"), [(40, (40, 41), True), (90, None, False)])
def test_what_a_later_owner_survives_is_no_evidence(
    position: int, suspects: tuple[int, int] | None, proven: bool
) -> None:
    made = detector({3: (10, 90)})
    part = SlotBeat(slot=SLOT, role="primary", epoch=4, position=position, busy_offset=-1)
    made.on_heartbeat(Heartbeat(node="primary-4", incarnation=1, slots=[part]), 0.0)
    if suspects is not None:
        say(made, "primary", {5: suspects})
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0)
    promotion.gather_evidence(made, SLOT)
    assert (promotion.suspects, promotion.proven) == (suspects, proven)


@pytest.mark.parametrize(("survived", "proven"), [(40, True), (41, False)])
def test_what_this_node_has_processed_itself_is_innocent(survived: int, proven: bool) -> None:
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0)
    promotion.gather_evidence(detector({4: (10, 90), 5: (40, 41)}), SLOT, survived)
    assert promotion.proven == proven


def test_nobody_died_when_a_slot_moves() -> None:
    promotion = Promotion("move", "n5", 5, 0.0, 0.0)
    promotion.gather_evidence(detector({4: (10, 90), 5: (40, 41)}), SLOT)
    assert promotion.suspects is None


def test_a_backlog_is_announced_in_a_few_parts() -> None:
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0)
    assert promotion.next_part(0, 1000) == 1000 // PARTS
    assert promotion.next_part(0, 1) == 1
    assert promotion.next_part(0, 100) == NARROW_PARTS
    promotion.suspects = (0, promotion.next_part(0, 100))
    assert promotion.next_part(0, 100) == 1


def test_where_the_dead_were_the_parts_get_narrow_until_one_record_is_alone() -> None:
    promotion = Promotion("silent", "n5", 5, 0.0, 1.0, suspects=(100, 100 + 10 * NARROW_PARTS))
    assert promotion.next_part(40, 5000) == 60
    assert promotion.next_part(100, 5000) == 10
    assert promotion.next_part(100 + 10 * NARROW_PARTS, 5000) == 5000
    promotion.suspects = (100, 110)
    assert promotion.next_part(103, 5000) == 1


def test_the_figures_of_a_takeover() -> None:
    promotion = Promotion("silent", "n5", 5, began=10.0, detect_s=0.8, owned_at=10.25, records=7)
    takeover = promotion.report(6)
    assert (takeover.epoch, takeover.reason, takeover.old_owner, takeover.records) == (6, "silent", "n5", 7)
    assert (takeover.detect_s, takeover.promote_s, takeover.owned_at) == (0.8, 0.25, 10.25)
