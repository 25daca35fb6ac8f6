"""`tsunagi status`: shows what the log says about slots, nodes and results, as tables or as JSON."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tsunagi.local.fleet import Fleet
from tsunagi.local.recovery import model_in_force
from tsunagi.local.sinks import sink_line, sinks_of
from tsunagi.runtime.fleet_change import differs
from tsunagi.runtime.fleet_table import unpack_table
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RECOVERED, RESULTS, TUPLES, LogError
from tsunagi.runtime.messages import FleetTable, ModelTarget
from tsunagi.runtime.sensors import SensorsError, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.system import processes
from tsunagi.system.fleet_table import table_record
from tsunagi.system.topics import tool_log

_LISTEN_S = 0.6
"""After the old heartbeats have been read, new ones are read for this many seconds, so that each living node is
heard."""
_CONNECT_S = 15.0
"""Longest wait for the first records, in seconds: a new client may need seconds to connect on a busy machine."""
_SLOTS = {
    "slots": ("slot", "owner", "epoch", "offset", "lag", "step"),
    "secondaries": ("slot", "secondary", "behind", "B", "Spark"),
}
"""The headings of the table of slots, by the title of each of the two tables into which a narrow console splits it."""
_NODES = {"nodes": ("node", "role", "process", "heartbeat", "metrics"), "slots of the nodes": ("node", "slots")}
"""The headings of the table of nodes, in the same form."""
_LIST_WIDTH = 20
"""Columns of the terminal that a list of slots needs at least; beyond them it goes on in the next line."""
_LEFT = frozenset({"owner", "secondary", "node", "role", "process", "slots"})
"""Headings of columns of text, which are aligned on the left. The other columns have numbers."""


def read_status(settings: Settings) -> dict[str, Any]:
    """Return the state of the system, from the log and the pid files.

    Returns:
        {"broker", "slots": [...], "spark": {...}, "nodes": [...], "processes": [...], "results": {...},
        "recovery": {...}, "sensors": {...}, "sinks": [...]}, as `--json` prints it.

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
        recovery = _recovery(fleet, settings, model_in_force(log))
        sensors = _sensors(table_record(log), settings)
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
        "step_s": settings.steps.slide_s,
        "recovery": recovery,
        "sensors": sensors,
        "sinks": sinks_of(fleet.fresh(), settings),
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
        "behind_s": max(0, beat.newest - beat.frontier) * settings.steps.slide_s if beat.frontier >= 0 else 0.0,
        "held_by": list(beat.held_by),
        "left_behind": list(beat.left_behind),
        "carried": beat.carried,
        "order": beat.order,
        "cut": beat.cut,
        "fault": beat.fault,
    }


def _recovery(fleet: Fleet, settings: Settings, target: ModelTarget | None) -> dict[str, Any]:
    """Return which model is in force, and how far the learner is; {} if no value is recovered.

    Args:
        target: the model that `plan` names; None = it names none.
    """
    if not any(item.use == "recover" for item in settings.query.chain):
        return {}
    found: dict[str, Any] = {"model": settings.recovery.model, "learn": settings.recovery.learn}
    if target is not None:
        found["in_force"] = {field.name: value for field, value in target.ListFields()}
    beats = [beat.learner for beat in fleet.fresh("learner").values()]
    if beats:
        beat = beats[0]
        found["learner"] = {"steps": beat.steps, "needed": beat.needed, "fitting": beat.fitting}
        found["learner"] |= {"fault": beat.fault, "out": list(beat.out)}
    return found


