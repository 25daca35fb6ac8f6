"""Fixtures of the edge's unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.edge.worlds import FileWorld, made


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FileWorld]]:
    """Make worlds of an edge that replays a CSV."""
    yield from made(FileWorld, tmp_path)
