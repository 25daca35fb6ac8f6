"""What a command hands to the code that does the work: every option arrives, under the name that it has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tsunagi.cli import cli


def handed(monkeypatch: pytest.MonkeyPatch, target: str, *arguments: str) -> list[Any]:
    """Run a command whose work is replaced; return what the work was given."""
    given: list[Any] = []

    def work(*arguments: object) -> int:
        given.extend(arguments)
        return 0

    monkeypatch.setattr(target, work)
    CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    return given


def test_chaos(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "tsunagi.chaos.command.run_chaos"
    _, _, options, _ = handed(monkeypatch, target, "chaos", "--patience", "5", "--every", "2")
    assert (options.patience_s, options.every_s, options.targets, options.local) == (5.0, 2.0, ("gateway",), False)
    _, _, options, _ = handed(monkeypatch, target, "chaos")
    assert (options.patience_s, options.every_s, options.count) == (180.0, 0.0, 1)


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,) = handed(monkeypatch, "tsunagi.demo.run.run", "demo", "--edges", "3")
    assert (plan.edges, plan.seed, plan.out) == (3, 1, Path("out/demo"))


def test_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handed(monkeypatch, "tsunagi.local.wait.wait_for_result", "wait", "--timeout", "3")[1:2] == [3.0]


def test_simulate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_s,rate_per_s\n")
    target = "tsunagi.scaler.simulate_report.simulate"
    with pytest.raises(TypeError, match="not subscriptable"):  # it goes on with the figures, which are none here
        handed(monkeypatch, target, "scaler", "simulate", "--trace", str(trace), "--out", str(tmp_path / "o.json"))