def recovery_line(recovery: Mapping[str, Any], step_s: float) -> str:
    """Say in one line which model is in force, and what the learner waits for.

    Args:
        step_s: length of a step, seconds.
    """
    target, learner = recovery.get("in_force"), recovery.get("learner")
    if target and target["by"] == "learner":
        text = (
            f"model of {target['sensors']} sensors, learned from {target['steps']} steps; on hidden readings it errs "
        )
        text += f"by {target['error']:.2g} sd (last value or mean: {target['naive']:.2g})"
    elif target:
        text = f"model of {target['sensors']} sensors, {target['sha256'][:12]}, by `tsunagi recovery use`"
    elif recovery["model"]:
        text = f"model {recovery['model']}"
    elif recovery["learn"]:
        text = "no model yet: lost values stay missing"
    else:
        text = "no model ([recovery] model): lost values stay missing. `tsunagi fit --from-log` makes one of what has"
        return f"{text} come, and [recovery] learn = true learns one"
    if not recovery["learn"]:
        return text
    if learner is None:
        return f"{text}; the learner does not run (`tsunagi learner run`)"
    if target and target["by"] != "learner":
        return f"{text}; the learner makes none until `tsunagi recovery use --configured`"
    if learner["fault"]:
        text += f"; the learner's last model was not put in force: {learner['fault']}"
    if learner["fitting"]:
        return f"{text}; the learner fits one to {learner['steps']} steps"
    if learner["out"]:
        return f"{text}; a new one waits until these edges are back: {', '.join(learner['out'])}"
    left_s = max(0, learner["needed"] - learner["steps"]) * step_s
    have = f"the learner has {learner['steps']} of {learner['needed']} steps for the next one"
    return f"{text}; {have} ({left_s:.0f} s to go)"


def _sensors(record: FleetTable | None, settings: Settings) -> dict[str, Any]:
    """Return how large the table in force is, and whether the file says the same.

    Args:
        record: the table that `plan` has; None = it has none, so that the file's is in force.
    """
    file, fault = None, ""
    try:
        file = read_sensors(settings.sensors)
    except SensorsError as error:
        fault = str(error)
    table = file if record is None else unpack_table(record)
    if table is None:
        return {"fault": fault}
    found = {"sensors": len(table.present), "edges": len(table.edges), "fault": fault}
    if record is not None:
        found |= {"from_us": record.from_us, "by": record.by}
        found["file_differs"] = file is not None and differs(table, file)
    return found


def sensors_line(sensors: Mapping[str, Any]) -> str:
    """Say in one line which sensors table is in force."""
    if "sensors" not in sensors:
        return str(sensors["fault"])
    text = f"{sensors['sensors']} on {sensors['edges']} edges"
    if "by" in sensors:
        text += f", in force by {sensors['by'] or 'nobody who is named'}"
    if sensors.get("from_us"):
        moment = datetime.fromtimestamp(sensors["from_us"] / 1e6, UTC).isoformat(timespec="seconds")
        text += f" since {moment.replace('+00:00', 'Z')}"
    if sensors["fault"]:
        text += f"; the file cannot be used: {sensors['fault']}"
    elif sensors.get("file_differs"):
        text += "; the file differs, and has not been applied"
    return text


def _nodes(fleet: Fleet) -> list[dict[str, Any]]:
    now_us = time.time_ns() // 1000
    return [
        {
            "node": node,
            "role": beat.message.role,
            "pid": beat.message.pid,
            "host": beat.message.metrics_host,
            "age_s": round(beat.age_s(now_us), 2),
            "leaving": beat.message.leaving,
            "metrics_port": beat.message.metrics_port,
            "step": beat.message.step,
            "slots": {str(part.slot): part.role for part in beat.message.slots},
            "overloaded_s": beat.message.overloaded_ms / 1000,
        }
        for node, beat in sorted(fleet.beats.items())
    ]


