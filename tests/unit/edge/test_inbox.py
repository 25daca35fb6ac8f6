"""The queue between a source's thread and the loop."""

from __future__ import annotations

import threading
import time

import pytest

from tsunagi.edge.inbox import Begun, CaughtUp, Inbox, Item, Message


def message(number: int, size: int = 1) -> Message:
    return Message(b"x" * size, "here", number, offset=number)


def test_items_come_out_in_order():
    inbox = Inbox(10)
    items: list[Item] = [message(0), Begun({0: 3}, frozenset()), CaughtUp(0), message(1)]
    for item in items:
        assert inbox.put(item)
    assert inbox.take(3) == (items[:3], False)
    assert inbox.take(3) == (items[3:], True)
    assert inbox.take(3) == ([], True)


def test_what_finds_no_room_is_counted():
    inbox = Inbox(2)
    assert [inbox.offer(message(number)) for number in range(4)] == [True, True, False, False]
    assert inbox.dropped == 2
    assert len(inbox) == 2


def test_bytes_are_bounded_too():
    inbox = Inbox(1000, max_bytes=3000)
    assert [inbox.offer(message(number, 1000)) for number in range(4)] == [True, True, True, False]
    inbox.take(1)
    assert inbox.offer(message(9, 1000))


def waiting(inbox: Inbox) -> None:
    while inbox._blocked == 0:
        time.sleep(0.001)


def test_putting_waits_for_room_and_says_that_it_waits():
    inbox = Inbox(1)
    inbox.put(message(0))
    thread = threading.Thread(target=inbox.put, args=(message(1),))
    thread.start()
    waiting(inbox)
    found, everything = inbox.take(5)
    assert [item.offset for item in found if isinstance(item, Message)] == [0]
    assert not everything  # somebody has more
    thread.join(10)
    assert inbox.take(5) == ([message(1)], True)


def test_closing_lets_go_who_waits():
    inbox = Inbox(1)
    inbox.put(message(0))
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(inbox.put(message(1))))
    thread.start()
    waiting(inbox)
    inbox.close()
    thread.join(10)
    assert results == [False]
    assert not inbox.put(message(2))
    assert not inbox.offer(message(3))


def test_what_ended_the_thread_is_heard_in_the_loop():
    def broken(_: Inbox) -> None:
        raise RuntimeError("the source broke")

    inbox = Inbox(10)
    assert inbox.put(message(0))
    inbox.guard(broken)
    with pytest.raises(RuntimeError, match="the source broke"):
        inbox.take(5)
