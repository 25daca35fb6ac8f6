"""Tuples of several columns at an edge: CSV, JSON, and what gets into the log."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tsunagi.edge.csv_open import CsvOpener
from tsunagi.edge.csv_tuples import CsvTuples
from tsunagi.edge.decode import Decoder, Reading, ReadingFault
from tsunagi.edge.inbox import Message
from tsunagi.edge.passing import Passing
from tsunagi.edge.source import SourceError, SourceRow
from tsunagi.edge.tuple_form import CellError, form_of, read_json, read_text
from tsunagi.pipeline import Pipeline
from tsunagi.query.form import TupleForm, first_number, to_columns
from tsunagi.query.typed import from_message
from tsunagi.query.values import Kind
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings, SourceSettings

TABLE = SensorTable((Sensor(0, "A", "e1", minimum=1.0), Sensor(1, "B", "e2"), Sensor(2, "C", "e1")))
FORM = TupleForm(
    "symbol",
    {
        "note": Kind.TEXT,
        "price": Kind.DOUBLE,
        "volume": Kind.BIGINT,
        "open": Kind.BOOLEAN,
        "paid": Kind.TIMESTAMP,
    },
)
HEADER = "time,symbol,note,price,volume,open,paid,desk\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "trades.csv"
        path.write_text(HEADER + text, encoding="utf-8")
        return path

    return write


def rows(path: Path, edge: str = "e1") -> list[tuple[Any, ...]]:
    found = []
    with closing(CsvTuples(path, TABLE, TABLE.of_edge(edge), FORM)) as file:
        while (row := file.next_row()) is not None:
            found.append((row.time_us, row.places.tolist(), row.cells, row.strangers))
    return found


def test_a_row_is_a_tuple_of_the_sensor_that_its_key_names(write: Any) -> None:
    path = write('1,A,"rain, late",1.5,3,true,5,x\n2,B,,,,,,\n3,C,,,-9223372036854775808,0,2024-01-01T00:00:00Z,\n')
    first = {"note": "rain, late", "price": 1.5, "volume": 3, "open": True, "paid": 5_000_000}
    last = {"note": None, "price": None, "volume": -(1 << 63), "open": False, "paid": 1_704_067_200_000_000}
    assert rows(path) == [(1_000_000, [0], first, []), (2_000_000, [], None, []), (3_000_000, [1], last, [])]
    assert rows(path, "e2")[1] == (2_000_000, [0], dict.fromkeys(FORM.kinds), [])


def test_a_key_that_the_table_lacks_is_told_with_its_row(write: Any) -> None:
    assert rows(write("1,X,,1,1,,,\n"))[0][3] == [("X", "1,X,,1,1,,,")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,A,,dear,1,,,", r"line 2, column 'price': found 'dear', expected DOUBLE"),
        ("1,A,,1,1.5,,,", r"line 2, column 'volume': found '1.5', expected BIGINT"),
        ("1,A,,1,9223372036854775808,,,", "column 'volume': found '9223372036854775808', expected BIGINT"),
        ("1,A,,1,1,maybe,,", "column 'open': found 'maybe', expected BOOLEAN"),
        ("1,A,,1,1,,yesterday,", "column 'paid': found 'yesterday', expected TIMESTAMP"),
        ("1,A,,1", "line 2: found 4 fields, expected 8"),
    ],
)
def test_an_error_names_file_line_column_found_and_expected(write: Any, row: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        rows(write(row + "\n"))


def test_a_file_without_a_column_of_the_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trades.csv"
    path.write_text("symbol,price\nA,1\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"line 1: no column 'note', 'volume', 'open', 'paid', which the stream has"):
        CsvTuples(path, TABLE, TABLE.of_edge("e1"), FORM)


def decode(body: object, **settings: Any) -> Reading | ReadingFault:
    decoder = Decoder(TABLE, TABLE.of_edge("e1"), SourceSettings(**settings), key_first=False, form=FORM)
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decoder.decode(Message(payload, "here", 7))


def test_a_json_object_is_a_tuple() -> None:
    found = decode({"symbol": "C", "time": 2, "note": "", "price": 3, "volume": 4.0, "open": False, "other": [1]})
    assert isinstance(found, Reading)
    assert (found.place, found.time_us, found.value) == (1, 2_000_000, 3.0)
    assert found.cells == {"note": "", "price": 3.0, "volume": 4, "open": False, "paid": None}


@pytest.mark.parametrize(
    ("body", "reason", "detail"),
    [
        ({"symbol": "A", "time": 1, "price": "3"}, "bad-column", 'price: found "3", expected DOUBLE'),
        ({"symbol": "A", "time": 1, "volume": 1.5}, "bad-column", "volume: found 1.5, expected BIGINT"),
        ({"symbol": "A", "time": 1, "volume": True}, "bad-column", "volume: found true, expected BIGINT"),
        ({"symbol": "A", "time": 1, "note": {"a": 1}}, "bad-column", 'note: found {"a": 1}, expected TEXT'),
        ({"symbol": "A", "time": 1, "paid": "noon"}, "bad-column", "paid: found 'noon', expected TIMESTAMP"),
        ({"symbol": "B", "time": 1}, "foreign-sensor", "edge 'e2'"),
        ({"sensor": "A", "time": 1}, "no-sensor", "no key 'symbol'"),
        ({"symbol": "A"}, "no-time", "no key 'time'"),
        (b"3.5", "unreadable", "found 3.5, expected a JSON object"),
        (b"[1]", "unreadable", "expected a JSON object"),
    ],
)
def test_what_is_no_tuple_is_told_with_the_reason(body: object, reason: str, detail: str) -> None:
    found = decode(body)
    assert isinstance(found, ReadingFault)
    assert found.reason == reason
    assert detail in found.detail


@pytest.mark.parametrize("given", ["nan", float("nan")])
def test_what_is_no_number_is_null(given: Any) -> None:
    assert (read_text if isinstance(given, str) else read_json)(given, Kind.DOUBLE) is None


@pytest.mark.parametrize(("given", "kind"), [(10**400, Kind.DOUBLE), (1e300, Kind.BIGINT), (float("inf"), Kind.BIGINT)])
def test_a_number_that_does_not_fit_is_told(given: Any, kind: Kind) -> None:
    with pytest.raises(CellError, match=f"expected {kind.value}"):
        read_json(given, kind)


def test_a_tuple_is_read_back_from_its_columns() -> None:
    cells = {"note": "Größe", "price": -0.5, "volume": 1 << 60, "open": True, "paid": 3}
    for given in (cells, dict.fromkeys(FORM.kinds), {}):
        messages = to_columns(given, FORM)
        columns = {message.name: from_message(message, 1) for message in messages}
        assert {name: column.to_list()[0] for name, column in columns.items()} == {
            name: given.get(name) for name in FORM.kinds
        }
        assert [columns[name].kind for name in FORM.kinds] == list(FORM.kinds.values())
    assert first_number(cells, FORM) == -0.5
    assert first_number({}, FORM) == 0.0


def test_the_limits_of_readings_do_not_judge_tuples(write: Any) -> None:
    with closing(CsvTuples(write("5,A,,,1,,,\n"), TABLE, TABLE.of_edge("e1"), FORM)) as file:
        row = file.next_row()
    assert row is not None
    given = SourceRow(0, 5_000_000, row.places, row.values, cells=row.cells)
    passed, rejected = Passing(TABLE.of_edge("e1")).take(given, 0)
    assert passed is not None
    assert (passed.cells, rejected) == (row.cells, [])


def test_statements_of_files_say_the_form(tmp_path: Path) -> None:
    statements = tmp_path / "q.sql"
    statements.write_text("CREATE QUERY q AS SELECT sensor FROM readings", encoding="utf-8")
    tuples = Settings(query={"mode": "tuples", "files": [statements]})
    assert form_of(tuples) is None
    statements.write_text("CREATE STREAM s (k TEXT KEY, x DOUBLE); CREATE QUERY q AS SELECT k FROM s", encoding="utf-8")
    assert form_of(tuples) == TupleForm("k", {"x": Kind.DOUBLE})
    assert form_of(Settings()) is None
    data = tmp_path / "data.csv"
    data.write_text("k,x\nA,1\n", encoding="utf-8")
    source = Settings(source={"path": data}, state=tmp_path, query={"mode": "tuples", "files": [statements]})
    CsvOpener(source, "e1", TABLE, TABLE.of_edge("e1"), form_of(source)).close()


def test_a_pipeline_of_tuples(tmp_path: Path) -> None:
    data = tmp_path / "trades.csv"
    lines = [f"{1_700_000_000 + number},{'AB'[number % 2]},{number % 5},{number}" for number in range(40)]
    data.write_text("\n".join(["time,symbol,price,volume", *lines]) + "\n", encoding="utf-8")
    sensors = [{"sensor": "A", "edge": "e1"}, {"sensor": "B", "edge": "e2"}]
    pipeline = Pipeline(data, sensors=sensors, query={"mode": "tuples"})
    pipeline.query("CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, volume BIGINT)")
    pipeline.query(
        "CREATE QUERY two AS SELECT symbol, SUM(price * volume) AS money FROM trades [ROWS 2] GROUP BY symbol"
    )
    found = [(row["symbol"], row["money"]) for row in pipeline.run(memory=True).query("two")]
    money = [number % 5 * number for number in range(40)]
    wanted = [("AB"[at % 2], money[at] + (money[at - 2] if at > 1 else 0)) for at in range(40)]
    assert sorted(found) == sorted(wanted)
    assert [row for row in found if row[0] == "A"] == [row for row in wanted if row[0] == "A"]
