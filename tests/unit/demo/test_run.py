"""The demo's directory: emptied only of what a demo wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.demo.inputs import DemoError
from tsunagi.demo.run import LEAD_S, _fresh, lead
from tsunagi.runtime.marked import marked


def test_a_directory_of_an_earlier_demo_is_made_anew(tmp_path: Path) -> None:
    out = _fresh(tmp_path / "demo")
    (out / "run" / "logs").mkdir(parents=True)
    for name in ("report.json", "model.bin", "run/logs/gw-1.log"):
        (out / name).write_text("x")
    assert _fresh(out) == out
    assert marked(out)
    assert [path.name for path in out.iterdir()] == [".tsunagi"]


@pytest.mark.parametrize("name", ["tsunagi.toml", "report.json", "mine"])
def test_a_directory_that_no_demo_made_is_refused_untouched(tmp_path: Path, name: str) -> None:
    """`--out .` where somebody keeps his tsunagi.toml."""
    (tmp_path / name).write_text('state = "nowhere"\n')
    with pytest.raises(DemoError, match="not of an earlier demo"):
        _fresh(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_somebody_put_beside_a_demo_stays(tmp_path: Path) -> None:
    out = _fresh(tmp_path / "demo")
    (out / "mine").mkdir()
    (out / "mine" / "notes").write_text("x")
    (out / "report.json").write_text("x")
    assert _fresh(out) == out
    assert sorted(path.name for path in out.iterdir()) == [".tsunagi", "mine"]
    assert (out / "mine" / "notes").exists()


def test_many_edges_are_started_earlier() -> None:
    assert lead(1.0, 4) == lead(1.0, 20) == LEAD_S
    assert lead(20.0, 4) == pytest.approx(12.0)
    assert lead(20.0, 20) == pytest.approx(20.0)
