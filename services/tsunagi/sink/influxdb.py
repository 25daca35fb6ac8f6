"""Points in an InfluxDB, in line protocol over HTTP, which every release since the first takes.

A point that is written again under its time and tags is the same point. A late truth is a field of its own, `truth`, so
that it does not matter whether it is written before or after the estimate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import httpx2

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.runtime.times import microseconds_of
from tsunagi.sink.base import RefusedError, Sink, SinkAwayError, SinkError, sink_secret
from tsunagi.sink.rows import Schema, SinkBatch

TRUTH = "truth"
"""The field of a reading that came too late for its step, beside the estimate in `value`."""
_FIELDS = frozenset({"quality", "result_quality"})
"""Columns of texts that are fields. The others are tags, by which InfluxDB groups; a tag of a point never changes."""
_TIME_COLUMN = "time_"
"""What a query's own column `time` is called: InfluxDB drops a field of that name without a word."""
_TIMEOUT_S = 30.0
"""Longest wait for an answer, in seconds."""
_WORDS = 300
"""Most characters of an answer that are shown."""
_ESCAPES = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\ ", "\r": "\\ "})
"""Characters of names and tags as line protocol has them. It cannot hold the end of a line, which becomes a space."""


class InfluxSink(Sink):
    """Writes a point for each row: the query is the measurement, texts are tags, all else is fields.

    Raises:
        SinkError: the settings cannot be used.
    """

    def __init__(self, wanted: SinkSettings) -> None:
        self._wanted = wanted.influxdb
        self._setting = f"[[sinks]] {wanted.name}: [sinks.influxdb] secret_file"
        self._client: httpx2.Client | None = None
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would say each request
        self._secret()
        try:
            httpx2.URL(self._wanted.url)
        except httpx2.InvalidURL as error:
            raise SinkError(f"[[sinks]] {wanted.name}: [sinks.influxdb] url: {self._wanted.url}: {error}") from None

    def open(self) -> None:
        wanted = self._wanted
        try:
            secret = self._secret()
        except SinkError as error:  # the file may be about to be written anew
            raise SinkAwayError(str(error)) from None
        headers = {"Authorization": f"Token {secret}"} if wanted.org and secret else {}
        user = (wanted.user, secret) if wanted.user and not wanted.org else None
        self._client = httpx2.Client(base_url=wanted.url, headers=headers, auth=user, timeout=_TIMEOUT_S)
        if not wanted.org:  # a bucket is made by hand, with its retention
            name = wanted.database.replace("\\", "\\\\").replace('"', '\\"')
            self._post("/query", {"q": f'CREATE DATABASE "{name}"'}, b"")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def write(self, batch: SinkBatch) -> None:
        lines = [
            line
            for part in batch.parts
            for line in (_truths(part.schema, part.rows) if part.correcting else _points(part.schema, part.rows))
        ]
        if not lines:
            return
        wanted = self._wanted
        if wanted.org:
            where, place = "/api/v2/write", {"org": wanted.org, "bucket": wanted.database, "precision": "us"}
        else:
            where, place = "/write", {"db": wanted.database, "precision": "u"}
        self._post(where, place, "\n".join(lines).encode())

    def _post(self, where: str, place: dict[str, str], content: bytes) -> None:
        """Send a request.

        Raises:
            RefusedError: InfluxDB takes some of the points never. It may have taken the others.
            SinkAwayError: InfluxDB takes nothing now.
        """
        if self._client is None:
            raise SinkAwayError(f"{self._wanted.url}: not open")
        try:
            answer = self._client.post(where, params=place, content=content)
        except httpx2.HTTPError as error:
            raise SinkAwayError(f"InfluxDB {self._wanted.url}: {str(error) or type(error).__name__}") from None
        words = f"{answer.status_code} {' '.join(answer.text[:_WORDS].split())}"
        if where == "/query" and answer.status_code in (400, 403):
            return  # only an administrator may make a database: if there is none, the first write says so
        if answer.status_code in (400, 413, 422):
            raise RefusedError(words)
        if not answer.is_success:
            raise SinkAwayError(f"InfluxDB {self._wanted.url}: {words}")

    def _secret(self) -> str:
        secret = sink_secret(self._wanted.secret_file, self._setting)
        if self._wanted.org and not (secret.isascii() and (secret.isprintable() or not secret)):
            raise SinkError(f"{self._setting}: found no token, expected one line of ASCII characters")
        return secret


def _points(schema: Schema, rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the point of each row that has a field."""
    tags, fields = _sorts(schema)
    for row in rows:
        values = [f"{name}={text}" for name, place in fields if (text := _field(row[place])) is not None]
        if values:
            yield f"{_series(schema, row, tags)} {','.join(values)} {microseconds_of(row[0])}"


def _truths(schema: Schema, rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the point of each truth: that of its estimate, with the one field more."""
    tags, _ = _sorts(schema)
    value = schema.place("value")
    for row in rows:
        if (text := _field(row[value])) is not None:
            yield f"{_series(schema, row, tags)} {TRUTH}={text} {microseconds_of(row[0])}"


def _sorts(schema: Schema) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return (name, place) of the columns that are tags, and of those that are fields; the first column is the time.

    The names are as line protocol has them. A field's name cannot have a backslash before an escaped character.
    """
    tags, fields = list[tuple[str, int]](), list[tuple[str, int]]()
    for place, (name, kind) in enumerate(schema.columns[1:], 1):
        is_tag = name in schema.key or (kind is Kind.TEXT and name not in _FIELDS)
        shown = _TIME_COLUMN if name == "time" else _escaped(name.replace("\\", "_"))
        (tags if is_tag else fields).append((shown, place))
    return tags, fields


def _series(schema: Schema, row: Sequence[Any], tags: Sequence[tuple[str, int]]) -> str:
    words = [_escaped(schema.query)]
    for name, place in tags:
        text = "" if row[place] is None else str(row[place])
        if text:  # InfluxDB has no empty tags
            words.append(f"{name}={_escaped(text)}")
    return ",".join(words)


def _field(value: object) -> str | None:
    """Return a value as a field; None = InfluxDB cannot hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}i"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, datetime):
        return f"{microseconds_of(value)}i"
    if value is None:
        return None
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _escaped(text: str) -> str:
    """Return a name or tag as line protocol has it. A last backslash, which would escape what follows, gets a space."""
    escaped = text.translate(_ESCAPES)
    return f"{escaped}\\ " if escaped.endswith("\\") else escaped
