"""What the console's pages take from npm is what the lock file names, with its licence."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOCK = json.loads((ROOT / "deploy" / "console" / "package-lock.json").read_text(encoding="utf-8"))
STATIC = ROOT / "services" / "tsunagi" / "console" / "static"


def test_the_lock_has_hashes_and_no_addresses() -> None:
    packages = {name: item for name, item in LOCK["packages"].items() if name}
    assert all(item["integrity"].startswith("sha512-") for item in packages.values())
    assert not any("resolved" in item for item in packages.values())


def test_the_library_of_charts_is_the_locked_one_with_its_licence() -> None:
    version = LOCK["packages"]["node_modules/uplot"]["version"]
    script = (STATIC / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    assert f"(v{version})" in script[:200]
    assert "MIT License" in (STATIC / "uplot" / "LICENSE").read_text(encoding="utf-8")
