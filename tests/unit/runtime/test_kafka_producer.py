"""The producers' options: what readers drop by name must be written without gaps, whoever writes it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tsunagi.runtime import kafka_producer
from tsunagi.runtime.kafka import KafkaLog
from tsunagi.runtime.kafka_client import GAPLESS
from tsunagi.runtime.settings import KafkaSettings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_producer, "ConfluentProducer", lambda options, **_: found.append(options))
    return found


def test_a_durable_producer_ends_with_the_first_record_that_is_refused(made: list[dict[str, Any]]) -> None:
    KafkaLog(KafkaSettings()).producer()
    KafkaLog(KafkaSettings()).producer(durable=False)
    assert made[0]["enable.idempotence"]
    assert made[0][GAPLESS]
    assert not made[1]["enable.idempotence"]
    assert GAPLESS not in made[1]


def test_only_what_is_worthless_when_late_is_written_by_other_producers() -> None:
    found = set()
    for path in [*ROOT.glob("services/**/*.py"), *ROOT.glob("spark/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "producer":
                # (`authenticated` hands on what it was asked)
                found |= {
                    str(path.relative_to(ROOT))
                    for keyword in node.keywords
                    if not (isinstance(keyword.value, ast.Name) and keyword.value.id == "durable")
                }
            if isinstance(node, ast.Attribute) and node.attr == "Producer" and "confluent" in ast.unparse(node):
                found.add(str(path.relative_to(ROOT)))
    assert found == {
        "services/tsunagi/worker/writer.py",
        "services/tsunagi/runtime/heartbeat.py",
    }  # control records and heartbeats
