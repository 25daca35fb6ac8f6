"""The containers under test: one project for all modules, which each leaves whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.project import ComposeProject


@pytest.fixture(scope="session")
def project() -> Iterator[ComposeProject]:
    """The project with its defaults, results flowing."""
    found = ComposeProject()
    found.down()  # what a run that was cut short has left
    found.up()
    try:
        yield found
    finally:
        found.down()
