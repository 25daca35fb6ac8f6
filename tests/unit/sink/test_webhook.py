"""What follows from a receiver's answers, and the headers of requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tsunagi.query.values import Kind
from tsunagi.runtime.settings import SinkSettings
from tsunagi.sink.base import Refusal, SinkAwayError, SinkError
from tsunagi.sink.rows import Schema, SinkBatch, SinkColumn, SinkRows
from tsunagi.sink.webhook import NAME_HEADER, WebhookSink

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
SCHEMA = Schema("alarms", (SinkColumn("time", Kind.TIMESTAMP), SinkColumn("what", Kind.TEXT)), ("time", "what"))


def batch(*words: str) -> SinkBatch:
    return SinkBatch(tuple(SinkRows(SCHEMA, [(NOON, word)]) for word in words))


class Receiver:
    """Answers each row as `answers` says, or with 200, and keeps what it has answered so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, int] = {}
        self.taken: list[str] = []
        self.names: list[str] = []
        monkeypatch.setattr(httpx2, "Client", partial(httpx2.Client, transport=httpx2.MockTransport(self.answer)))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        word = json.loads(request.content)["row"]["what"]
        self.names.append(request.headers[NAME_HEADER])
        status = self.answers.get(word, 200)
        if status == 0:
            raise httpx2.ReadTimeout("")
        if status == 200:
            self.taken.append(word)
        return httpx2.Response(status, text="some\nwords")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    return Receiver(monkeypatch)


def make(url: str = "http://host/rows", header_file: Path | None = None) -> WebhookSink:
    webhook = {"url": url, "header_file": str(header_file or "")}
    return WebhookSink(
        SinkSettings.model_validate({"name": "out", "kind": "webhook", "query": "alarms", "webhook": webhook})
    )


@pytest.mark.parametrize("status", [0, 301, 401, 403, 404, 408, 429, 500, 503])
def test_a_row_is_sent_again_until_it_is_taken_and_those_before_it_are_not(receiver: Receiver, status: int) -> None:
    sink = make()
    sink.open()
    receiver.answers["b"] = status
    for _ in range(2):
        with pytest.raises(SinkAwayError, match=f"{status} .*: some words" if status else "ReadTimeout"):
            sink.write(batch("a", "b", "c"))
        sink.close()
        sink.open()
    receiver.answers.clear()
    assert not sink.write(batch("a", "b", "c"))
    assert receiver.taken == ["a", "b", "c"]
    sink.write(batch("a"))  # a later batch
    assert receiver.taken == ["a", "b", "c", "a"]
    sink.close()


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_row_that_is_refused_does_not_hold_up_others(receiver: Receiver, status: int) -> None:
    sink = make()
    sink.open()
    receiver.answers["b"] = status
    (refusal,) = sink.write(batch("a", "b", "c"))
    sink.close()
    assert receiver.taken == ["a", "c"]
    assert refusal == Refusal(1, 0, refusal.words)
    assert refusal.words.startswith(f"{status} ")
    assert refusal.words.endswith(": some words")


def test_the_name_of_a_row_is_a_header_whatever_its_key_has(receiver: Receiver) -> None:
    sink = make()
    sink.open()
    sink.write(batch("ü\n\\", "\\xfc"))
    sink.close()
    head = "alarms/2024-05-06T12:00:00+00:00/"
    assert receiver.names == [rf"{head}\xfc\n\\", rf"{head}\\xfc"]


@pytest.mark.parametrize("text", ["Bearer abc", ": abc", "A: abc\nB: def", "A: äbc", "A: abc\x7f"])
def test_a_file_that_has_no_header_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "header").write_text(text, encoding="utf-8")
    with pytest.raises(SinkError, match=r"header_file: found no header, expected NAME: VALUE") as caught:
        make(header_file=tmp_path / "header")
    assert "bc" not in str(caught.value)


def test_a_file_that_is_written_anew_costs_only_time(tmp_path: Path, receiver: Receiver) -> None:
    path = tmp_path / "header"
    path.write_text("A: abc", encoding="utf-8")
    sink = make(header_file=path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(SinkAwayError, match="found an empty file"):
        sink.open()
    path.write_text("A: def", encoding="utf-8")
    sink.open()
    sink.close()


def test_an_url_that_is_none_is_refused() -> None:
    with pytest.raises(SinkError, match=r"\[sinks\.webhook\] url: http://host:port"):
        make("http://host:port")
