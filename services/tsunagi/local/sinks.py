"""What `tsunagi status` and the console say of sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tsunagi.runtime.messages import Heartbeat
from tsunagi.runtime.settings import Settings


def sinks_of(alive: Mapping[str, Heartbeat], settings: Settings) -> list[dict[str, Any]]:
    """Return the state of each sink of the settings, and of each other one that runs.

    Args:
        alive: the last heartbeat of each living node.

    Returns:
        {"sink", "kind", "query", "nodes", "lag", "rows", "refused", "fault"} of each; `kind` and `query` are empty for
        one that the settings do not have, and `nodes` for one that does not run.
    """
    found: dict[str, dict[str, Any]] = {
        sink.name: _nothing(sink.name) | {"kind": sink.kind, "query": sink.query} for sink in settings.sinks
    }
    for node, beat in sorted(alive.items()):
        if beat.role != "sink":
            continue
        said = beat.sink
        item = found.setdefault(said.sink, _nothing(said.sink))
        item["nodes"].append(node)
        item["lag"] += said.lag
        item["rows"] += said.rows
        item["refused"] += said.refused
        item["fault"] = item["fault"] or said.fault
    return list(found.values())


def _nothing(name: str) -> dict[str, Any]:
    return {"sink": name, "kind": "", "query": "", "nodes": [], "lag": 0, "rows": 0, "refused": 0, "fault": ""}


def sink_line(sink: Mapping[str, Any]) -> str:
    """Say in one line how far a sink is."""
    what = f"{sink['query']} to {sink['kind']}" if sink["kind"] else "not in these settings"
    if not sink["nodes"]:
        return f"{what}; does not run (`tsunagi sink run --sink {sink['sink']}`)"
    text = f"{what}; {sink['rows']} rows written, {sink['lag']} records behind"
    if sink["refused"]:
        text += f"; {sink['refused']} rows were refused and stand in dead-letters"
    if len(sink["nodes"]) > 1:
        text += f"; {len(sink['nodes'])} instances"
    return f"{text}; {sink['fault']}" if sink["fault"] else text