def spark_line(job: Mapping[str, Any]) -> str:
    """Say in one line where the job stands, and what holds the results up."""
    text = f"Spark: batch {job['batch']} took {job['batch_s']:.2f} s, results {job['latency_s']:.2f} s after their "
    text += f"input; order {job['order']}" + (f" ({job['cut']} groups cut)" if job["cut"] else "")
    text += f"; frontier at step {job['frontier']}" if job["frontier"] >= 0 else "; no result yet"
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
    """Print it as tables and sentences, of which nothing is cut, however narrow the console is."""
    _print_tables(_SLOTS, [_slot_row(item) for item in status["slots"]], console)
    for item in status["slots"]:
        if item["secondary"] and not item["secondary_ready"]:
            said = f": {item['secondary']} is not ready to take over: {item['secondary_reason']}"
            console.print(Text.assemble((f"slot {item['slot']}", "yellow"), said))
        if item["declared"]:
            console.print(Text.assemble((f"slot {item['slot']}", "red"), f": {item['declared']}"))
    if status["spark"]:
        console.print(spark_line(status["spark"]) + "\n", markup=False)
    alive = {item["node"]: item["alive"] for item in status["processes"]}
    _print_tables(_NODES, [_node_row(item, alive.get(item["node"])) for item in status["nodes"]], console)
    for item in status["nodes"]:
        if item["overloaded_s"]:
            said = f": its slots have had more records than it can process for {item['overloaded_s']:.0f} s. "
            said += "Results come later; the log keeps what waits."
            console.print(Text.assemble((item["node"], "yellow"), said))
    silent = [node for node in alive if node not in {item["node"] for item in status["nodes"]}]
    if silent:
        said = ", ".join(f"{node} ({'runs' if alive[node] else 'dead'})" for node in silent)
        console.print(f"no heartbeat yet: {said}", markup=False)
    blocks = ", ".join(f"partition {p}: {end}" for p, end in status["results"].items())
    console.print(f"results: {blocks} records; late: {status['late']}; dead letters: {status['dead_letters']}")
    console.print(f"sensors: {sensors_line(status['sensors'])}", markup=False)
    if status["recovery"]:
        console.print(f"recovery: {recovery_line(status['recovery'], status['step_s'])}", markup=False)
    for sink in status["sinks"]:
        colour = "red" if sink["fault"] or not sink["nodes"] else ""
        console.print(Text.assemble((f"sink {sink['sink']}", colour), f": {sink_line(sink)}"))


def _slot_row(item: Mapping[str, Any]) -> dict[str, Text]:
    owner, secondary = (Text(item[role] or "none", "" if item[role] else "red") for role in ("owner", "secondary"))
    numbers = {"slot": item["slot"], "epoch": item["epoch"], "offset": item["position"], "lag": item["lag"]}
    numbers |= {"step": item["step"], "behind": item["secondary_lag"], "B": item["batch_size"] or "inf"}
    numbers |= {"Spark": item["spark_lag"]}
    return {name: Text(str(value)) for name, value in numbers.items()} | {"owner": owner, "secondary": secondary}


def _node_row(item: Mapping[str, Any], alive: bool | None) -> dict[str, Text]:  # noqa: FBT001 - None = no pid file here
    host = f"{item['host']} " if item["host"] and alive is None else ""
    process = Text(f"{host}pid {item['pid']}") + Text(" dead" if alive is False else "", "red")
    heartbeat = "has left" if item["leaving"] else f"{item['age_s']:.1f} s ago"
    roles = sorted({*item["slots"].values()})
    held = (", ".join(slot for slot, role in item["slots"].items() if role == wanted) for wanted in roles)
    slots = "; ".join(f"{role} {numbers}" for role, numbers in zip(roles, held, strict=True))
    plain = {"node": item["node"], "role": item["role"], "heartbeat": heartbeat, "slots": slots}
    plain["metrics"] = str(item["metrics_port"] or "")
    return {name: Text(value) for name, value in plain.items()} | {"process": process}


def _print_tables(layout: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Text]], console: Console) -> None:
    """Print rows as one table, or as several where the console is too narrow for one.

    Args:
        layout: title -> headings of each of the several tables; the first table's title is that of the one.
    """
    title, every = next(iter(layout)), list(dict.fromkeys(itertools.chain(*layout.values())))
    widths = {heading: max([len(heading), *(row[heading].cell_len for row in rows)]) for heading in every}
    widths["slots"] = min(widths.get("slots", 0), _LIST_WIDTH)
    fits = sum(widths[heading] + 1 for heading in every) < console.width
    for part, headings in ({title: every} if fits else layout).items():
        table = Table(title=part, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        for heading in headings:
            side: Literal["left", "right"] = "left" if heading in _LEFT else "right"
            table.add_column(heading, justify=side, overflow="fold", no_wrap=fits and heading != "slots")
        for row in rows:
            table.add_row(*(row[heading] for heading in headings))
        console.print(table)
