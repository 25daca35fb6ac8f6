"""Every panel of the shipped dashboards has something to show: its expressions are asked of the running Prometheus."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from typing import Any

from tests.containers.project import ROOT, ComposeProject, docker

BOARDS = ROOT / "deploy" / "grafana" / "dashboards"
PATIENCE_S = 120.0
VARIABLES = {"$__rate_interval": "1m", "$__range": "30m"}
"""What Grafana puts in the place of its variables, at the dashboards' first look."""


def expressions(name: str) -> dict[str, str]:
    """Return what each panel of a dashboard asks, by its title and the letter of the question."""
    board = json.loads((BOARDS / f"{name}.json").read_text(encoding="utf-8"))
    found = {f"{panel['title']} {one['refId']}": one["expr"] for panel in board["panels"] for one in panel["targets"]}
    for variable, value in VARIABLES.items():
        found = {title: asked.replace(variable, value) for title, asked in found.items()}
    return found


def ask(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """Return the series that an expression has now."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def wait_for_series(prometheus: str, name: str, *, but: str = "") -> None:
    """Wait until every expression of a dashboard has a series, but for those of one panel."""
    deadline = time.monotonic() + PATIENCE_S
    missing = {title: asked for title, asked in expressions(name).items() if not but or not title.startswith(but)}
    while missing:
        missing = {title: asked for title, asked in missing.items() if not ask(prometheus, asked)}
        assert not missing or time.monotonic() < deadline, f"{name}.json: no series: {missing}"
        time.sleep(1.0 if missing else 0.0)


def test_every_panel_has_series_when_a_worker_has_died(project: ComposeProject) -> None:
    project.tool("standby", "--max-recovery", "5", "--max-bandwidth", "1000000")
    owner = project.container(json.loads(project.tool("status", "--json"))["slots"][0]["owner"])
    docker("kill", owner)
    try:
        wait_for_series(project.prometheus, "fleet")
        wait_for_series(project.prometheus, "slots")
    finally:
        docker("start", owner)
        project.tool("standby")
