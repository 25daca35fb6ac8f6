"""`tsunagi recovery explore`, from files to files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.recovery.fields import spatial_field
from tsunagi.cli import cli
from tsunagi.recovery.model import Model


@pytest.mark.slow
def test_it_shows_and_writes_what_choices_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    correlation, places = spatial_field(80, np.random.default_rng(1), regions=9)
    zeros = np.zeros(80)
    names = tuple(f"s{place}" for place in range(80))
    model = Model(names, zeros, zeros + 2, zeros + 0.9, 0.19 * correlation, correlation, zeros)
    edges = [f"e{place}" for place in places]
    model.save(tmp_path / "a.model")
    table = "".join(f"{name},{edge}\n" for name, edge in zip(model.names, edges, strict=True))
    (tmp_path / "sensors.csv").write_text(f"sensor,edge\n{table}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    files = ["--model", "a.model", "--sensors", "sensors.csv"]
    command = ["recovery", "explore", *files, "--slots", "1,4", "--cap", "0,9"]
    found = CliRunner().invoke(cli, [*command, "--eps", "0.5", "--draws", "5", "--out", "t.csv", "--picture", "t.png"])
    assert found.exit_code == 0, found.output
    assert "satisfied" in found.output
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["slots"], row["cap"]) for row in rows] == [("1", "0"), ("1", "9"), ("4", "0"), ("4", "9")]
    assert (tmp_path / "t.png").stat().st_size > 1000
    wrong = CliRunner().invoke(cli, [*command, "--eps", "much"])
    assert wrong.exit_code == 2
    assert "much" in wrong.output
