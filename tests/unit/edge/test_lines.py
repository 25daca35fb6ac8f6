"""Lines cut from a stream, and standard input as a source."""

from __future__ import annotations

import os
import time

import pytest
import structlog

from tsunagi.edge.inbox import Inbox, Message
from tsunagi.edge.lines import LineBuffer, StandardInput, _listen
from tsunagi.edge.source import SourceError
from tsunagi.runtime.settings import SourceSettings

LOGGER = structlog.stdlib.get_logger("test")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_are_cut(step):
    data = b"one\r\n\n  \ntwo\nthree"
    buffer = LineBuffer(10)
    found: list[tuple[bytes, int]] = []
    for start in range(0, len(data), step):
        found += buffer.feed(data[start : start + step])
    assert [line for line, _ in found] == [b"one", b"two"]
    assert [line for line, _ in buffer.end()] == [b"three"]
    assert list(buffer.end()) == []


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_of_a_line_that_is_too_long_the_beginning_and_the_length_are_kept(step):
    data = b"a" * 500 + b"\nb\n"
    buffer = LineBuffer(10)
    found: list[tuple[bytes, int]] = []
    for start in range(0, len(data), step):
        found += buffer.feed(data[start : start + step])
        assert len(buffer._rest) <= 11
    assert found == [(b"a" * 11, 500), (b"b", 1)]


def read(data: bytes, **settings: int) -> list[Message]:
    reading, writing = os.pipe()
    inbox = Inbox(100)
    feed = StandardInput(SourceSettings(kind="lines", **settings), LOGGER, reading)
    feed.start(inbox, None)
    os.write(writing, data)
    os.close(writing)
    while not feed.ended:
        time.sleep(0.001)
    feed.close()
    os.close(reading)
    found, everything = inbox.take(100)
    assert everything
    return [item for item in found if isinstance(item, Message)]


def test_standard_input_is_read_to_its_end():
    found = read(b'{"sensor": "s0"}\n\nlast without an end')
    assert [(item.payload, item.offset) for item in found] == [(b'{"sensor": "s0"}', 0), (b"last without an end", 1)]
    assert all(item.fault is None and item.place == "standard input" for item in found)


def test_a_long_line_is_a_fault_and_the_next_one_is_not():
    found = read(b"x" * 100 + b"\n" + b"y" * 64 + b"\n", max_bytes=64)
    assert found[0].fault == ("too-long", "found a line of 100 bytes, expected 64 at most")
    assert found[1].fault is None


@pytest.mark.parametrize("address", ["", "7000", "host:", "host:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(SourceError, match=r"\[source.lines\] listen: found .*, expected host:port"):
        _listen(address)
