"""`make up` from a checkout: what runs, as whom, and what it may do."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

from tests.containers.project import ComposeProject, docker

ONCE = {"topics", "model"}
SERVICES = {
    "kafka",
    "edge-1",
    "edge-2",
    "edge-3",
    "edge-4",
    "gateway-1",
    "gateway-2",
    "secondary-1",
    "secondary-2",
    "worker-1",
    "scaler",
    "spark",
    "console",
    "prometheus",
    "alertmanager",
}
MOST_IMAGE_BYTES = 500_000_000


def by_service(project: ComposeProject) -> dict[str, dict[str, Any]]:
    return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in project.containers()}


def test_everything_runs_and_is_well(project) -> None:
    found = by_service(project)
    assert set(found) >= SERVICES | ONCE
    for _ in range(60):  # a first health check comes after its interval
        if all(found[name]["State"]["Health"]["Status"] != "starting" for name in SERVICES):
            break
        time.sleep(1)
        found = by_service(project)
    for name in SERVICES:
        state = found[name]["State"]
        assert (name, state["Status"], state["Health"]["Status"]) == (name, "running", "healthy")
    for name in ONCE:
        assert (name, found[name]["State"]["ExitCode"]) == (name, 0)


def test_prometheus_has_an_alertmanager_to_send_alerts_to(project) -> None:
    with urllib.request.urlopen(f"{project.prometheus}/api/v1/alertmanagers", timeout=10) as answer:
        found = json.load(answer)["data"]
    assert [item["url"] for item in found["activeAlertmanagers"]] == ["http://alertmanager:9093/api/v2/alerts"]
    assert not found["droppedAlertmanagers"]
    command = ["amtool", "--alertmanager.url=http://127.0.0.1:9093", "alert"]
    docker("exec", project.container("alertmanager"), *command, "add", "Trial", "severity=warning")
    assert "Trial" in docker("exec", project.container("alertmanager"), *command)


def test_nobody_is_root_and_nobody_writes_beside_its_volumes(project) -> None:
    for name, one in by_service(project).items():
        assert one["Config"]["User"] not in {"", "0", "root"}, name
        assert one["HostConfig"]["ReadonlyRootfs"], name
        assert one["HostConfig"]["CapDrop"] == ["ALL"], name
        assert one["HostConfig"]["Memory"] > 0, name
        assert one["Config"]["Labels"]["tsunagi.node"] == name


def test_ports_are_bound_to_this_machine_alone(project) -> None:
    bindings = [
        binding["HostIp"]
        for one in project.containers()
        for published in one["HostConfig"]["PortBindings"].values()
        for binding in published
    ]
    assert len(bindings) >= 2
    assert set(bindings) == {"127.0.0.1"}


def test_the_image_of_the_services_is_small_and_has_no_build_tools(project) -> None:
    assert int(docker("image", "inspect", "--format", "{{.Size}}", "tsunagi-services")) <= MOST_IMAGE_BYTES
    script = "for tool in gcc make pip pip3; do command -v $tool && exit 1; done; exit 0"
    docker("run", "--rm", "--network", "none", "--entrypoint", "bash", "tsunagi-services", "-c", script)


def test_ordered_results_come_out_with_recovered_values_possible(project) -> None:
    project.tool("wait", "--timeout", "60")
    status = json.loads(project.tool("status", "--json"))
    assert {slot["slot"] for slot in status["slots"]} == {0, 1}
    assert all(slot["owner"] and slot["secondary"] for slot in status["slots"])


def test_up_once_more_changes_nothing(project) -> None:
    before = {one["Id"] for one in project.containers()}
    assert "results flow" in project.up()
    after = {one["Id"] for one in project.containers() if one["Config"]["Labels"]["tsunagi.node"] not in ONCE}
    assert after <= before


def test_the_console_shows_the_fleet_and_lets_nobody_act(project) -> None:
    with urllib.request.urlopen(f"{project.console}/api/events?feeds=fleet,slots", timeout=30) as answer:
        told: dict[str, Any] = {}
        while set(told) < {"fleet", "slots"}:
            line = answer.readline().decode()
            if line.startswith("event:"):
                name = line.split()[1]
            elif line.startswith("data:"):
                told[name] = json.loads(line.removeprefix("data:"))
    assert {edge["edge"] for edge in told["fleet"]["edges"]} == {"edge-1", "edge-2", "edge-3", "edge-4"}
    assert [slot["slot"] for slot in told["slots"]["slots"]] == [0, 1]
    with urllib.request.urlopen(f"{project.console}/api/me", timeout=30) as answer:
        assert json.loads(answer.read())["role"] == "viewer"
