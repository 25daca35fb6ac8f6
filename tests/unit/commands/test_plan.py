"""`tsunagi plan` and the files for containers that `tsunagi init` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tsunagi.cli import cli


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `tsunagi init` has made of a CSV with two sensors."""
    (tmp_path / "history.csv").write_text("a.x,b.x\n1,2\n2,3\n")
    done = CliRunner().invoke(cli, ["init", str(tmp_path / "plant"), "--csv", str(tmp_path / "history.csv")])
    assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path / "plant")
    return tmp_path / "plant"


def test_each_number_has_a_place_and_a_reason_and_differences_are_shown(plant: Path) -> None:
    told = CliRunner().invoke(cli, ["plan"], catch_exceptions=False).output
    assert "sensors: 2; edges: 1; readings/s: 2.0; step: 1 s" in told
    assert "(the settings have" not in told, "init writes what plan proposes"
    config = plant / "tsunagi.toml"
    config.write_text(config.read_text().replace("count = 2", "count = 4"))
    told = CliRunner().invoke(cli, ["plan"], catch_exceptions=False).output
    assert "(the settings have 4)" in told


def test_init_and_make_up_write_the_same(plant: Path) -> None:
    found = json.loads(CliRunner().invoke(cli, ["plan", "--compose"], catch_exceptions=False).output)
    assert found["compose.override.yml"] == (plant / "compose.override.yml").read_text()
    assert f"TSUNAGI_PROJECT={plant}" in (plant / ".env").read_text()
    assert "{folder}" in found[".env"]
