"""Writes report.json and report.html: the result of the run, for programs and for people."""

from __future__ import annotations

import html
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tsunagi.audit.check import Checked, check, in_flight
from tsunagi.audit.evidence import Collected
from tsunagi.audit.tally import number
from tsunagi.audit.truth import World
from tsunagi.demo import charts
from tsunagi.demo.figures import RowLatencies, finite, latency_figures, latency_rows, recovered_figures, takeovers
from tsunagi.demo.inputs import Inputs
from tsunagi.replay.slots import replay_slot
from tsunagi.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Judged:
    """A run that was checked, with its figures.

    Attributes:
        collected: the evidence of the run.
        world: what must have come out of it.
        checked: the findings.
        report: the content of report.json, except for what `write_report` adds.
        latency: the latencies of the rows.
    """

    collected: Collected
    world: World
    checked: Checked
    report: dict[str, Any]
    latency: RowLatencies


def judge(collected: Collected, world: World, settings: Settings) -> Judged:
    """Check the run, replay every slot, and compute the figures."""
    checked = check(collected, world)
    findings = checked.findings
    replays = {
        slot: replay_slot(records, collected.recovered.get(slot, ()), settings.recovery.store)
        for slot, records in collected.tuples.items()
    }
    latency = latency_rows(checked, world.truth, collected)
    differing = sum(result.differing for result in replays.values())
    report: dict[str, Any] = {
        "ok": findings.ok and differing == 0,
        "tuples_in": findings.tuples_in,
        "rows_out": findings.rows_out,
        "rows_outside": findings.rows_outside,
        "lost": findings.lost,
        "duplicates": findings.duplicated,
        "inversions": dict(findings.inversions),
        "takeovers": takeovers(checked, collected, world.steps.slide_us),
        "recovered": recovered_figures(checked.delivery, world, settings.recovery.delta),
        "latency_s": latency_figures(latency.seconds),
        "latency_outside_takeovers_s": latency_figures(latency.seconds[latency.quiet]),
        "wall_s": None,
        "wrong": dict(findings.wrong),
        "problems": findings.problems,
        "repeats_dropped": findings.repeats,
        "late": findings.late,
        "slow": findings.slow,
        "dead_letters": findings.dead,
        "not_sent": findings.not_sent,
        "kills": [asdict(kill) | {"in_flight": in_flight(kill, world.steps.slide_us)} for kill in collected.kills],
        "outages": [asdict(outage) for outage in collected.outages],
        "replay": {
            str(slot): {
                "compared": item.compared,
                "differing": item.differing,
                "largest_sd": item.largest_sd,
                "first": item.differences,
            }
            for slot, item in replays.items()
        },
        "steps": len(world.truth.values),
        "sensors": len(world.table),
    }
    return Judged(collected, world, checked, report, latency)


def write_report(judged: Judged, out: Path, *, wall_s: float, inputs: Inputs) -> dict[str, Any]:
    """Write report.json and report.html, and return the content of report.json."""
    report = judged.report | {
        "wall_s": round(wall_s, 1),
        "data": inputs.history.name,
        "rows": inputs.rows,
        "interval_s": inputs.interval_s,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
    }
    report = dict(finite(report))
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (out / "report.html").write_text(page(judged, report), encoding="utf-8")
    return report


def summary(report: Mapping[str, Any]) -> str:
    """Return the figures as lines for the terminal."""
    latency, quiet = report["latency_s"], report["latency_outside_takeovers_s"]
    recovered, replays = report["recovered"], report["replay"].values()
    bounds = f"bounds hold for {number(recovered['coverage'], '.1%')} (promised {recovered['delta']:.0%})"
    rows = [
        ("tuples in", report["tuples_in"], ""),
        ("rows out", report["rows_out"], f"{report['repeats_dropped']} repeated records dropped by name"),
        ("lost", report["lost"], ""),
        ("duplicates", report["duplicates"], ""),
        ("out of order", sum(report["inversions"].values()), f"in {len(report['inversions'])} groups"),
        ("late", report["late"], f"slow: {report['slow']}, dead letters: {report['dead_letters']}"),
        ("never sent", sum(int(item["tuples"]) for item in report["not_sent"]), "the edge was dead"),
        ("recovered", recovered["values"], f"NRMSE {number(recovered['nrmse'])}, {bounds}"),
        ("replayed", sum(item["compared"] for item in replays), f"{sum(i['differing'] for i in replays)} differ"),
    ]
    lines = ["PASSED: every row accounted for" if report["ok"] else "FAILED"]
    lines += [f"  {name:<14}{value:>9,}   {remark}".rstrip() for name, value, remark in rows]
    lines.append(f"  latency       {_quantiles(latency)}; outside the takeovers {_quantiles(quiet)}")
    lines += [f"  takeover      {_takeover(item)}" for item in report["takeovers"]]
    lines += [f"  ! wrong: {count} x {kind}" for kind, count in report["wrong"].items() if count]
    lines += [f"  ! {problem}" for problem in report["problems"][:10]]
    lines += [f"  ! replay: {line}" for item in replays for line in item["first"][:3]]
    lines.append(f"  {report['wall_s']} s in all")
    return "\n".join(lines)


def _quantiles(latency: Mapping[str, Any]) -> str:
    return f"p50 {number(latency['p50'])} s, p99 {number(latency['p99'])} s"


def _takeover(item: Mapping[str, Any]) -> str:
    times = ("detect_s", "detected in"), ("promote_s", "promoted in"), ("catch_up_s", "caught up in")
    parts = ", ".join(f"{word} {number(item[key])} s" for key, word in times)
    why = item["reason"] or item["cause"]
    who = f"slot {item['slot']}: {item['from']} -> {item['to']} (epoch {item['epoch']}, {why})"
    return f"{who}: silent for {number(item['silence_s'])} s; {parts}"


def page(judged: Judged, report: Mapping[str, Any]) -> str:
    """Return report.html, which needs no other files."""
    collected, world, late = judged.collected, judged.world, judged.latency
    truth, slide_us = world.truth, world.steps.slide_us
    # The stream's origin: its first whole window ends a window after it.
    origin_us = truth.first_step * slide_us - world.steps.window_us
    figures = [
        ("Recovered sensors beside the truth", charts.recovered_chart(judged.checked, world, origin_us)),
        (
            "Output across the takeovers",
            charts.rate_chart(judged.checked, world, origin_us, collected.kills, collected.outages),
        ),
        (
            "Latency of ordered results",
            charts.latency_chart(late.at_s - origin_us / 1e6, late.seconds, origin_us, collected.kills),
        ),
    ]
    sections = [f"<h2>{html.escape(title)}</h2>{charts.svg(figure)}" for title, figure in figures if figure is not None]
    verdict = "passed" if report["ok"] else "failed"
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Tsunagi demo</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#222}"
        "pre{background:#f6f6f4;padding:1em;overflow:auto}svg{max-width:100%;height:auto}"
        ".passed{color:#15803d}.failed{color:#b91c1c}</style>"
        f"<h1>Tsunagi demo: <span class='{verdict}'>{verdict}</span></h1>"
        f"<p>{report['sensors']} sensors, {report['steps']} steps of {slide_us / 1e6:g} s, "
        f"{len(collected.kills)} processes killed.</p>"
        f"<pre>{html.escape(summary(report))}</pre>"
        + "".join(sections)
        + f"<h2>report.json</h2><pre>{html.escape(json.dumps(report, indent=2))}</pre></html>\n"
    )
