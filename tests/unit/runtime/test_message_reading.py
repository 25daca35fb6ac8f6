from __future__ import annotations

import pytest
import structlog
from prometheus_client import REGISTRY

from tsunagi.runtime.log import PLAN, Record
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, Plan


def record(value: bytes | None) -> Record:
    return Record(PLAN, 0, 7, 0, None, value)


def counted(reason: str) -> float:
    return REGISTRY.get_sample_value("tsunagi_dead_letters_total", {"topic": PLAN, "reason": reason}) or 0.0


def test_a_record_of_this_release_is_read() -> None:
    plan = Plan(version=VERSION)
    plan.placement.serial = 3
    assert read_message(Plan, record(plan.SerializeToString()), structlog.stdlib.get_logger()) == plan


@pytest.mark.parametrize(
    ("value", "reason"), [(b"\xff\xff", "unreadable"), (Plan(version=VERSION + 1).SerializeToString(), "version")]
)
def test_what_cannot_be_read_is_counted_and_told(value: bytes, reason: str) -> None:
    before = counted(reason)
    with structlog.testing.capture_logs() as said:
        assert read_message(Plan, record(value), structlog.stdlib.get_logger()) is None
    assert counted(reason) == before + 1
    assert [(line["offset"], line["reason"]) for line in said] == [(7, reason)]
