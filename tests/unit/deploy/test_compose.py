from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from deploy.compose import PROFILES, ROOT, Project
from deploy.variables import ComposeError, read_env

VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def compose_files() -> str:
    return "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docker-compose.yml", *ROOT.glob("deploy/*.yml"))
    )


def test_the_example_names_every_variable_with_the_default_of_the_compose_file() -> None:
    example = read_env(ROOT / ".env.example")
    used = VARIABLE.findall(compose_files())
    assert {name for name, _ in used} <= set(example)
    for name, default in used:
        assert (name, example[name]) == (name, default)


def test_every_profile_of_the_compose_file_is_known() -> None:
    named = set(re.findall(r"profiles: \[(\w+)\]", compose_files()))
    assert named <= {*PROFILES, "tools"}


def test_a_profile_brings_its_variables_and_the_environment_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TSUNAGI_REPLICATION=2\n# a comment\n\nCOMPOSE_PROFILES=mqtt\n")
    project = Project(tmp_path, ("ha",), {"TSUNAGI_KAFKA_NODES": "a,b,c"})
    assert project.profiles == ("mqtt", "ha")
    assert project.env["TSUNAGI_KAFKA_SERVERS"] == "kafka:9092,kafka-2:9092,kafka-3:9092"
    assert project.env["TSUNAGI_REPLICATION"] == "2"
    assert project.env["TSUNAGI_KAFKA_NODES"] == "a,b,c"


def test_a_line_that_is_no_assignment_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\nnonsense\n")
    with pytest.raises(ComposeError, match=r"\.env, line 2: found 'nonsense', expected NAME=value"):
        read_env(tmp_path / ".env")


def test_profiles_with_a_compose_file_of_their_own_are_used_together_and_known_by_it(tmp_path: Path) -> None:
    project = Project(tmp_path, ("secure", "elastic"), {})
    files = "docker-compose.yml:deploy/compose.secure.yml:deploy/compose.elastic.yml"
    assert project.env["COMPOSE_FILE"] == files
    (tmp_path / ".env").write_text(f"COMPOSE_FILE={files}\n")
    assert Project(tmp_path, (), {}).profiles == ("secure", "elastic")


def test_images_of_others_can_be_named_and_ours_are_the_default() -> None:
    found = dict(re.findall(r"image: \$\{(\w+)_IMAGE:-([\w-]+)\}", (ROOT / "docker-compose.yml").read_text("utf-8")))
    assert found == {name.upper(): f"tsunagi-{name}" for name in ("kafka", "prometheus", "mosquitto")}


def test_the_profile_of_the_makers_images_names_all_three_and_gives_each_its_configuration(tmp_path: Path) -> None:
    project = Project(tmp_path, ("official",), {"KAFKA_IMAGE": "registry.invalid/kafka:4"})
    assert project.env["COMPOSE_FILE"] == "docker-compose.yml:deploy/compose.official.yml"
    assert project.env["KAFKA_IMAGE"] == "registry.invalid/kafka:4", "the environment has the last word"
    assert project.env["PROMETHEUS_IMAGE"].startswith("prom/prometheus:")
    assert project.env["MOSQUITTO_IMAGE"].startswith("eclipse-mosquitto:")
    text = (ROOT / "deploy/compose.official.yml").read_text("utf-8")
    assert re.findall(r"(?m)^  (\w+):$", text) == ["kafka", "prometheus", "mosquitto"]
    for file in re.findall(r"- \./([^:]+):", text):
        assert (ROOT / file).exists()


def test_an_image_that_is_named_is_pulled_and_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(self: Project, command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        missing = command[:3] == ["docker", "image", "inspect"] or "registry.invalid/prometheus" in command
        return subprocess.CompletedProcess(command, int(missing), "", "")

    monkeypatch.setattr(Project, "_run", run)
    monkeypatch.setattr(Project, "_build_helper", lambda _self: None)
    monkeypatch.setattr(Project, "_compose_run", run)
    Project(tmp_path, ("mqtt",), {"KAFKA_IMAGE": "registry.invalid/kafka:4", "BASE_IMAGE": "base"}).build()
    assert ["docker", "pull", "--quiet", "registry.invalid/kafka:4"] in asked
    assert [command[-1] for command in asked if command[-2] == "build"] == [
        "topics",
        "edge-1",
        "spark",
        "prometheus",
        "mosquitto",
    ]
    with pytest.raises(ComposeError, match=r"PROMETHEUS_IMAGE = registry\.invalid/prometheus: cannot be pulled"):
        Project(tmp_path, (), {"PROMETHEUS_IMAGE": "registry.invalid/prometheus", "BASE_IMAGE": "base"}).build()
