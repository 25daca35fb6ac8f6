from __future__ import annotations

import ast
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tsunagi.runtime import log as topics
from tsunagi.runtime.acls import READS, WRITES, bindings, needed, roles
from tsunagi.runtime.log import ACKS, CONTEXTS, HEARTBEATS, PLAN, RECOVERED, TOPICS, TUPLES
from tsunagi.runtime.settings import ConfigError, KafkaSettings

ROOT = Path(__file__).resolve().parents[3]
USERS = roles(["edge-1", "edge-2"])


def allowed(user: str) -> set[tuple[str, str]]:
    return {
        (str(binding.name), AclOperation(binding.operation).name)
        for binding in bindings(KafkaSettings(), USERS)
        if binding.principal == f"User:{user}" and binding.restype == ResourceType.TOPIC
    }


def test_an_edge_may_do_four_things() -> None:
    assert allowed("edge-1") == {
        ("tuples", "WRITE"),
        ("heartbeats", "WRITE"),
        ("dead-letters", "WRITE"),
        ("plan", "READ"),
    }


def test_who_decides_and_who_only_looks() -> None:
    writers = {topic: {role for role in WRITES if topic in WRITES[role]} for topic in TOPICS}
    assert writers[PLAN] == {"scaler", "learner", "gateway", "console"}  # a slot's owner asks there for helpers
    assert writers[RECOVERED] == writers[CONTEXTS] == {"gateway"}
    assert writers[ACKS] == {"gateway", "spark"}
    assert writers[TUPLES] == {"edge", "gateway"}
    assert {operation for _, operation in allowed("tools")} == {"READ"}
    assert all(topic in READS["gateway"] for topic in (TUPLES, HEARTBEATS))


def test_every_list_is_for_one_user_and_one_operation() -> None:
    found = bindings(KafkaSettings(prefix="a.", group_prefix="g"), USERS)
    assert len(found) == len(set(found))
    assert {binding.operation for binding in found} == {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE}
    assert all(binding.principal != "User:*" for binding in found)
    topic_names = {str(binding.name) for binding in found if binding.restype == ResourceType.TOPIC}
    assert topic_names == {f"a.{topic}" for topic in TOPICS}


@pytest.mark.parametrize("edge", ["admin", "gateway", "spark", "scaler", "learner", "sink", "tools"])
def test_an_edge_is_no_other_user(edge: str) -> None:
    with pytest.raises(ConfigError, match="another user"):
        roles([edge])


# Which code runs as whom; what it names of the topics must be in the table.
CODE = {
    "edge": [
        "services/tsunagi/edge/publish.py",
        "services/tsunagi/edge/dead_letters.py",
        "services/tsunagi/runtime/heartbeat.py",
    ],
    "gateway": [
        "services/tsunagi/worker/host.py",
        "services/tsunagi/worker/slot_reader.py",
        "services/tsunagi/worker/writer.py",
        "services/tsunagi/slot/slot.py",
        "services/tsunagi/runtime/heartbeat.py",
    ],
    "scaler": [
        "services/tsunagi/scaler/scaler.py",
        "services/tsunagi/scaler/fleet_metrics.py",
        "services/tsunagi/runtime/heartbeat.py",
    ],
    "spark": [
        "spark/tsunagi_spark/service.py",
        "spark/tsunagi_spark/decode.py",
        "spark/tsunagi_spark/acknowledge.py",
        "services/tsunagi/runtime/placement.py",
    ],
}


@pytest.mark.parametrize("role", sorted(CODE))
def test_the_table_has_every_topic_that_the_code_names(role: str) -> None:
    constants = {name: value for name, value in vars(topics).items() if name.isupper() and value in TOPICS}
    named = set()
    for path in CODE[role]:
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "tsunagi.runtime.log":
                named |= {constants[alias.name] for alias in node.names if alias.name in constants}
    assert named
    assert named <= set(needed(role))


def test_the_documented_table_is_the_one_in_force() -> None:
    text = (ROOT / "docs" / "howto" / "security.md").read_text(encoding="utf-8")
    for role in WRITES:
        name = "each edge" if role == "edge" else role
        writes = ", ".join(WRITES[role]) or "-"
        reads = "every topic" if set(READS[role]) == set(TOPICS) else ", ".join(READS[role])
        assert f"| {name} | {writes} | {reads} |" in text
