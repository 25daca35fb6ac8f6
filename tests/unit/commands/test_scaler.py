"""`tsunagi scaler simulate` from file to files, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.bench.scaler.rivals import make_rival
from tsunagi.cli import cli
from tsunagi.scaler import simulate_report
from tsunagi.scaler.policy import PolicySettings
from tsunagi.scaler.trace import PEAK_RATE
from tsunagi.scaler.types_file import TypesError, make_types, read_types


def trace(path: Path) -> Path:
    hours = np.arange(24 * 4)
    rates = 3 + 2 * np.sin(hours / 24 * 2 * np.pi)
    path.write_text(
        "t_s,rate_per_s\n" + "".join(f"{3600 * hour},{rate:.4f}\n" for hour, rate in zip(hours, rates, strict=True)),
        encoding="utf-8",
    )
    return path


def simulate(tmp_path: Path, *options: str) -> Result:
    given = ["--trace", str(trace(tmp_path / "t.csv")), "--out", str(tmp_path / "o" / "f.json"), "--score-days", "1"]
    return CliRunner().invoke(cli, ["scaler", "simulate", *given, *options])


@pytest.mark.slow
def test_it_writes_figures_decisions_and_a_picture(tmp_path: Path) -> None:
    result = simulate(tmp_path, "--csv", str(tmp_path / "d.csv"), "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "o" / "f.json").read_text(encoding="utf-8"))
    assert 0 < figures["cost_bound"] < figures["cost"] < figures["cost_always_on"]
    assert figures["cost_over_bound"] == pytest.approx(figures["cost"] / figures["cost_bound"])
    assert 0 <= figures["late_share"] < 0.1
    assert figures["changes_per_day"] > 0
    with (tmp_path / "d.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 2 * 288
    assert list(rows[0])[:7] == ["time", "type", "count", "forecast", "quantile", "rate", "backlog"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_always_on_costs_what_is_said_of_it(tmp_path: Path) -> None:
    settings = PolicySettings(policy="always-on")
    options = simulate_report.SimulateOptions(
        trace(tmp_path / "t.csv"), settings, 100.0, tmp_path / "f.json", score_days=1.0
    )
    figures = simulate_report.simulate(options, lambda _: None, lambda told: make_rival(told, PEAK_RATE))
    assert figures["cost"] == pytest.approx(figures["cost_always_on"])


def test_a_slot_that_is_no_multiple_of_the_step_is_refused(tmp_path: Path) -> None:
    result = simulate(tmp_path, "--slot", "15")
    assert "--slot: found 15, expected a multiple of 10 s" in str(result.exception)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "found no type"),
        ({"small": {"price_h": 0.1}}, r"\[small\] rate: found nothing, expected a number above 0"),
        ({"small": {"rate": 40.0}}, r"\[small\] price_h: found nothing"),
        ({"small": {"rate": 40.0, "price_h": -0.1}}, r"price_h: found -0.1, expected a number above 0"),
        ({"small": {"rate": 0, "price_h": 0.1}}, r"rate: found 0, expected"),
        ({"small": {"rate": 4, "price_h": 0.1, "limit": 1.5}}, r"limit: found 1.5, expected a whole number"),
        ({"small": {"rate": 4, "price_h": 0.1, "cores": 2}}, r"cores: no such field"),
        ({"small": 5}, r"found 5, expected a table"),
    ],
)
def test_types_without_price_or_size_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(TypesError, match=message):
        make_types(table, 100.0, "t.toml")


def test_types_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[big]\nrate = 200\nprice_h = 0.4\nregion = "west"\nlimit = 3\n', encoding="utf-8")
    (kind,) = read_types(tmp_path / "t.toml", 60.0)
    assert (kind.rate, kind.boot_s, kind.region, kind.limit) == (200.0, 60.0, "west", 3)
    with pytest.raises(TypesError, match="cannot be read"):
        read_types(tmp_path / "none.toml", 60.0)
