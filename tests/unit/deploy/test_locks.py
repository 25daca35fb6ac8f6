"""The locks of the images are shares of the one lock, and have everything that the services need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned(path: Path) -> dict[str, str]:
    """Return the versions of a lock by name."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", path.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize(("image", "extras"), [("edge", []), ("services", ["system"]), ("spark", ["spark"])])
def test_an_image_has_what_the_project_needs_in_the_versions_of_the_lock(image: str, extras: list[str]) -> None:
    lock = pinned(ROOT / "deploy" / image / "requirements.lock")
    optional = PROJECT["optional-dependencies"]
    extras = [*extras, *(["system"] if f"{PROJECT['name']}[system]" in optional[extras[-1]] else [])] if extras else []
    wanted = [*PROJECT["dependencies"], *(item for extra in extras for item in optional[extra])]
    names = {re.split(r"[^A-Za-z0-9._-]", item)[0].lower() for item in wanted} - {PROJECT["name"]}
    assert names - {name.lower() for name in lock} == set(), "run `make lock`, or make the images' locks anew"
    whole = pinned(ROOT / "requirements.lock")
    assert {name: version for name, version in lock.items() if whole.get(name) != version} == {}
