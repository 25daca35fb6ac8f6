"""What `docs/tutorial.md` shows runs as it is written."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tsunagi.runtime.settings import load

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SETTINGS = ROOT / "examples" / "tutorial.toml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_its_settings_are_those_of_the_example() -> None:
    (shown,) = blocks("toml")
    assert SETTINGS.read_text(encoding="utf-8").endswith(shown)
    assert load(SETTINGS).source.repeat


def test_its_operator_and_its_csv_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator, check, own = blocks("python")
    (rows,) = blocks("text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("fahrenheit.py", operator), ("check.py", check), ("own.py", own), ("plant.csv", rows)):
        Path(name).write_text(text, encoding="utf-8")
    runpy.run_path("fahrenheit.py", run_name="__main__")
    assert "boiler 179.6" in capsys.readouterr().out
    try:
        runpy.run_path("check.py")
    finally:
        sys.modules.pop("fahrenheit", None)
    runpy.run_path("own.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert "boiler 80.8" in printed
    assert "pump" not in printed
