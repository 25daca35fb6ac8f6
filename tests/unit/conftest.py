"""What holds for every unit test: what one of them runs leaves neither its logging nor its environment to the next."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Put the logging of the process back after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def environment_restored() -> Iterator[None]:
    """Put the variables of the environment back after the test. `--config` of the command line sets one."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
