"""Imports structlog without rich, for processes that run a service.

structlog imports rich if it is installed, to show tracebacks on terminals. Services write plain ones
(tsunagi.runtime.logging_setup), and rich would take 6 MB and 60 ms of each of them.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_UNUSED = "rich"
"""The package that structlog is not to find."""


def import_structlog() -> None:
    """Import structlog as if rich were not installed. It does nothing if structlog has been imported already."""
    if "structlog" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules  # None in it makes an import of this name fail
    there = modules.get(_UNUSED)
    modules[_UNUSED] = None
    try:
        importlib.import_module("structlog")
    finally:
        del modules[_UNUSED]
        if there is not None:
            modules[_UNUSED] = there
