"""`make lint` fails on an import of a layer above, and on a cycle between files (pyproject.toml, tool.importlinter)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tsunagi.installation import CHECKOUT


def lint(root: Path) -> tuple[int, str]:
    """Run import-linter on the packages of a tree; return its exit code and what it says."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "services"), str(root / "spark")])}
    done = subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert CHECKOUT is not None
    root = tmp_path_factory.mktemp("tree")
    for folder in ("services/tsunagi", "spark/tsunagi_spark"):
        shutil.copytree(Path(CHECKOUT) / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(CHECKOUT) / "pyproject.toml", root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "planted", "broken"),
    [
        ("services/tsunagi/slot/config.py", "", ""),
        (
            "services/tsunagi/slot/config.py",
            "import tsunagi.standby.replica",
            "Each layer imports only what is below it",
        ),
        (
            "services/tsunagi/standby/costs.py",
            "import tsunagi.owner.closer",
            "Each layer imports only what is below it",
        ),
        ("services/tsunagi/edge/window.py", "import tsunagi_spark.job", "Each layer imports only what is below it"),
        ("services/tsunagi/audit/rows.py", "import tsunagi.edge.window", "The judge imports nothing that it judges"),
        ("services/tsunagi/standby/trust.py", "import tsunagi.standby.replica", "No file imports what imports it"),
    ],
)
def test_an_import_of_what_is_above_breaks_the_contract(copy: Path, file: str, planted: str, broken: str) -> None:
    place = copy / file
    before = place.read_text(encoding="utf-8")
    place.write_text(f"{before}\n{planted}\n", encoding="utf-8")
    try:
        code, said = lint(copy)
    finally:
        place.write_text(before, encoding="utf-8")
    assert code == int(bool(broken)), said
    assert not broken or f"{broken} BROKEN" in said.split("\n"), said
