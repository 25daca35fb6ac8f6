"""Rules, dashboards, metrics and documents agree.

What the rules say is tested by promtool (tests/integration/test_prometheus.py), dashboards on a running system
(tests/containers/test_dashboards.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from tsunagi.runtime import metrics

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules"
ALERTS = (RULES / "alerts.yml").read_text(encoding="utf-8")
RECORDING = (RULES / "recording.yml").read_text(encoding="utf-8")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "stateset": ("",)}
BOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
BLOCKS = re.split(r"(?m)^ *- alert: ", ALERTS)[1:]
NAMES = [block.split("\n", 1)[0] for block in BLOCKS]


def served() -> set[str]:
    """Every name that `/metrics` may show."""
    families = [
        next(iter(metric.describe())) for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)
    ]
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def test_every_metric_in_a_rule_is_declared() -> None:
    used = set(re.findall(r"(?<![:\w])tsunagi_\w+(?![:\w])", ALERTS + RECORDING))
    assert len(used) > 20
    assert used - served() == set()


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_every_metric_of_a_dashboard_is_declared_and_every_panel_has_a_place_and_a_source(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == f"tsunagi-{path.stem}"
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel["targets"])
    names = set(re.findall(r"(?<![:\w])tsunagi_\w+(?![:\w])", asked))
    assert len(names) > 5
    assert names - served() == set()
    assert set(re.findall(r"tsunagi:\w+:\w+", asked)) <= set(re.findall(r"(?m)^ *- record: (\S+)$", RECORDING))
    places = [tuple(panel["gridPos"][name] for name in "xywh") for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert all(x + w <= 24 for x, _, w, _ in places)
    sources = [part["datasource"]["uid"] for panel in board["panels"] for part in (panel, *panel["targets"])]
    assert set(sources) == {"tsunagi"}


def test_every_recorded_name_in_a_rule_is_recorded() -> None:
    recorded = set(re.findall(r"(?m)^ *- record: (\S+)$", RECORDING))
    used = set(re.findall(r"tsunagi:\w+:\w+", ALERTS + RECORDING))
    assert used == recorded


def test_every_alert_has_one_row_in_the_document() -> None:
    text = (ROOT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", text)
    severities = [re.findall(r"severity: (\w+)", block) for block in BLOCKS]
    assert rows == [(name, *severity) for name, severity in zip(NAMES, severities, strict=True)]


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_an_alert_says_what_where_and_what_to_look_at(block: str) -> None:
    assert block.split("\n", 1)[0].startswith("Tsunagi")
    assert re.search(r"(?m)^ *severity: |labels: {severity: (critical|warning)}", block)
    assert "summary: " in block
    description = block.partition("description: ")[2]
    assert re.search(r"[Ll]ook |Start spark|Get it", description)
    place = r"\$labels\.(slot|node|edge|topic|reason|instance)"
    assert re.search(place, block) or "of a group" in block


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_is_tested(name: str) -> None:
    tests = (RULES / "alerts_test.yml").read_text(encoding="utf-8")
    assert tests.count(f'alertname="{name}", alertstate="firing", severity=') >= 1


def test_no_metric_is_declared_that_nobody_sets() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("services", "spark", "deploy")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "metrics.py"
    )
    declared = {name for name, value in vars(metrics).items() if isinstance(value, MetricWrapperBase)}
    assert {name for name in declared if f"metrics.{name}" not in source} == set()


def test_labels_are_bounded() -> None:
    allowed = {"slot", "node", "role", "edge", "group", "reason", "topic", "state", "phase", "quality", "limit"}
    allowed |= {"core", "stage", "part", "type", "end", "kind", "class", "what", "query", "sink"}
    used = {
        label
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for label in metric._labelnames
    }
    assert used <= allowed
