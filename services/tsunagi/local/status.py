"""`tsunagi status`: shows what the log says about slots, nodes and results, as tables or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tsunagi.local.fleet import Fleet
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, RESULTS, TUPLES, LogError
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.topics import tool_log

_LISTEN_S = 0.6
"""After the old heartbeats have been read, new ones are read for this many seconds, so that each living node is
heard."""
_CONNECT_S = 15.0
"""Longest wait for the first records, in seconds: a new client may need seconds to connect on a busy machine."""


def read_status(settings: Settings) -> dict[str, Any]:
    """Return the state of the system, from the log and the pid files.

    Returns:
        {"broker", "slots": [...], "spark": {...}, "nodes": [...], "processes": [...], "results": {...}}, as `--json`
        prints it.

    Raises:
        LogError: the broker does not answer, or has no topics of this system.
    """
    log = tool_log(settings, "status")
    if log.partitions(TUPLES) == 0:
        raise LogError(
            f"broker {settings.kafka.servers}: no topic {settings.kafka.prefix}{TUPLES}; has the system been started?"
        )
    fleet = Fleet(log)
    reader = log.reader()
    try:
        # The first records of a new client may take seconds; after them the command listens until each living node
        # has spoken.
        deadline = time.monotonic() + _CONNECT_S
        while not fleet.caught_up and time.monotonic() < deadline:
            fleet.update(0.1)
        deadline = time.monotonic() + _LISTEN_S
        while time.monotonic() < deadline:
            fleet.update(0.1)
        ends = {
            (topic, p): reader.range(topic, p)[1]
            for topic in (TUPLES, RECOVERED, RESULTS)
            for p in range(log.partitions(topic))
        }
        aside = {topic: reader.range(topic, 0)[1] for topic in (LATE, DEAD_LETTERS)}
    finally:
        reader.close()
        fleet.close()
    return {
        "broker": settings.kafka.servers,
        "slots": [_slot(slot, fleet, ends) for slot in range(log.partitions(TUPLES))],
        "spark": _spark(fleet, settings),
        "nodes": _nodes(fleet),
        "processes": [
            {"node": item.node, "role": item.role, "pid": item.pid, "alive": processes.alive(item)}
            for item in processes.list_processes(settings.state)
        ],
        "results": {str(p): end for (topic, p), end in sorted(ends.items()) if topic == RESULTS},
        "late": aside[LATE],
        "dead_letters": aside[DEAD_LETTERS],
    }


def _slot(slot: int, fleet: Fleet, ends: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    primary, standby = fleet.of_slot(slot, "primary"), fleet.of_slot(slot, "standby")
    end = ends[TUPLES, slot]
    spark = fleet.acked(slot, "spark")
    return {
        "slot": slot,
        "owner": primary[0] if primary else "",
        "epoch": primary[1].epoch if primary else 0,
        "position": primary[1].position if primary else -1,
        "end": end,
        "lag": max(0, end - primary[1].position) if primary else end,
        "step": primary[1].step if primary else -1,
        "secondary": standby[0] if standby else "",
        "secondary_ready": bool(standby and standby[1].ready),
        "secondary_reason": standby[1].reason if standby else "nobody stands by",
        "secondary_lag": max(0, end - standby[1].position) if standby else end,
        "batch_size": standby[1].batch_size if standby else 0,
        "declared": next((part[1].declared for part in (primary, standby) if part and part[1].declared), ""),
        "recovered_end": ends[RECOVERED, slot],
        "spark_lag": ends[RECOVERED, slot] - max(0, spark),
    }


def _spark(fleet: Fleet, settings: Settings) -> dict[str, Any]:
    """Return what the job's last heartbeat says about its batches; {} if there was no heartbeat or no batch."""
    beats = [beat.message.spark for beat in fleet.beats.values() if beat.message.role == "spark"]
    if not beats or not beats[0].order:
        return {}
    beat = beats[0]
    return {
        "batch": beat.batch,
        "batch_s": beat.batch_us / 1e6,
        "latency_s": beat.latency_us / 1e6,
        "frontier": beat.frontier,
        "newest": beat.newest,
        "behind_s": max(0, beat.newest - beat.frontier) * settings.steps.slide_s,
        "held_by": list(beat.held_by),
        "left_behind": list(beat.left_behind),
        "carried": beat.carried,
        "order": beat.order,
        "cut": beat.cut,
        "fault": beat.fault,
    }


