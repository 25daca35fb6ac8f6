from __future__ import annotations

import pytest

from tsunagi.local.sinks import sink_line, sinks_of
from tsunagi.runtime.messages import Heartbeat, SinkBeat
from tsunagi.runtime.settings import Settings, SinkSettings

HISTORY = SinkSettings(name="history", kind="postgres")


def beat(sink: str, **more: object) -> Heartbeat:
    return Heartbeat(role="sink", sink=SinkBeat(sink=sink, **more))  # type: ignore[arg-type]


def test_instances_of_a_sink_are_one_sink_and_others_are_left_out() -> None:
    alive = {
        "sink-history": beat("history", lag=3, rows=10),
        "sink-history-2": beat("history", lag=4, rows=20, refused=1, fault="gone"),
        "gw-1": Heartbeat(role="worker"),
        "sink-old": beat("old"),
    }
    history, old = sinks_of(alive, Settings(sinks=(HISTORY,)))
    assert (history["nodes"], history["lag"], history["rows"]) == (["sink-history", "sink-history-2"], 7, 30)
    assert (history["refused"], history["fault"], history["kind"]) == (1, "gone", "postgres")
    assert (old["sink"], old["kind"]) == ("old", "")


@pytest.mark.parametrize(
    ("alive", "said"),
    [
        ({}, "readings to postgres; does not run (`tsunagi sink run --sink history`)"),
        ({"a": beat("history", rows=5)}, "readings to postgres; 5 rows written, 0 records behind"),
        (
            {"a": beat("history", rows=5, lag=2, refused=1), "b": beat("history", fault="PostgreSQL db: full")},
            (
                "readings to postgres; 5 rows written, 2 records behind; 1 rows were refused and stand in "
                "dead-letters; 2 instances; PostgreSQL db: full"
            ),
        ),
    ],
)
def test_a_sink_says_in_one_line_how_far_it_is(alive: dict[str, Heartbeat], said: str) -> None:
    (sink,) = sinks_of(alive, Settings(sinks=(HISTORY,)))
    assert sink_line(sink) == said


def test_a_sink_that_the_settings_do_not_have_says_so() -> None:
    (sink,) = sinks_of({"a": beat("old", rows=5)}, Settings())
    assert sink_line(sink) == "not in these settings; 5 rows written, 0 records behind"
