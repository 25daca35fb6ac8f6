"""What a message recommends depends on where Tsunagi stands; nothing is looked for beside an installed package."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tsunagi import installation

HERE = Path(installation.__file__)
SAY = (
    "from tsunagi.installation import *; print(CHECKOUT, CACHE, SETUP, missing('report'), import_path('x'), sep='\\n')"
)


def said(place: Path, **variables: str) -> list[str]:
    """Return what a copy of the module at a place says of it."""
    package = place / "tsunagi"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(HERE, package)
    environment = {"PYTHONPATH": str(place), "HOME": "/home/me", **variables}
    done = subprocess.run(
        [sys.executable, "-c", SAY], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_checkout(tmp_path: Path) -> None:
    checkout, cache, setup, extra, paths = said(tmp_path / "services")
    assert (Path(checkout), Path(cache)) == (tmp_path, tmp_path / ".cache")
    assert (setup, extra) == ("make setup", "run `make setup`")
    assert paths == f"{tmp_path}/services:{tmp_path}/spark:{tmp_path}:x"


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "/cache"}])
def test_an_installed_package(tmp_path: Path, variables: dict[str, str]) -> None:
    checkout, cache, setup, extra, paths = said(tmp_path, **variables)
    assert checkout == "None"
    assert cache == f"{variables.get('XDG_CACHE_HOME', '/home/me/.cache')}/tsunagi"
    assert (setup, extra) == ("tsunagi setup", "run `pip install 'tsunagi-stream[report]'`")
    assert paths == f"{tmp_path}:x"


def sources() -> list[Path]:
    """Return every module of the product."""
    assert installation.CHECKOUT is not None
    return [file for top in ("services", "spark", "deploy") for file in (installation.CHECKOUT / top).rglob("*.py")]


def test_every_message_recommends_an_extra_of_this_distribution() -> None:
    assert installation.CHECKOUT is not None
    project = tomllib.loads((installation.CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == installation.DISTRIBUTION
    calls = [
        node.args[0].value
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "missing"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert {"report", "spark", "spark,report"} <= set(calls)
    assert {extra for call in calls for extra in str(call).split(",")} <= set(project["optional-dependencies"])


def test_no_other_module_names_a_distribution_to_install() -> None:
    for file in sources():
        text = file.read_text(encoding="utf-8")
        for found in re.findall(r"pip install ['\"]?([\w{}-]+)", text):
            assert found in {installation.DISTRIBUTION, "{DISTRIBUTION}"}, file
