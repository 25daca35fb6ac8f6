"""Alerts come from Prometheus as it gives them; what is no such answer is said to be none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tsunagi.console.alerts import Alerts, AlertsFollower
from tsunagi.runtime.log import LogError


def alert(name: str, state: str, severity: str) -> dict[str, Any]:
    return {
        "labels": {"alertname": name, "severity": severity, "slot": "1"},
        "annotations": {"summary": f"{name} is on", "description": "Look at it."},
        "state": state,
        "activeAt": "2026-11-29T22:00:00Z",
        "value": "1e+00",
    }


def test_those_that_fire_come_first_and_say_what_to_do() -> None:
    alerts = Alerts()
    some = [alert("A", "pending", "critical"), alert("B", "firing", "warning"), alert("C", "firing", "critical")]
    alerts.take(json.dumps({"status": "success", "data": {"alerts": some}}))
    found = alerts.view()
    assert [item["alert"] for item in found] == ["C", "B", "A"]
    assert (found[0]["summary"], found[0]["description"]) == ("C is on", "Look at it.")


@pytest.mark.parametrize("answer", ["<html>", "{}", '{"data": {"alerts": [1]}}', '{"data": {"alerts": [{}]}}'])
def test_another_answer_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match=r"no list of alerts|Expecting value"):
        Alerts().take(answer)


def test_a_prometheus_that_does_not_answer_is_named() -> None:
    follower = AlertsFollower("http://127.0.0.1:9/", Alerts())
    with pytest.raises(LogError, match=r"http://127.0.0.1:9 \(\[console\] prometheus\) does not answer"):
        follower.turn()
