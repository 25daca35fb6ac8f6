"""Line protocol as another program reads it, and what follows from InfluxDB's answers."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from line_protocol_parser import parse_line

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import RefusedError, SinkAwayError, SinkError
from tsunagi.sink.feed import READING_SCHEMA
from tsunagi.sink.influxdb import InfluxSink, _points, _truths
from tsunagi.sink.rows import Schema, SinkBatch, SinkColumn, SinkRows

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
NOON_US = 1_714_996_800_000_000
LETTERS = " ,=\"\\\n\rab1#ü'\t\x0b\x85\u2028\U0001f321"
ODD = st.text(LETTERS, min_size=1, max_size=8)
READING = (NOON, "s 1", "g,1", "", 1.5, 0.25, math.nan, "bounded", 60, 0, None, 7)


def name_left(text: str) -> str:
    """Return what is left of a column's name in line protocol."""
    return text.replace("\n", " ").replace("\r", " ").replace("\\", "_")


def tag_left(text: str) -> str:
    """Return what is left of a tag in line protocol."""
    text = text.replace("\n", " ").replace("\r", " ")
    return f"{text} " if text.endswith("\\") else text


@settings(max_examples=30)
@given(name=ODD, tag=ODD, field=ODD, text=st.text(LETTERS, max_size=8))
def test_odd_names_and_texts_come_back_from_a_line(name: str, tag: str, field: str, text: str) -> None:
    columns = (
        SinkColumn("result_time", Kind.TIMESTAMP),
        SinkColumn(f"t{name}", Kind.TEXT),
        SinkColumn(f"f{field}", Kind.DOUBLE),
        SinkColumn("quality", Kind.TEXT),
    )
    (line,) = _points(Schema("alarms.1-x", columns, ()), [(NOON, tag, 0.1, text)])
    assert parse_line(line) == {
        "measurement": "alarms.1-x",
        "tags": {name_left(f"t{name}"): tag_left(tag)},
        "fields": {name_left(f"f{field}"): 0.1, "quality": text},
        "time": NOON_US,
    }


def test_a_reading_and_its_truth_are_one_point() -> None:
    (estimate,) = map(parse_line, _points(READING_SCHEMA, [READING]))
    assert estimate == {
        "measurement": "readings",
        "tags": {"sensor": "s 1", "sensor_group": "g,1"},
        "fields": {"value": 1.5, "sd": 0.25, "quality": "bounded", "q1": 60, "q2": 0, "step": 7},
        "time": NOON_US,
    }
    late = (*READING[:4], 2.5, 0.0, 0.0, "corrected", None, None, None, 7)
    (truth,) = map(parse_line, _truths(READING_SCHEMA, [late]))
    assert truth == estimate | {"fields": {"truth": 2.5}}


def test_fields_of_each_kind_and_a_column_time() -> None:
    names = {
        "at": Kind.TIMESTAMP,
        "time": Kind.BIGINT,
        "on": Kind.BOOLEAN,
        "mean": Kind.DOUBLE,
        "since": Kind.TIMESTAMP,
    }
    schema = Schema("q", tuple(SinkColumn(*item) for item in names.items()), ("at",))
    before = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    rows = [(before, -3, True, 1e300, NOON + timedelta(microseconds=1)), (NOON, *[None] * 4), (NOON, *[math.inf] * 4)]
    (line,) = _points(schema, rows)
    assert line == f"q time_=-3i,on=true,mean=1e+300,since={NOON_US + 1}i -1"


class Server:
    """Answers requests as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status = 204
        self.requests: list[httpx2.Request] = []
        monkeypatch.setattr(httpx2, "Client", partial(httpx2.Client, transport=httpx2.MockTransport(self.answer)))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(self.status, text='{"error":\n "words"}')


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def make(**influxdb: Any) -> InfluxSink:
    return InfluxSink(SinkSettings.model_validate({"name": "out", "kind": "influxdb", "influxdb": influxdb}))


BATCH = SinkBatch((SinkRows(READING_SCHEMA, [READING]),))


def test_the_first_release_gets_a_database(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("two\u00a0words\n", encoding="utf-8")
    sink = make(url="http://influx/below/", database='a"b', user="plant", secret_file=str(tmp_path / "secret"))
    sink.open()
    sink.write(BATCH)
    sink.close()
    made, written = server.requests
    assert (made.url.path, made.url.params["q"]) == ("/below/query", 'CREATE DATABASE "a\\"b"')
    assert (written.url.path, dict(written.url.params)) == ("/below/write", {"db": 'a"b', "precision": "u"})
    assert written.headers["Authorization"].startswith("Basic ")


def test_later_releases_get_a_token_and_no_bucket(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc==\n", encoding="utf-8")
    sink = make(url="http://influx", org="plant 1", secret_file=str(tmp_path / "secret"))
    sink.open()
    sink.write(BATCH)
    sink.close()
    (written,) = server.requests
    assert written.url.path == "/api/v2/write"
    assert dict(written.url.params) == {"org": "plant 1", "bucket": "tsunagi", "precision": "us"}
    assert written.headers["Authorization"] == "Token abc=="


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, RefusedError), (413, RefusedError), (422, RefusedError)]
    + [(status, SinkAwayError) for status in (301, 401, 403, 404, 429, 500, 503)],
)
def test_what_answers_mean(server: Server, status: int, error: type[Exception]) -> None:
    sink = make()
    sink.open()
    server.status = status
    with pytest.raises(error, match=rf'{status} {{"error": "words"}}'):
        sink.write(BATCH)
    sink.close()


def test_a_user_who_may_make_no_database_may_write(server: Server) -> None:
    sink = make()
    server.status = 403
    sink.open()
    server.status = 204
    sink.write(BATCH)
    sink.close()


def test_a_token_of_two_lines_and_an_url_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc\ndef\n", encoding="utf-8")
    with pytest.raises(SinkError, match=r"secret_file: found no token") as caught:
        make(org="plant", secret_file=str(tmp_path / "secret"))
    assert "abc" not in str(caught.value)
    with pytest.raises(SinkError, match=r"\[sinks\.influxdb\] url: http://host:port"):
        make(url="http://host:port")
