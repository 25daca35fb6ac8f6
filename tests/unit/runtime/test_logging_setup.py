from __future__ import annotations

import io
import json
import logging
import warnings
from typing import Any

from tsunagi.runtime import logging_setup


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_line_is_json_with_service_and_bound_fields() -> None:
    stream = io.StringIO()
    log = logging_setup.configure("gateway", stream=stream, node="gw-1")
    log.info("slot owned", slot=3, epoch=2)
    log.bind(slot=4).warning("late")
    first, second = lines(stream)
    assert first.pop("time").endswith("Z")
    assert first == {
        "event": "slot owned",
        "level": "info",
        "service": "gateway",
        "node": "gw-1",
        "slot": 3,
        "epoch": 2,
    }
    assert (second["slot"], second["level"], second["node"]) == (4, "warning", "gw-1")


def test_bound_field_gives_way_to_the_line_s_own() -> None:
    stream = io.StringIO()
    logging_setup.configure("scaler", stream=stream, node="sc-1").info("seen", node="gw-2")
    assert lines(stream)[0]["node"] == "gw-2"


def test_libraries_and_warnings_come_out_alike() -> None:
    stream = io.StringIO()
    logging_setup.configure("edge", stream=stream, edge="north")
    logging.getLogger("some.library").error("lost %d", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    library, warning = lines(stream)
    assert (library["event"], library["level"], library["edge"]) == ("lost 3", "error", "north")
    assert "DeprecationWarning: old" in warning["event"]


def test_level_is_kept_and_configuring_again_doubles_nothing() -> None:
    stream = io.StringIO()
    logging_setup.configure("edge", stream=stream)
    log = logging_setup.configure("edge", stream=stream, level="warning")
    log.info("left out")
    log.warning("written")
    assert [line["event"] for line in lines(stream)] == ["written"]


def test_traceback_is_one_line_without_local_variables() -> None:
    stream = io.StringIO()
    log = logging_setup.configure("edge", stream=stream)
    password = "hunter2"
    try:
        int(password[:0])
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert "hunter2" not in stream.getvalue()


def test_terminal_gets_text() -> None:
    stream = Terminal()
    logging_setup.configure("edge", stream=stream).info("hello", slot=1)
    assert "hello" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
