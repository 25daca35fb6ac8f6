"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.edges import LiveWorld
from tsunagi.runtime.settings import KafkaSettings


@pytest.fixture
def make_live(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Callable[..., LiveWorld]]:
    """Make worlds of an edge on a live source, with topics of their own on the shared broker."""
    worlds: list[LiveWorld] = []

    def make(**source: object) -> LiveWorld:
        worlds.append(LiveWorld(tmp_path, kafka_settings, **source))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
