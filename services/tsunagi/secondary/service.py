"""A secondary: the gateway's host under another name.

Which slots it stands by for, the plan says; which it owns, the slots' logs.
"""

from __future__ import annotations

from tsunagi.gateway import service
from tsunagi.runtime.settings import Settings


def run(settings: Settings, node: str) -> int:
    """Run a worker until it is told to stop; see `tsunagi.gateway.service.run`."""
    return service.run(settings, node, service="secondary")
