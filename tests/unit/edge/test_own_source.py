"""A source of one's own: how an edge calls it, what it resumes, and the laws that the test kit checks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import structlog
from pydantic import ValidationError

from tsunagi import SourceMessage, SourceReader, testing
from tsunagi.edge.inbox import Begun, CaughtUp, Inbox, Item, Message
from tsunagi.edge.own_feed import OwnFeed
from tsunagi.edge.source import LiveProgress, Offsets, SourceError
from tsunagi.runtime.settings import SourceSettings

HERE = __name__


def message(number: int, sensor: str = "s0") -> bytes:
    return json.dumps({"sensor": sensor, "time": 1_700_000_000 + number, "value": number}).encode()


class Archive(SourceReader):
    """A table whose rows have numbers: 10, 12, 14 ..."""

    resumable: ClassVar[bool] = True
    rows: ClassVar[dict[int, bytes]] = {10 + 2 * number: message(number) for number in range(20)}

    def __init__(self, *, at_once: int = 3, end: bool = True) -> None:
        self.at_once, self.end = at_once, end
        self.waiting: list[int] = []
        self.opened = 0

    def open(self, position: int | None) -> None:
        self.opened += 1
        self.waiting = [row for row in self.rows if position is None or row >= position]

    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        some, self.waiting = self.waiting[: self.at_once], self.waiting[self.at_once :]
        if not some and not self.end:
            time.sleep(0.01)
        return [SourceMessage(self.rows[row], row) for row in some] if some or not self.end else None


class Radio(SourceReader):
    """It has no positions, and ends after two messages."""

    def __init__(self) -> None:
        self.left = 2

    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        self.left -= 1
        return [SourceMessage(message(self.left), topic="plant/x")] if self.left >= 0 else None


class Away(Archive):
    """The first two times nobody answers, and the connection breaks once."""

    def open(self, position: int | None) -> None:
        super().open(position)
        if self.opened < 3:
            raise ConnectionRefusedError("nobody there")

    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        if self.opened == 3 and len(self.waiting) < 15:
            raise TimeoutError("too slow")
        return super().read(timeout_s)


class Broken(Archive):
    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        raise KeyError("nothing")


class Forgetful(Archive):
    """It begins anew whatever it is told."""

    def open(self, position: int | None) -> None:
        super().open(None)


class Backwards(Archive):
    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        found = super().read(timeout_s)
        return found and found[::-1]


class Texts(Archive):
    def read(self, timeout_s: float) -> Any:
        return [SourceMessage("text", 1)]  # type: ignore[arg-type]


def run(name: str, resume: LiveProgress | None = None, **options: object) -> tuple[OwnFeed, list[Item]]:
    """Run a feed to its end; return what it has put into the inbox."""
    feed = OwnFeed(
        SourceSettings.model_validate({"kind": "own", "use": f"{HERE}:{name}", "options": options, "max_bytes": 1000}),
        structlog.stdlib.get_logger("test"),
    )
    inbox, items = Inbox(1000), list[Item]()
    feed.start(inbox, resume)
    try:
        while not feed.ended:
            items += inbox.take(1000)[0]
            time.sleep(0.001)
        items += inbox.take(1000)[0]
    finally:
        feed.close()
    return feed, items


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsunagi.edge.own_feed._PAUSE_S", 0.0)


def test_messages_come_with_their_positions() -> None:
    feed, items = run("Archive")
    assert (feed.scheme, feed.has_positions, feed.trouble) == (f"own/{HERE}:Archive", True, "")
    assert [(item.offset, item.payload, item.again) for item in items if isinstance(item, Message)] == [
        (row, payload, False) for row, payload in Archive.rows.items()
    ]
    assert len(items) == len(Archive.rows)


def test_a_restarted_edge_reads_again_what_open_windows_need() -> None:
    _, items = run("Archive", LiveProgress({0: Offsets(next=20, oldest=15)}, 1))
    assert items[0] == Begun({0: 20}, frozenset({0}))
    assert items[-1] == CaughtUp(0)
    found = [(item.offset, item.again) for item in items if isinstance(item, Message)]
    assert found == [(16, True), (18, True), *((row, False) for row in range(20, 50, 2))]


def test_a_source_without_positions_numbers_its_messages() -> None:
    feed, items = run("Radio", LiveProgress({}, 1))
    assert not feed.has_positions
    assert [(item.offset, item.topic) for item in items if isinstance(item, Message)] == [
        (0, "plant/x"),
        (1, "plant/x"),
    ]


def test_a_source_that_is_away_is_opened_again_where_it_was() -> None:
    _, items = run("Away")
    assert [item.offset for item in items if isinstance(item, Message)] == list(Archive.rows)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Broken", r"\[source\] use = '.*:Broken': KeyError: 'nothing'"),
        ("Backwards", r"\[source\] use = '.*:Backwards': read: found position 12, expected 15 or more"),
        (
            "Texts",
            r"\[source\] use = '.*:Texts': read: found SourceMessage\(payload='text'",
        ),
    ],
)
def test_what_a_source_must_not_do_ends_the_edge_with_a_line(name: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        run(name)


def test_a_long_message_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Archive, "rows", {1: b"x" * 1001})
    _, (item,) = run("Archive")
    assert isinstance(item, Message)
    assert item.fault == ("too-long", "found 1001 bytes, expected 1000 at most")


@pytest.mark.parametrize(
    ("use", "options", "error"),
    [
        ("nothing.here:A", {}, "No module named 'nothing', expected module:Class"),
        (f"{HERE}:Absent", {}, "has no attribute 'Absent', expected module:Class"),
        ("json:dumps", {}, "expected a class that extends tsunagi.SourceReader"),
        (f"{HERE}:Archive", {"odd": 1}, r"\[source.options\]: .*unexpected keyword argument 'odd'"),
        (f"{HERE}:SourceReader", {}, r"\[source.options\]: Can't instantiate abstract class"),
    ],
)
def test_a_class_that_cannot_be_made_says_why(use: str, options: dict[str, Any], error: str) -> None:
    settings = SourceSettings.model_validate({"kind": "own", "use": use, "options": options})
    with pytest.raises(SourceError, match=error):
        OwnFeed(settings, structlog.stdlib.get_logger("test"))


@pytest.mark.parametrize("source", [{"kind": "own"}, {"kind": "mqtt", "use": "a:B"}, {"use": "a:B"}])
def test_kind_and_use_go_together(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="expected kind = 'own' with use = 'module:Class'"):
        SourceSettings.model_validate(source)


@pytest.mark.parametrize("options", [{}, {"at_once": 1}, {"end": False}])
def test_the_kit_is_content_with_a_good_source(options: dict[str, Any]) -> None:
    testing.check_source(Archive, ["s0"], **options)
    testing.check_source(Archive, ["s0"], position=20, **options)
    testing.check_source(f"{HERE}:Radio", ["s0", "s1"])


def test_the_kit_reads_messages_as_the_settings_say() -> None:
    fields = [{"values": ["value"], "sensor": "boiler", "time": "time"}]
    testing.check_source(Archive, ["boiler"], settings={"fields": fields})


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda _: Forgetful, "not resumable: opened at position 30, it gives other messages than before"),
        (lambda _: Backwards, "positions do not ascend: message 1 has 12 after 14"),
        (lambda _: Texts, "read: found SourceMessage"),
        (lambda patch: patch({}), "it gives no messages: 10 calls of read returned none"),
        (lambda patch: patch({1: message(1, "s9")}), "message 0 cannot be used: unknown-sensor: found sensor 's9'"),
        (lambda patch: patch({1: b'{"sensor": "s0", "value": 1}'}), "message 0 cannot be used: no-time: "),
    ],
)
def test_the_kit_finds_what_breaks_a_law(
    change: Callable[[Callable[..., Any]], type[SourceReader]], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patch(rows: dict[int, bytes]) -> type[SourceReader]:
        monkeypatch.setattr(Archive, "rows", rows)
        return Archive

    with pytest.raises(testing.LawError, match=law):
        testing.check_source(change(patch), ["s0"])
