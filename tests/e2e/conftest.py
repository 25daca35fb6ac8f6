"""Systems for the e2e tests: one a module, which its tests disturb one after the other and leave whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stream import Inputs, write_inputs


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """What this shell says of Tsunagi is for other runs."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("TSUNAGI_")}
    for name in kept:
        del os.environ[name]
    yield
    os.environ.update(kept)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The stream that most systems work on."""
    return write_inputs(Path(tmp_path_factory.mktemp("stream")))
