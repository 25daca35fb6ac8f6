"""`tsunagi chaos` against real containers: every kind of fault once, nothing lost, everything taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.containers.project import ROOT, ComposeProject, docker


@pytest.fixture(scope="module", autouse=True)
def helper_image() -> None:
    base = os.environ.get("BASE_IMAGE", "tsunagi-base:bookworm")
    arguments = ("build", "--network=host", "--quiet", "--build-arg", f"BASE_IMAGE={base}")
    docker(*arguments, "-f", str(ROOT / "deploy/netfault/Dockerfile"), "-t", "tsunagi-netfault", str(ROOT))


def chaos(project: ComposeProject, out: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run it; return (exit code, the objects of its --out file, what it said)."""
    command = [sys.executable, "-m", "tsunagi.cli", "chaos", "--project", project.name, "--servers", project.servers]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TSUNAGI_")}
    done = subprocess.run(
        [*command, "--out", str(out), *arguments],
        cwd=ROOT,
        env=variables | {"TSUNAGI_STATE": str(out.parent / "state")},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return done.returncode, [json.loads(line) for line in lines], done.stdout + done.stderr


def limits(project: ComposeProject) -> dict[str, tuple[object, ...]]:
    """Return what a fault could have left changed, by container."""
    found: dict[str, tuple[object, ...]] = {}
    for container in project.containers():
        if "tsunagi.node" in container["Config"]["Labels"]:
            networks = container["NetworkSettings"]["Networks"]
            aliases = {
                name: sorted(set(item["Aliases"] or []) - {container["Id"][:12]}) for name, item in networks.items()
            }
            host = container["HostConfig"]
            found[container["Name"]] = (host["NanoCpus"], container["State"]["Status"], aliases)
    return found


def judged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary; the run must have judged something."""
    summary = found[-1]
    assert summary["summary"]
    assert summary["judged"]["readings"] > 0
    assert summary["judged"]["rows"] > 0
    return summary


def test_killed_gateways(project: ComposeProject, tmp_path: Path) -> None:
    code, found, said = chaos(project, tmp_path / "out.jsonl", "--count", "3", "--seed", "1")
    assert code == 0, said
    summary = judged(found)
    assert (summary["lost"], summary["duplicated"], summary["inverted"], summary["wrong"]) == (0, 0, 0, {})
    for item in found[:-1]:
        assert item["takeovers"], said
        assert item["takeovers"][0]["node"] != item["node"]
        assert item["ready_s"] is not None
        assert item["back_as"], "Docker has not restarted it"
        assert "primary" not in item["back_as"], said


def test_every_kind_of_fault_on_a_worker_and_an_edge(project: ComposeProject, tmp_path: Path) -> None:
    before = limits(project)
    arguments = ("--target", "gateway", "--target", "edge", "--fault", "all", "--count", "14", "--seed", "2")
    code, found, said = chaos(project, tmp_path / "out.jsonl", *arguments)
    assert code == 0, said
    assert len(judged(found)["kinds"]) == 14
    assert limits(project) == before
    assert not docker("ps", "--all", "--quiet", "--filter", f"label=tsunagi.chaos={project.name}")
    assert not list((tmp_path / "state").glob("chaos-*.json"))


@pytest.mark.parametrize("target", ["secondary", "spark", "scaler", "kafka"])
def test_the_others_killed(project: ComposeProject, tmp_path: Path, target: str) -> None:
    code, found, said = chaos(project, tmp_path / "out.jsonl", "--target", target, "--count", "1", "--seed", "3")
    assert code == 0, said
    judged(found)


def test_what_a_killed_run_left_is_taken_back_by_the_next(project: ComposeProject, tmp_path: Path) -> None:
    node = next(item for item in project.containers() if item["Config"]["Labels"].get("tsunagi.node") == "worker-1")
    docker("pause", node["Id"])
    state = tmp_path / "state"
    state.mkdir()
    (state / f"chaos-{project.name}.json").write_text(
        json.dumps({node["Id"]: {"node": "worker-1", "fault": "pause"}}), encoding="utf-8"
    )
    code, _, said = chaos(project, tmp_path / "out.jsonl", "--target", "scaler", "--count", "1")
    assert code == 0, said
    assert "cleaned up after a run that was cut short: worker-1" in said


def test_another_projects_containers_are_not_touched(tmp_path: Path) -> None:
    stranger = ComposeProject(name="tsunagi-nobody")
    code, found, said = chaos(stranger, tmp_path / "out.jsonl")
    assert (code, found) == (1, [])
    assert "project tsunagi-nobody: no container with the labels" in said
