"""`tsunagi wait` and a broker that does not answer everything yet."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from tsunagi.local import wait
from tsunagi.query.encoding import encode_rows
from tsunagi.query.relations import Rows
from tsunagi.query.values import Kind, column
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.log import RESULTS, TOPICS, LogError
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog

TIMED_OUT = "results/0: timed out"


class Results:
    """Stands for the reader of results; the first ones cannot be opened."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, *_: object, **__: object) -> Results:
        self.failures -= 1
        if self.failures >= 0:
            raise LogError(TIMED_OUT)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def poll(self, _timeout_s: float) -> list[Any]:
        empty = SimpleNamespace(step=6, group="a", rows=lambda _table: [])  # nobody had a value
        return [empty, SimpleNamespace(step=7, group="a", rows=lambda _table: [1, 2])]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "sensors.csv").write_text("sensor,edge,group,threshold\ns,e,a,\n")
    log = MemoryLog(ManualClock(time.time_ns() // 1000), dict.fromkeys(TOPICS, 1))
    monkeypatch.setattr(wait, "tool_log", lambda *_: log)
    monkeypatch.setattr(wait, "AGAIN_S", 0.01)
    return Settings(sensors=tmp_path / "sensors.csv")


def test_it_asks_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(wait, "open_results", Results(2))
    wait.wait_for_result(settings, 60.0, said.append)
    assert said[:2] == [f"asking again: {TIMED_OUT}"] * 2
    assert said[2].startswith("ordered results: step 7 of a, 2 rows")


def test_rows_of_a_query_are_results_too(settings: Settings) -> None:
    said: list[str] = []
    rows = Rows(np.array([5, 5]), {"n": column(Kind.BIGINT, [1, 2])})

    def answer() -> None:
        time.sleep(0.3)
        for block in encode_rows("q", rows, [], settings.steps.slide_us):
            wait.tool_log(settings, "").append(RESULTS, 0, block.key, block.value)  # type: ignore[attr-defined]

    asked = threading.Thread(target=answer)
    asked.start()
    wait.wait_for_result(settings, 60.0, said.append)
    asked.join()
    assert said[0].startswith("ordered results: step 5 of query q, 2 rows")


def test_but_not_for_ever(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "open_results", Results(1_000_000))
    with pytest.raises(LogError, match=TIMED_OUT):
        wait.wait_for_result(settings, 0.2, lambda _line: None)


def test_a_topic_that_is_not_there_is_said_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "tool_log", lambda *_: MemoryLog(ManualClock(0), {}))
    with pytest.raises(LogError, match="topic results: not there"):
        wait.wait_for_result(settings, 60.0, lambda _line: None)
