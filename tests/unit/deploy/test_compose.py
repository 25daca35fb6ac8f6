from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from deploy.compose import PROFILES, ROOT, Project, main
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
    own = {name.upper(): f"tsunagi-{name}" for name in ("kafka", "prometheus", "mosquitto")}
    assert found == {**own, "ALERTMANAGER": "tsunagi-prometheus"}


def test_the_profile_of_the_makers_images_names_all_four_and_gives_each_its_configuration(tmp_path: Path) -> None:
    project = Project(tmp_path, ("official",), {"KAFKA_IMAGE": "registry.invalid/kafka:4"})
    assert project.env["COMPOSE_FILE"] == "docker-compose.yml:deploy/compose.official.yml"
    assert project.env["KAFKA_IMAGE"] == "registry.invalid/kafka:4", "the environment has the last word"
    assert project.env["PROMETHEUS_IMAGE"].startswith("prom/prometheus:")
    assert project.env["ALERTMANAGER_IMAGE"].startswith("prom/alertmanager:")
    assert project.env["MOSQUITTO_IMAGE"].startswith("eclipse-mosquitto:")
    text = (ROOT / "deploy/compose.official.yml").read_text("utf-8")
    assert re.findall(r"(?m)^  (\w+):$", text) == ["kafka", "prometheus", "alertmanager", "mosquitto"]
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


def test_the_alertmanager_is_in_the_image_of_prometheus_unless_one_of_them_is_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(self: Project, command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, int(command[:3] == ["docker", "image", "inspect"]), "", "")

    def built(**images: str) -> list[str]:
        asked.clear()
        Project(tmp_path, ("alerts",), {"BASE_IMAGE": "base", **images}).build()
        return [command[-1] for command in asked if command[-2] == "build"]

    monkeypatch.setattr(Project, "_run", run)
    monkeypatch.setattr(Project, "_build_helper", lambda _self: None)
    monkeypatch.setattr(Project, "_compose_run", run)
    assert built() == ["topics", "edge-1", "kafka", "spark", "prometheus"]
    assert built(PROMETHEUS_IMAGE="theirs") == ["topics", "edge-1", "kafka", "spark", "alertmanager"]
    assert built(PROMETHEUS_IMAGE="theirs", ALERTMANAGER_IMAGE="theirs-too") == ["topics", "edge-1", "kafka", "spark"]
    assert ["docker", "pull", "--quiet", "theirs-too"] in asked


def test_prometheus_sends_its_alerts_to_the_alertmanager_of_the_profile(tmp_path: Path) -> None:
    assert Project(tmp_path, ("alerts",), {}).env["TSUNAGI_ALERTMANAGER"] == "alertmanager:9093"
    assert "TSUNAGI_ALERTMANAGER" not in Project(tmp_path, (), {}).env
    own = {"TSUNAGI_ALERTMANAGER": "mine:9093"}
    assert Project(tmp_path, ("alerts",), own).env["TSUNAGI_ALERTMANAGER"] == "mine:9093"


def plant(path: Path) -> Path:
    folder = path / "Werk 1"
    folder.mkdir()
    (folder / "tsunagi.toml").write_text("")
    return folder


def test_a_folder_has_variables_and_files_of_its_own(tmp_path: Path) -> None:
    folder = plant(tmp_path)
    (tmp_path / ".env").write_text("TSUNAGI_SLOTS=7\n")
    (folder / ".env").write_text(f"COMPOSE_FILE=/elsewhere/docker-compose.yml:{folder}/compose.override.yml:mine.yml\n")
    project = Project(tmp_path, ("elastic",), {}, folder)
    assert project.env["COMPOSE_FILE"].split(":") == [
        f"{tmp_path}/docker-compose.yml",
        f"{folder}/compose.override.yml",
        f"{tmp_path}/deploy/compose.elastic.yml",
        "mine.yml",
    ]
    assert project.env["TSUNAGI_PROJECT"] == str(folder)
    assert project.name == "werk-1"
    assert "TSUNAGI_SLOTS" not in project.env, "the checkout's .env is the demo's"
    assert Project(tmp_path, ("mqtt",), {}, folder).env["TSUNAGI_MQTT_HOST"] == "mosquitto"


def test_operators_are_those_that_are_named_or_the_folders_own(tmp_path: Path) -> None:
    folder = plant(tmp_path)
    assert "TSUNAGI_OPERATORS" not in Project(tmp_path, (), {}, folder).env
    (folder / "operators").mkdir()
    assert Project(tmp_path, (), {}, folder).env["TSUNAGI_OPERATORS"] == str(folder / "operators")
    assert Project(tmp_path, (), {}, folder, tmp_path).env["TSUNAGI_OPERATORS"] == str(tmp_path)


def test_what_the_folders_settings_are_refused_for_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path)
    said = "tsunagi.toml: [slots.count] too small"
    monkeypatch.setattr(Project, "_run", lambda _self, command: subprocess.CompletedProcess(command, 2, "", said))
    with pytest.raises(ComposeError, match=r"Werk 1: tsunagi\.toml: \[slots\.count\] too small"):
        Project(tmp_path, (), {}, folder).write_files()


def test_the_compose_file_is_made_anew_and_variables_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path)
    made = json.dumps({"compose.override.yml": "new\n", ".env": "A={name}\nB={checkout}\nTSUNAGI_PROJECT={folder}\n"})
    monkeypatch.setattr(Project, "_run", lambda _self, command: subprocess.CompletedProcess(command, 0, made, ""))
    project = Project(tmp_path, (), {}, folder)
    for _ in range(2):
        (folder / "compose.override.yml").write_text("old\n")
        project.write_files()
        assert (folder / "compose.override.yml").read_text() == "new\n"
    expected = {"A": "werk-1", "B": str(tmp_path), "TSUNAGI_PROJECT": str(folder)}
    assert read_env(folder / ".env") == expected
    (folder / ".env").write_text("A=mine\n")
    project.write_files()
    assert read_env(folder / ".env") == {"A": "mine"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--project", "nowhere"], "PROJECT: found 'nowhere', expected a directory"),
        (["--project", "docs"], "no such file; `tsunagi init docs` writes it"),
        (["--operators", "nowhere"], "OPERATORS: found 'nowhere', expected a directory"),
    ],
)
def test_a_folder_that_is_not_one_is_named(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["down", *arguments]) == 1
    assert said in capsys.readouterr().err
