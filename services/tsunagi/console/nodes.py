"""Follows heartbeats: who lives, who owns which slot, and every takeover."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tsunagi.console.takeovers import Takeovers
from tsunagi.local.fleet import Fleet
from tsunagi.local.sinks import sinks_of
from tsunagi.runtime.log import TUPLES, Log, LogError
from tsunagi.runtime.messages import Heartbeat, SlotBeat
from tsunagi.runtime.settings import Settings

READ_S = 0.1
"""Longest wait of a read, in seconds."""
VIEW_S = 0.25
"""Shortest time between two views, in seconds."""
NOBODY = "nobody stands by"
"""Why a slot has no secondary that is ready, if it has none at all."""


class Nodes:
    """A follower (`tsunagi.console.following`) of `heartbeats` and `acks`.

    Args:
        put: is given some times a second what the fleet says of itself (`view_of`).
    """

    def __init__(
        self, log: Log, settings: Settings, takeovers: Takeovers, put: Callable[[dict[str, Any]], None]
    ) -> None:
        self._slots = log.partitions(TUPLES)
        if self._slots == 0:
            raise LogError("no topics; has the system been started?")
        self._settings = settings
        self._fleet = Fleet(log)
        self._takeovers = takeovers
        self._put = put
        self._made = 0.0

    def turn(self) -> None:
        self._fleet.update(READ_S)
        self._takeovers.look(self._fleet)
        if time.monotonic() - self._made >= VIEW_S:
            self._made = time.monotonic()
            self._put(view_of(self._fleet, self._settings, self._slots, time.time_ns() // 1000))

    def close(self) -> None:
        self._fleet.close()


def view_of(fleet: Fleet, settings: Settings, slots: int, now_us: int) -> dict[str, Any]:
    """Return what the last heartbeats say, for the pages."""
    alive = fleet.fresh()
    roles = _by_slot(alive)
    return {
        "slots": [slot_view(slot, roles.get(slot, {})) for slot in range(slots)],
        "nodes": [
            {
                "node": node,
                "role": beat.message.role,
                "age_s": round(max(0.0, beat.age_s(now_us)), 1),
                "alive": node in alive,
                "leaving": beat.message.leaving,
                "pid": beat.message.pid,
                "host": beat.message.metrics_host,
                "metrics_port": beat.message.metrics_port,
                "overloaded_s": round(beat.message.overloaded_ms / 1000, 1),
                "slots": {str(part.slot): part.role for part in beat.message.slots},
            }
            for node, beat in sorted(fleet.beats.items())
            if beat.message.role != "edge"
        ],
        "edges": {
            node: {"alive": node in alive, "heard_us": beat.appended_us, "step": beat.message.step}
            for node, beat in sorted(fleet.beats.items())
            if beat.message.role == "edge"
        },
        "spark": _spark(alive),
        "learner": _learner(alive),
        "sinks": sinks_of(alive, settings),
    }


def _by_slot(alive: Mapping[str, Heartbeat]) -> dict[int, dict[str, tuple[str, SlotBeat]]]:
    """Return {slot: {role: (node, what it says)}}, of the latest epoch for each role."""
    found: dict[int, dict[str, tuple[str, SlotBeat]]] = {}
    for node, beat in alive.items():
        for part in beat.slots:
            mine = found.setdefault(part.slot, {})
            if part.role not in mine or part.epoch > mine[part.role][1].epoch:
                mine[part.role] = node, part
    return found


def slot_view(slot: int, roles: Mapping[str, tuple[str, SlotBeat]]) -> dict[str, Any]:
    """Return what is known of a slot: its owner, its standby, and how far both are."""
    nobody: tuple[str, SlotBeat | None] = ("", None)
    owner, owns = roles.get("primary", nobody)
    standby, stands = roles.get("standby", nobody)
    return {
        "slot": slot,
        "owner": owner,
        "epoch": owns.epoch if owns else 0,
        "lag": owns.lag if owns else None,
        "step": owns.step if owns else None,
        "taking_up": bool(owns and owns.taking_up),
        "promoting": roles["promoting"][0] if "promoting" in roles else "",
        "standby": standby,
        "ready": bool(stands and stands.ready),
        "reason": stands.reason if stands else NOBODY,
        "behind": stands.lag if stands else None,
        "batch_size": stands.batch_size if stands else None,
        "declared": next((part.declared for part in (owns, stands) if part and part.declared), ""),
    }


def _spark(alive: Mapping[str, Heartbeat]) -> dict[str, Any]:
    for beat in alive.values():
        if beat.role == "spark" and beat.spark.order:
            job = beat.spark
            return {
                "batch": job.batch,
                "batch_s": job.batch_us / 1e6,
                "latency_s": job.latency_us / 1e6,
                "order": job.order,
                "held_by": list(job.held_by),
                "left_behind": list(job.left_behind),
                "carried": job.carried,
                "fault": job.fault,
                "queries": [
                    {
                        "query": item.name,
                        "since": item.since,
                        "rows": item.rows,
                        "state_bytes": item.state_bytes,
                        "late": item.late,
                        "fault": item.fault,
                    }
                    for item in job.query
                ],
            }
    return {}


def _learner(alive: Mapping[str, Heartbeat]) -> dict[str, Any]:
    for beat in alive.values():
        if beat.role == "learner":
            said = beat.learner
            return {"steps": said.steps, "needed": said.needed, "fitting": said.fitting, "fault": said.fault}
    return {}
