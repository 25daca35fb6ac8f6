"""The names of sinks' processes."""

from __future__ import annotations


def node_of(sink: str) -> str:
    """Return the name of the only instance of a sink, or of the first one."""
    return f"sink-{sink}"
