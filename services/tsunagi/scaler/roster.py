"""Which nodes there are and where Prometheus finds their metrics (HTTP service discovery), from heartbeats alone.

A node that dies stays on the list for `FORGET_S`, so that an alert can tell a dead node from one that never existed. A
node that ends in good order is taken off at once. The scaler is not on the list: whoever asks it for the list knows it.

What a heartbeat says is not trusted. Whoever may write heartbeats must not make Prometheus fetch arbitrary pages or
fill its memory. So only a plain host, a port and a plain name are accepted, for no more than `MAX_NODES` nodes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

from tsunagi.runtime.messages import Heartbeat

FORGET_S = 600.0
"""A silent node stays on the list for this many seconds: long enough for alerts to fire."""
MAX_NODES = 20_000
"""Most nodes on the list, so that forged heartbeats cannot fill the memory of the scaler or of Prometheus."""
REPLACED_S = 5.0
"""For this many seconds after the last heartbeat of a process, heartbeats of an earlier process of the same name count
as late ones."""

ROLES = frozenset({"worker", "edge", "spark", "scaler", "learner", "sink"})
"""Roles of the nodes that may be on the list."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""What the name of a node must look like."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")
"""What a host must look like: a host name, or an IPv4 or IPv6 address."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node at its last heartbeat; `at` is in monotonic seconds of the caller's clock."""

    name: str
    role: str
    address: str
    incarnation: int
    at: float


class Roster:
    """The nodes that were heard within `FORGET_S` and have not ended in good order."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._refused: Counter[str] = Counter()

    def on_heartbeat(self, beat: Heartbeat, at: float) -> None:
        """Take note of one heartbeat, in log order; `at` is the time when it was sent."""
        known = self._nodes.get(beat.node)
        if known is not None and beat.incarnation < known.incarnation and at - known.at < REPLACED_S:
            return
        if beat.leaving:
            self._nodes.pop(beat.node, None)
            return
        reason = _refused(beat)
        if not reason and known is None and len(self._nodes) >= MAX_NODES:
            reason = "too many"
        if reason:
            self._refused[reason] += 1
            return
        host = f"[{beat.metrics_host}]" if ":" in beat.metrics_host else beat.metrics_host
        address = f"{host}:{beat.metrics_port}" if host and beat.metrics_port else ""
        self._nodes[beat.node] = Node(beat.node, beat.role, address, beat.incarnation, at)

    def take_refused(self) -> Counter[str]:
        """Return how many heartbeats were refused since the last call, by reason."""
        refused, self._refused = self._refused, Counter()
        return refused

    def nodes(self, now: float) -> list[Node]:
        """Return the nodes by name, and forget those that have been silent for `FORGET_S`."""
        self._nodes = {name: node for name, node in self._nodes.items() if now - node.at < FORGET_S}
        return [node for _, node in sorted(self._nodes.items())]


def targets(nodes: list[Node]) -> bytes:
    """Return the document that ``/targets`` serves: JSON for Prometheus' ``http_sd`` (and ``file_sd``)."""
    groups = [
        {"targets": [node.address], "labels": {"node": node.name, "role": node.role}}
        for node in nodes
        if node.address and node.role != "scaler"
    ]
    return json.dumps(groups).encode() + b"\n"


def _refused(beat: Heartbeat) -> str:
    if not _NAME.fullmatch(beat.node):
        return "name"
    if beat.role not in ROLES:
        return "role"
    if beat.metrics_host and not _HOST.fullmatch(beat.metrics_host):
        return "address"
    return "" if beat.metrics_port <= 65535 else "address"
