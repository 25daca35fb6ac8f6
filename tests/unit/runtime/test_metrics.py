from __future__ import annotations

from pathlib import Path

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from tsunagi.runtime import metrics

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"


def declared() -> list[MetricWrapperBase]:
    return [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


def test_document_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == metrics.document(), "run `make docs`"


def test_every_metric_is_documented_once() -> None:
    listed = [metric for section in metrics.SECTIONS.values() for metric in section]
    assert len(listed) == len(set(map(id, listed)))
    assert set(map(id, listed)) == set(map(id, declared()))


def test_names_carry_system_and_unit() -> None:
    for metric in declared():
        family = next(iter(metric.describe()))
        assert family.name.startswith("tsunagi_")
        assert family.documentation.endswith(".")
        assert not family.name.endswith(("_s", "_ms", "_us"))


def test_metrics_are_exposed_with_their_labels() -> None:
    metrics.ROLE.labels("97").state("standby")
    metrics.TAKEOVER_S.labels("97", "detect").observe(0.4)
    metrics.LATE.labels("97", "closed").inc(2)
    text = generate_latest(REGISTRY).decode()
    assert 'tsunagi_slot_role{slot="97",tsunagi_slot_role="standby"} 1.0' in text
    assert 'tsunagi_takeover_seconds_bucket{le="0.5",phase="detect",slot="97"} 1.0' in text
    assert 'tsunagi_late_total{reason="closed",slot="97"} 2.0' in text
