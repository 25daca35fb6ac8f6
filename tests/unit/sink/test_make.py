"""Settings of sinks: what is refused, and with which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tsunagi.runtime.settings import ConfigError, Settings
from tsunagi.runtime.settings import make as make_settings
from tsunagi.sink.base import SinkError
from tsunagi.sink.make import make_sink, sink_named

POSTGRES = {"name": "history", "kind": "postgres"}


def settings(*sinks: dict[str, Any]) -> Settings:
    return make_settings({"sinks": list(sinks)}, "tsunagi.toml")


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ([{"name": "a b", "kind": "postgres"}], "sinks.0.name"),
        ([{"name": "a", "kind": "oracle"}], "sinks.0.kind"),
        ([POSTGRES, POSTGRES], "found a name twice among history, history"),
        ([{"name": "a", "kind": "own"}], "expected kind = 'own' with use = 'module:Class'"),
        ([{"name": "a", "kind": "mqtt"}], "expected a query whose rows are worth a message each"),
        ([{"name": "a", "kind": "webhook", "query": "q"}], "found no url, expected where rows are posted to"),
        ([{"name": "a", "kind": "webhook", "query": "q", "webhook": {"url": "pager"}}], "sinks.0.webhook.url"),
        ([{"name": "a", "kind": "kafka"}], "found no topic, expected the name of one"),
        ([{"name": "a", "kind": "kafka", "kafka": {"topic": "t", "format": "avro"}}], "found no registry"),
        ([{"name": "a", "kind": "postgres", "postgres": {"password": "x"}}], "unknown key"),
    ],
)
def test_settings_that_cannot_be_used_are_named(sinks: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        settings(*sinks)


def test_a_sink_that_is_not_there_is_an_error_that_names_the_others() -> None:
    with pytest.raises(SinkError, match=r"sink 'x': no such sink; \[\[sinks\]\] has history"):
        sink_named(settings(POSTGRES), "x")
    with pytest.raises(SinkError, match="has none"):
        sink_named(settings(), "x")


@pytest.mark.parametrize(
    ("use", "options", "said"),
    [
        ("nowhere:Sink", {}, "No module named 'nowhere', expected module:Class"),
        ("math:pi", {}, "found 3.14"),
        ("tsunagi.sink.base:Sink", {}, "abstract"),
        ("tests.unit.sink.test_kit:Kept", {"colour": "red"}, "[sinks.options]"),
    ],
)
def test_a_sink_of_ones_own_that_cannot_be_made_is_named(use: str, options: dict[str, Any], said: str) -> None:
    own = settings({"name": "mine", "kind": "own", "use": use, "options": options})
    with pytest.raises(SinkError, match=re.escape(said)):
        make_sink(own, own.sinks[0])


@pytest.mark.parametrize(
    ("kind", "key", "more"),
    [
        ("postgres", "password_file", {}),
        ("influxdb", "secret_file", {}),
        ("mqtt", "password_file", {"query": "q"}),
        ("webhook", "header_file", {"query": "q"}),
    ],
)
def test_a_secret_that_cannot_be_read_is_named_by_its_setting(
    tmp_path: Path, kind: str, key: str, more: dict[str, Any]
) -> None:
    table = {"url": "http://pager"} if kind == "webhook" else {}
    for file, said in (
        (tmp_path / "none", "cannot be read: No such file"),
        (tmp_path / "empty", "found an empty file"),
    ):
        if file.name == "empty":
            file.write_text("\n")
        found = settings({"name": "a", "kind": kind, kind: table | {key: str(file)}} | more)
        with pytest.raises(SinkError, match=rf"\[\[sinks\]\] a: \[sinks.{kind}\] {key}: .*{said}"):
            make_sink(found, found.sinks[0])


def test_each_kind_is_made_without_a_target() -> None:
    tables: list[dict[str, Any]] = [
        POSTGRES,
        {"name": "b", "kind": "influxdb"},
        {"name": "c", "kind": "mqtt", "query": "q"},
        {"name": "d", "kind": "webhook", "query": "q", "webhook": {"url": "http://pager"}},
        {"name": "e", "kind": "kafka", "kafka": {"topic": "t"}},
        {"name": "f", "kind": "own", "use": "tests.unit.sink.test_kit:Kept"},
    ]
    found = settings(*tables)
    for sink in found.sinks:
        make_sink(found, sink).close()
