"""Prometheus' targets from heartbeats; what heartbeats say is not trusted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tsunagi.runtime.messages import Heartbeat
from tsunagi.scaler.roster import FORGET_S, MAX_NODES, ROLES, Roster, targets

CODE = Path(__file__).parents[3]


def beat(node: str = "gateway-1", role: str = "worker", host: str = "10.0.0.7", port: int = 9100, **more) -> Heartbeat:
    return Heartbeat(node=node, role=role, incarnation=1, metrics_host=host, metrics_port=port, **more)


def listed(roster: Roster, now: float = 0.0) -> dict[str, str]:
    groups = json.loads(targets(roster.nodes(now)))
    return {group["labels"]["node"]: group["targets"][0] for group in groups}


def test_a_node_is_listed_with_its_labels() -> None:
    roster = Roster()
    roster.on_heartbeat(beat(), 0.0)
    roster.on_heartbeat(beat("edge-1", "edge", "fd00::7", 9200), 0.0)
    assert json.loads(targets(roster.nodes(0.0))) == [
        {"targets": ["[fd00::7]:9200"], "labels": {"node": "edge-1", "role": "edge"}},
        {"targets": ["10.0.0.7:9100"], "labels": {"node": "gateway-1", "role": "worker"}},
    ]


def test_a_dead_node_stays_for_a_while_and_is_then_forgotten() -> None:
    roster = Roster()
    roster.on_heartbeat(beat(), 5.0)
    assert listed(roster, 5.0 + FORGET_S - 1) == {"gateway-1": "10.0.0.7:9100"}
    assert listed(roster, 5.0 + FORGET_S) == {}


def test_one_that_leaves_is_taken_off_at_once() -> None:
    roster = Roster()
    roster.on_heartbeat(beat(), 0.0)
    roster.on_heartbeat(beat(leaving=True), 0.1)
    assert listed(roster, 0.1) == {}


def test_a_late_word_of_a_process_that_was_replaced_changes_nothing() -> None:
    roster = Roster()
    new = beat(host="10.0.0.8")
    new.incarnation = 2
    roster.on_heartbeat(new, 1.0)
    roster.on_heartbeat(beat(leaving=True), 1.2)
    roster.on_heartbeat(beat(), 1.2)
    assert listed(roster, 1.2) == {"gateway-1": "10.0.0.8:9100"}


def test_the_role_of_each_service_that_sends_heartbeats_is_known() -> None:
    sending = re.compile(r"Heartbeats\(\s*log,\s*[\w.]+,\s*\"(\w+)\"")
    found = {
        role
        for folder in ("services", "spark")
        for path in (CODE / folder).rglob("*.py")
        for role in sending.findall(path.read_text(encoding="utf-8"))
    }
    assert {"worker", "edge", "learner"} <= found
    assert found == ROLES


def test_the_scaler_and_who_serves_nothing_are_no_targets() -> None:
    roster = Roster()
    roster.on_heartbeat(beat("scaler", "scaler"), 0.0)
    roster.on_heartbeat(beat("edge-1", "edge", port=0), 0.0)
    roster.on_heartbeat(beat("edge-2", "edge", host=""), 0.0)
    assert listed(roster) == {}
    assert [node.name for node in roster.nodes(0.0)] == ["edge-1", "edge-2", "scaler"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (beat(host="evil/admin?x="), "address"),
        (beat(host="user@host"), "address"),
        (beat(host="a b"), "address"),
        (beat(host="-x"), "address"),
        (beat(host="a" * 300), "address"),
        (beat(port=70_000), "address"),
        (beat(node=""), "name"),
        (beat(node="x\n"), "name"),
        (beat(node="n" * 101), "name"),
        (beat(role="admin"), "role"),
    ],
)
def test_what_is_no_name_role_or_address_is_refused_and_counted(bad: Heartbeat, reason: str) -> None:
    roster = Roster()
    roster.on_heartbeat(bad, 0.0)
    assert roster.nodes(0.0) == []
    assert roster.take_refused() == {reason: 1}
    assert roster.take_refused() == {}


def test_the_number_of_nodes_is_bounded() -> None:
    roster = Roster()
    for number in range(MAX_NODES + 3):
        roster.on_heartbeat(beat(f"edge-{number}", "edge"), 0.0)
    roster.on_heartbeat(beat("edge-0", "edge", "10.0.0.9"), 0.1)
    assert len(roster.nodes(0.1)) == MAX_NODES
    assert listed(roster, 0.1)["edge-0"] == "10.0.0.9:9100"
    assert roster.take_refused() == {"too many": 3}
