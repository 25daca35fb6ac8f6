"""The containers under test: one project for all modules, which each leaves whole.

Modules with a project of their own come first: two whole systems at once are too much for a small machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.project import ComposeProject


@pytest.fixture(scope="session")
def project() -> Iterator[ComposeProject]:
    """The project with its defaults and an Alertmanager, results flowing."""
    with ComposeProject(profiles=("alerts",)).running() as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests of the common project come last."""
    items.sort(key=lambda item: "project" in getattr(item, "fixturenames", ()))