def _nodes(fleet: Fleet) -> list[dict[str, Any]]:
    now_us = time.time_ns() // 1000
    return [
        {
            "node": node,
            "role": beat.message.role,
            "pid": beat.message.pid,
            "age_s": round(beat.age_s(now_us), 2),
            "leaving": beat.message.leaving,
            "metrics_port": beat.message.metrics_port,
            "step": beat.message.step,
            "slots": {str(part.slot): part.role for part in beat.message.slots},
        }
        for node, beat in sorted(fleet.beats.items())
    ]


def spark_line(job: Mapping[str, Any]) -> str:
    """Return in one line how far the job is, and what holds the results up."""
    text = (
        f"Spark: batch {job['batch']} took {job['batch_s']:.2f} s, results {job['latency_s']:.2f} s after their input"
    )
    text += f"; order {job['order']}" + (f" ({job['cut']} groups cut)" if job["cut"] else "")
    text += f"; frontier at step {job['frontier']}"
    if job["behind_s"]:
        text += f", {job['behind_s']:g} s behind the newest slot ({job['carried']} rows wait)"
    if job["held_by"]:
        text += f"; waiting for slot {', '.join(map(str, job['held_by']))}"
    if job["left_behind"]:
        text += f"; left behind: slot {', '.join(map(str, job['left_behind']))}"
    if job.get("fault"):
        text += f"; not the log that it knew: {job['fault']}"
    return text


def print_status(status: Mapping[str, Any], console: Console) -> None:
    """Print the state as tables."""
    slots = Table(title="slots", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("slot", "owner", "epoch", "offset", "lag", "step", "secondary", "behind", "B", "Spark behind"):
        slots.add_column(name, justify="left" if name in ("owner", "secondary") else "right", no_wrap=True)
    for item in status["slots"]:
        secondary = item["secondary"] or "[red]none[/red]"
        if item["secondary"] and not item["secondary_ready"]:
            secondary += f" (not ready: {item['secondary_reason']})"
        owner = (item["slot"], item["owner"] or "[red]none[/red]", item["epoch"], item["position"], item["lag"])
        others = (item["step"], secondary, item["secondary_lag"], item["batch_size"] or "inf", item["spark_lag"])
        slots.add_row(*(str(cell) for cell in owner + others))
    console.print(slots)
    for item in status["slots"]:
        if item["declared"]:
            console.print(f"[red]slot {item['slot']}[/red]: {item['declared']}")
    if status["spark"]:
        console.print(spark_line(status["spark"]) + "\n")
    alive = {item["node"]: item["alive"] for item in status["processes"]}
    nodes = Table(title="nodes", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("node", "role", "pid", "process", "heartbeat", "metrics port", "slots"):
        nodes.add_column(name, justify="right" if name in ("pid", "heartbeat", "metrics port") else "left")
    for item in status["nodes"]:
        process = {True: "runs", False: "[red]dead[/red]", None: "elsewhere"}[alive.get(item["node"])]
        heartbeat = "has left" if item["leaving"] else f"{item['age_s']:.1f} s ago"
        held = ", ".join(f"{slot}: {role}" for slot, role in item["slots"].items())
        port = str(item["metrics_port"] or "")
        nodes.add_row(item["node"], item["role"], str(item["pid"]), process, heartbeat, port, held)
    console.print(nodes)
    silent = [node for node in alive if node not in {item["node"] for item in status["nodes"]}]
    if silent:
        console.print(
            "no heartbeat yet: " + ", ".join(f"{node} ({'runs' if alive[node] else 'dead'})" for node in silent)
        )
    blocks = ", ".join(f"partition {p}: {end}" for p, end in status["results"].items())
    console.print(f"results: {blocks} records; late: {status['late']}; dead letters: {status['dead_letters']}")
