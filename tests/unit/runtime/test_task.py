"""A computation beside the loop."""

from __future__ import annotations

import threading

import pytest

from tsunagi.runtime.task import Task

WAIT_S = 10.0


def test_the_result_is_there_when_it_is_done() -> None:
    may = threading.Event()
    task = Task(lambda: may.wait(WAIT_S), "waits")
    assert not task.done.is_set()
    may.set()
    assert task.done.wait(WAIT_S)
    assert task.result() is True


def test_what_takes_no_time_is_done_at_once() -> None:
    here = Task(threading.current_thread, "thread", at_once=True)
    assert here.done.is_set()
    assert here.result() is threading.current_thread()


@pytest.mark.parametrize("at_once", [False, True])
def test_what_it_raised_is_raised_where_the_result_is_asked_for(*, at_once: bool) -> None:
    task: Task[float] = Task(lambda: 1 / 0, "fails", at_once=at_once)
    assert task.done.wait(WAIT_S)
    with pytest.raises(ZeroDivisionError):
        task.result()
