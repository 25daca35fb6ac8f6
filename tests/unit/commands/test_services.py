"""Each command of a service calls that service with arguments that it takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner

from tsunagi.cli import cli


@pytest.mark.parametrize(
    ("words", "name", "module", "arguments", "options"),
    [
        ("edge run --edge e --clock-offset 2", "e", "tsunagi.edge.process", ("e", 2.0), {}),
        ("gateway run --node g --type big", "g", "tsunagi.worker.service", ("g",), {"kind": "big"}),
        ("secondary run --node s", "s", "tsunagi.worker.service", ("s",), {"service": "secondary"}),
        ("scaler run", "scaler", "tsunagi.scaler.service", (), {}),
        pytest.param("spark run", "spark", "tsunagi_spark.service", (), {}, marks=pytest.mark.slow),
    ],
)
def test_a_service_is_run_by_its_settings(
    words: str,
    name: str,
    module: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = create_autospec(importlib.import_module(module).run, return_value=0)
    monkeypatch.setattr(f"{module}.run", run)
    served: list[str] = []

    def serve(served_name: str, service: Callable[[object], int]) -> None:
        served.append(served_name)
        service("settings")

    monkeypatch.setattr("tsunagi.runtime.loop.serve", serve)
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 0, done.output
    assert served == [name]
    run.assert_called_once_with("settings", *arguments, **options)
