from __future__ import annotations

import pytest

from tsunagi.audit.roles import Roles
from tsunagi.audit.tally import Tally
from tsunagi.runtime.messages import Founding, Heartbeat, Ownership, SlotBeat

S = 1_000_000


def roles() -> Roles:
    return Roles(1, Tally())


def beat(node: str, role: str, epoch: int, *, ready: bool = True, incarnation: int = 1) -> Heartbeat:
    part = SlotBeat(slot=0, role=role, epoch=epoch, ready=ready)
    return Heartbeat(node=node, role="worker", incarnation=incarnation, slots=[part])


def own(target: Roles, epoch: int, node: str, at_us: int) -> bool:
    return target.take_ownership(0, epoch * 10, at_us, Ownership(epoch=epoch, node=node))


def test_the_log_is_the_truth_for_the_owner():
    found = roles()
    assert own(found, 1, "gw-1", S)
    assert not own(found, 1, "zombie", 2 * S)
    assert own(found, 2, "sec-1", 3 * S)
    owner = found.owner(0)
    assert owner is not None
    assert (owner.node, owner.epoch) == ("sec-1", 2)
    assert [term.node for term in found.terms_since(0, 2 * S)] == ["sec-1"]


def test_the_owner_that_begins_a_generation_anew_is_known_whatever_its_epoch():
    found = roles()
    own(found, 1, "gw-1", S)
    blank = Ownership(epoch=9, node="gw-2", founding=Founding(blank=True))
    assert found.take_ownership(0, 20, 2 * S, blank)
    assert not found.take_ownership(0, 21, 2 * S, blank)
    owner = found.owner(0)
    assert owner is not None
    assert (owner.node, owner.epoch) == ("gw-2", 9)
    assert [(before.node, after.node) for before, after in found.take_changes()] == [("gw-1", "gw-2")]


def test_a_log_read_from_the_middle_is_entered_by_what_the_primary_says():
    found = roles()
    assert not own(found, 5, "gw-1", S)
    found.take_beat(beat("gw-1", "primary", 5), 2 * S)
    assert own(found, 6, "sec-1", 3 * S)
    found = roles()
    own(found, 5, "gw-1", S)
    own(found, 6, "sec-1", 2 * S)
    found.take_beat(beat("gw-1", "primary", 5), 2 * S)  # of before it fell
    owner = found.owner(0)
    assert owner is not None
    assert owner.node == "sec-1"


def test_a_second_primary_is_a_finding():
    found = roles()
    own(found, 1, "gw-1", S)
    own(found, 2, "sec-1", 2 * S)
    found.take_beat(beat("gw-1", "primary", 1), 3 * S)  # late, but its own term
    assert found._tally.ok
    for _ in range(3):
        found.take_beat(beat("gw-1", "primary", 2, incarnation=2), 3 * S)
    assert found._tally.wrong["second primary"] == 1


def test_a_claim_ahead_of_the_log_is_judged_when_the_log_has_been_read():
    found = roles()
    own(found, 1, "gw-1", S)
    found.take_beat(beat("sec-1", "primary", 2), 2 * S)
    found.take_beat(beat("gw-1", "primary", 2), 2 * S)
    found.settle([0])
    assert found._tally.ok
    own(found, 2, "sec-1", 2 * S)
    found.settle([0])
    assert found._tally.wrong["second primary"] == 1


def test_a_secondary_that_was_ready_before_it_was_hit_protects_nobody():
    found = roles()
    own(found, 1, "gw-1", S)
    found.take_beat(beat("sec-1", "standby", 1), 10 * S)
    assert found.secondary(0, 10 * S) == "sec-1"
    assert found.protected_us(0, 10 * S, 11 * S) is None  # nothing heard since
    found.take_beat(beat("sec-1", "standby", 1, ready=False, incarnation=2), 12 * S)
    found.take_beat(beat("sec-1", "standby", 1, incarnation=2), 13 * S)
    assert found.protected_us(0, 10 * S, 13 * S) == 13 * S


def test_a_secondary_that_was_ready_all_the_time_protects_from_the_start():
    found = roles()
    own(found, 1, "gw-1", S)
    for second in range(10, 14):
        found.take_beat(beat("sec-1", "standby", 1), second * S)
    assert found.protected_us(0, 11 * S, 13 * S) == 11 * S


def test_a_standby_of_the_former_term_or_the_owner_itself_does_not_count():
    found = roles()
    own(found, 1, "gw-1", S)
    found.take_beat(beat("sec-1", "standby", 1), 10 * S)
    own(found, 2, "sec-1", 10 * S)
    found.take_beat(beat("sec-2", "standby", 1), 11 * S)
    found.take_beat(beat("sec-1", "standby", 2), 11 * S)
    assert found.secondary(0, 11 * S) == ""
    found.take_beat(beat("sec-2", "standby", 2), 12 * S)
    assert found.secondary(0, 12 * S) == "sec-2"


def test_missing_names_what_is_missing():
    found = roles()
    assert found.missing(S) == ["slot 0 has no known owner"]
    own(found, 1, "gw-1", S)
    assert found.missing(S) == ["slot 0: gw-1, its owner, is not at work", "slot 0 has no ready secondary"]
    found.take_beat(beat("gw-1", "primary", 1), S)
    found.take_beat(beat("sec-1", "standby", 1), S)
    assert found.missing(S) == []
    assert len(found.missing(4 * S)) == 2  # nothing heard for too long


def test_a_leaving_worker_is_gone():
    found = roles()
    message = beat("gw-1", "primary", 1)
    message.leaving = True
    found.take_beat(message, S)
    assert found.fresh("worker", S) == {}


def test_role_of():
    found = roles()
    assert found.role_of("gw-1") == "never heard of"
    found.take_beat(Heartbeat(node="gw-1", role="worker"), S)
    assert found.role_of("gw-1") == "idle"
    found.take_beat(beat("gw-1", "standby", 1), S)
    assert found.role_of("gw-1") == "slot 0: standby"


@pytest.mark.parametrize(("node", "epoch", "well"), [("sec-1", 2, True), ("gw-1", 1, False), ("sec-1", 3, False)])
def test_who_acts_as_the_owner_is_held_against_the_log(node: str, epoch: int, well: bool) -> None:
    found = roles()
    own(found, 1, "gw-1", S)
    own(found, 2, "sec-1", 2 * S)
    found.take_beat(beat("sec-1", "primary", 2), 3 * S)
    found.take_beat(beat("idle-1", "standby", 2), 3 * S)
    assert found.missing(4 * S) == []
    found.take_beat(beat(node, "primary", epoch), 3 * S)
    assert any(f"{node} acts as its owner of epoch {epoch}" in text for text in found.missing(4 * S)) != well
    assert found.missing(4 * S) == [] or not well
