"""Rows of sinks from records of the log, compared with what the readers of results give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integration.sinks import BEGIN_STEP, moment, query_block
from tests.unit.runtime.test_results import a_block
from tsunagi.query.values import Kind
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import LATE, RECOVERED, RESULTS, Record
from tsunagi.runtime.messages import Late, Recovered, TupleBatch, Window
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import OperatorSettings, QuerySettings, ResultsSettings, Settings
from tsunagi.sink.base import SinkError
from tsunagi.sink.feed import CORRECTED, RowFeed, feeds_for
from tsunagi.sink.rows import SinkRows

TABLE = SensorTable(tuple(Sensor(number, f"s{number}", "edge", group="g", unit="K") for number in range(2)))


def feed(topic: str, of: str = "readings", **settings: object) -> RowFeed:
    _, feeds = feeds_for(of, Settings(**settings), lambda: TABLE)  # type: ignore[arg-type]
    return next(item for item in feeds if item.topic == topic)


def taken(found: RowFeed, value: bytes, key: bytes = b"") -> list[dict[str, object]]:
    part = found.rows(Record(found.topic, 0, 7, 0, key, value))
    return [] if part is None else [part.schema.as_mapping(row) for row in part.rows]


def test_readings_have_names_units_and_words_and_a_number_where_the_table_has_no_name() -> None:
    found = taken(feed(RESULTS), a_block("pump", 5).SerializeToString())
    assert [row["sensor"] for row in found] == ["s0", "s1", "2"]
    assert [row["unit"] for row in found] == ["K", "K", ""]
    assert [row["quality"] for row in found] == ["exact", "bounded", "unbounded"]
    assert found[1] == {
        "time": moment(10), "sensor": "s1", "sensor_group": "pump", "unit": "K", "value": 6.0, "sd": 0.0, "bound": 0.25,
        "quality": "bounded", "q1": 5, "q2": 1, "q3": 0.2, "step": 5,
    }  # fmt: skip


def test_a_block_that_comes_again_gives_no_rows_and_one_of_another_query_none_either() -> None:
    found = feed(RESULTS)
    blocks = [a_block("pump", step).SerializeToString() for step in (5, 6, 5, 6, 7)]
    assert [len(taken(found, block)) for block in blocks] == [3, 3, 0, 0, 3]
    assert found.repeats == 2
    assert not taken(feed(RESULTS, "other"), blocks[0])


def test_a_window_aggregate_has_its_own_columns() -> None:
    block = a_block("pump", 5)
    block.query = "minutes"
    five = [pack_floats(np.arange(3.0) + number) for number in range(5)]
    block.window.CopyFrom(
        Window(length_us=9, sum=five[0], minimum=five[1], maximum=five[2], sum_sd=five[3], extreme_sd=five[4])
    )
    first, *_ = taken(feed(RESULTS, "minutes"), block.SerializeToString())
    assert (first["n"], first["filled"], first["mean"], first["sum"], first["maximum"]) == (4, 0, 5.0, 0.0, 2.0)


def test_rows_of_a_query_have_its_columns_with_types_and_a_name() -> None:
    block = query_block(
        "alarms",
        BEGIN_STEP,
        [
            ("sensor", "TEXT", ["a", "b", "a"]),
            ("high", "BOOLEAN", [1, 0, 1]),
            ("at", "TIMESTAMP", [0, 1_000_000, 2]),
            ("n", "BIGINT", [1, 2, 3]),
        ],
        group="x",
        run=4,
    )
    found = feed(RESULTS, "alarms").rows(Record(RESULTS, 0, 0, 0, b"", block.SerializeToString()))
    assert isinstance(found, SinkRows)
    kinds = {column.name: column.kind for column in found.schema.columns}
    assert (kinds["sensor"], kinds["high"], kinds["at"], kinds["n"]) == (
        Kind.TEXT,
        Kind.BOOLEAN,
        Kind.TIMESTAMP,
        Kind.BIGINT,
    )
    rows = [found.schema.as_mapping(row) for row in found.rows]
    assert [(row["sensor"], row["high"], row["at"], row["n"]) for row in rows] == [
        ("a", True, moment(0), 1), ("b", False, moment(1), 2), ("a", True, moment(0).replace(microsecond=2), 3),
    ]  # fmt: skip
    names = {found.schema.name_of(row) for row in found.rows}
    assert len(names) == 3
    assert found.schema.name_of(found.rows[1]) == f"alarms/{moment(BEGIN_STEP).isoformat()}/4/x/1"


def test_a_query_with_a_column_that_the_sink_needs_is_an_error() -> None:
    block = query_block("alarms", BEGIN_STEP, [("result_time", "DOUBLE", [1.0])])
    with pytest.raises(SinkError, match="query alarms: found a column 'result_time'"):
        taken(feed(RESULTS, "alarms"), block.SerializeToString())


def late(reason: str) -> bytes:
    batch = TupleBatch(edge="e", step=6, sensor=pack_sensors([1]), value=pack_floats([8.5]), count=pack_sensors([1]))
    return Late(version=1, reason=reason, batch=batch).SerializeToString()


def test_a_late_batch_is_the_truth_of_what_was_estimated_and_other_batches_are_not() -> None:
    settings = Settings()
    found = feed(LATE).rows(Record(LATE, 0, 0, 0, b"", late("closed")))
    assert found is not None
    assert found.correcting
    (row,) = [found.schema.as_mapping(row) for row in found.rows]
    assert (row["sensor"], row["value"], row["quality"], row["bound"]) == ("s1", 8.5, CORRECTED, 0.0)
    assert row["time"] == moment(0).fromtimestamp(6 * settings.slide_us / 1e6, moment(0).tzinfo)
    for reason in ("replaced", "duplicate"):
        assert not taken(feed(LATE), late(reason))


def test_where_operators_change_values_a_late_reading_is_no_truth() -> None:
    query = QuerySettings(operators=(OperatorSettings(use="recover"), OperatorSettings(use="own:Scale")))
    assert not taken(feed(LATE, query=query), late("closed"))


def recovered(offset: int = 0) -> Recovered:
    return Recovered(
        version=1,
        offset=offset,
        step=6,
        event_time_us=6_000_000,
        sensor=pack_sensors([1]),
        mean=pack_floats([1.5]),
        sd=pack_floats([0.0]),
        quality=pack_octets([0]),
        bound=pack_floats([0.0]),
    )


def test_rows_of_a_slot_that_was_left_behind_are_rows() -> None:
    value = Late(version=1, reason="frontier", recovered=recovered()).SerializeToString()
    part = feed(LATE).rows(Record(LATE, 0, 0, 0, b"", value))
    assert part is not None
    assert not part.correcting
    assert [part.schema.as_mapping(row)["value"] for row in part.rows] == [1.5]


def test_without_steps_rows_come_from_recovered_and_are_named_by_their_outputs() -> None:
    found = feed(RECOVERED, query=QuerySettings(mode="tuples"))
    first = taken(found, recovered(offset=3).SerializeToString(), pack_key(9, 1, Name(3, 0)))
    assert [(row["sensor"], row["value"], row["result_offset"], row["result_generation"]) for row in first] == [
        ("s1", 1.5, 3, 9)
    ]
    assert not taken(found, recovered(offset=3).SerializeToString(), pack_key(9, 1, Name(3, 0)))
    assert found.repeats == 1


def test_results_in_another_form_are_refused() -> None:
    with pytest.raises(SinkError, match='found "json", expected "blocks"'):
        feed(RESULTS, results=ResultsSettings(format="json"))
