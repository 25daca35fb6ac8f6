"""Tables as nobody should write them: the right readings, or an error that names place, found and expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from tsunagi.runtime.settings import TableSettings
from tsunagi.runtime.tables import csv_table
from tsunagi.runtime.tables.files import open_table
from tsunagi.runtime.tables.layout import TableError

S = 1_000_000
NOON_US = 1_709_294_400 * S  # 2024-03-01T12:00:00Z
ISO = "2024-03-01T12:00:00Z"
AUTUMN_US = 1_729_989_000 * S  # 2024-10-27T00:30:00Z: 02:30 in Berlin, for the first time

Reading = tuple[int, str, float]


class Case(NamedTuple):
    """A file, and what is read of it.

    `expected` is readings (time in microseconds, sensor, value), or a part of the error. Before an error, the readings
    `before` come. `missing` is how many rows or cells say that there is no value.
    """

    content: str | bytes | Mapping[str, pa.Array]
    expected: list[Reading] | str
    form: Mapping[str, Any] = {}
    missing: int = 0
    before: int = 0


def long(*rows: str, header: str = "time,sensor,value", end: str = "\n") -> str:
    return end.join([header, *rows, ""])


ONE = [(NOON_US, "a", 1.5)]
UTC = pa.timestamp("us", tz="UTC")
WIDE = {"time": pa.array([0, S], UTC), "a": pa.array([1.0, None]), "b": pa.array([2, 3])}
LONG = {"time": pa.array([0, S], UTC), "sensor": pa.array(["a", "b"]), "value": pa.array([1.5, -2.0])}
BOTH = [(0, "a", 1.5), (S, "b", -2.0)]
CASES: dict[str, Case] = {
    "plain": Case(long(f"{ISO},a,1.5"), ONE),
    "byte order mark": Case(b"\xef\xbb\xbf" + long(f"{ISO},a,1.5").encode(), ONE),
    "UTF-16": Case(long(f"{ISO},a,1.5").encode("utf-16"), "found UTF-16, expected UTF-8"),
    "Latin-1": Case(
        b"time,sensor,value\n0,a,1\n1,k\xfchl,2\n", "line 3: found byte 0xfc at 4, expected UTF-8", before=1
    ),
    "line ends of Windows": Case(long(f"{ISO},a,1.5", end="\r\n"), ONE),
    "no end of the last line": Case(f"time,sensor,value\n{ISO},a,1.5", ONE),
    "semicolons and decimal commas": Case(long(f"{ISO};a;1,5", header="time;sensor;value"), ONE),
    "semicolons and decimal points": Case(long(f"{ISO};a;1.5", header="time;sensor;value"), ONE),
    "tabs": Case(long(f"{ISO}\ta\t1.5", header="time\tsensor\tvalue"), ONE),
    "bars and quotes": Case(long(f'"{ISO}"|"a"|"1.5"', header='"time"|"sensor"|"value"'), ONE),
    "a thousands point where commas are decimal": Case(
        long("0;a;1,5", "1;a;1.234", header="time;sensor;value"),
        "line 3, column 'value': found '1.234', expected a number with a decimal comma",
        before=1,
    ),
    "another separator than was said": Case(
        long("0;a;1", header="time;sensor;value"), "found columns separated by ';', expected commas", {"separator": ","}
    ),
    "quotes with separators in them": Case(long(f'{ISO},"a, north ""b""",1.5'), [(NOON_US, 'a, north "b"', 1.5)]),
    "a line break in quotes": Case(
        long(f'{ISO},"a\nb",1.5'), "line 2: found no CSV (unexpected end of data), expected"
    ),
    "names of any language": Case(long(f"{ISO},温度 ünïcode,1.5"), [(NOON_US, "温度 ünïcode", 1.5)]),
    "spaces around cells": Case(long(f" {ISO} , a , 1.5 ", header=" Time , SENSOR, Value "), ONE),
    "columns in another order, and more of them": Case(long(f"x,1.5,a,{ISO}", header="note,value,sensor,time"), ONE),
    "columns of other usual names": Case(long(f"{ISO},a,1.5", header="ts,tag,val"), ONE),
    "columns that are said": Case(
        long(f"{ISO},x,a,1.5", header="wann,name,wo,was"), ONE, {"time": "wann", "sensor": "wo", "value": "was"}
    ),
    "a column that is not there": Case(long("0,a,1"), "line 1: found no column 'tag', which", {"sensor": "tag"}),
    "two columns of sensors": Case(
        long("0,a,t,1", header="time,device,metric,value"),
        "found 'metric' and 'device', expected one column of sensors",
    ),
    "a column that stands twice": Case(
        long("0,a,1,2", header="time,sensor,value,value"), "line 1: found the column 'value' twice"
    ),
    "NA and null": Case(long("0,a,NA", "1,a,null", "2,a,2"), [(2 * S, "a", 2.0)], missing=2),
    "-999 that is a value": Case(long("0,a,-999"), [(0, "a", -999.0)]),
    "-999 that is none": Case(long("0,a,-999.0", "1,a,2"), [(S, "a", 2.0)], {"missing": (-999,)}, missing=1),
    "empty cells": Case(long("0,a,", "1,a,  ", "2,a,2"), [(2 * S, "a", 2.0)], missing=2),
    "not a number": Case(long("0,a,nan", "1,a,inf"), [(0, "a", math.nan), (S, "a", math.inf)]),
    "a text in the middle": Case(
        long("0,a,1", "1,a,high", "2,a,3"), "line 3, column 'value': found 'high', expected a number", before=1
    ),
    "underscores in a number": Case(long("0,a,1_000"), "line 2, column 'value': found '1_000', expected a number"),
    "no name of a sensor": Case(long("0,a,1", "1,,2"), "line 3, column 'sensor': found nothing", before=1),
    "a sensor called time": Case(long("0,time,1"), "line 2, column 'sensor': found 'time'"),
    "seconds": Case(long("1709294400.0,a,1.5"), ONE),
    "milliseconds": Case(long("1709294400000,a,1.5"), ONE, {"time_unit": "ms"}),
    "microseconds": Case(long("1709294400000000,a,1.5"), ONE, {"time_unit": "us"}),
    "nanoseconds": Case(long("1709294400000000123,a,1.5"), ONE, {"time_unit": "ns"}),
    "milliseconds that nobody expects": Case(
        long("1709294400000,a,1"), "line 2, column 'time': found '1709294400000': looks like milliseconds"
    ),
    "zones, mixed": Case(
        long("2024-03-01T13:00:00+01:00,a,1.5", "2024-03-01T07:00:01-05:00,b,2"), [*ONE, (NOON_US + S, "b", 2.0)]
    ),
    "no zone": Case(long("2024-03-01T12:00:00,a,1"), "line 2, column 'time': found '2024-03-01T12:00:00', a time with"),
    "no zone, but one is said": Case(long("2024-03-01T13:00:00,a,1.5"), ONE, {"time_zone": "Europe/Berlin"}),
    "the hour that clocks show twice": Case(
        long("2024-10-27T02:30:00,a,1"),
        "line 2, column 'time': found 2024-10-27T02:30:00, which clocks in Europe/Berlin show twice",
        {"time_zone": "Europe/Berlin"},
    ),
    "that hour with its offset": Case(
        long("2024-10-27T02:30:00+02:00,a,1", "2024-10-27T02:30:00+01:00,a,2"),
        [(AUTUMN_US, "a", 1.0), (AUTUMN_US + 3600 * S, "a", 2.0)],
        {"time_zone": "Europe/Berlin"},
    ),
    "a form of its own": Case(
        long("01.03.2024 13:00:00;a;1,5", header="time;sensor;value"),
        ONE,
        {"time_format": "%d.%m.%Y %H:%M:%S", "time_zone": "Europe/Berlin"},
    ),
    "no time": Case(long("0,a,1", ",a,2"), "line 3, column 'time': found ''", before=1),
    "one time often": Case(long("0,a,1", "0,a,2", "0,b,3"), [(0, "a", 1.0), (0, "a", 2.0), (0, "b", 3.0)]),
    "times that go back": Case(long("1,a,1", "0,a,2"), [(S, "a", 1.0), (0, "a", 2.0)]),
    "wide: a name that stands twice": Case("time,a,a\n0,1,2\n", "line 1: sensor 'a' stands in columns 2 and 3"),
    "wide: the column of times in the middle": Case(
        "a,t1\n1,0\n", "line 1, column 2: found 't1', expected the column of times to be the first", {"time": "t1"}
    ),
    "wide: empty cells, NA": Case("time,a,b\n0,1,\n1,NA,2\n", [(0, "a", 1.0), (S, "b", 2.0)], missing=1),
    "wide: decimal commas": Case("time;a;b\n0;1,5;-2,25\n", [(0, "a", 1.5), (0, "b", -2.25)]),
    "wide: a sensor without a reading": Case("time,a,b\n0,1,\n", [(0, "a", 1.0)]),
    "wide: 2,000 columns": Case(
        "time," + ",".join(f"s{n}" for n in range(2000)) + "\n0," + ",".join(map(str, range(2000))) + "\n",
        [(0, f"s{n}", float(n)) for n in range(2000)],
    ),
    "wide: a short row": Case(
        "time,a,b\n0,1,2\n1,1\n", "line 3: found 2 fields, expected 3 as in the header", before=2
    ),
    "a constant sensor, one row": Case(long("0,a,0"), [(0, "a", 0.0)]),
    "header only": Case(long(), []),
    "nothing": Case("", "empty; expected a header"),
    "blank lines and comments": Case("# exported\n\ntime,sensor,value\n\n# a\n0,a,1\n  \n", [(0, "a", 1.0)]),
    "int64 extremes": Case(
        long("0,a,9223372036854775807", "0,b,-9223372036854775808"), [(0, "a", 2.0**63), (0, "b", -(2.0**63))]
    ),
    "1e308 and its like": Case(long("0,a,1e308", "0,b,-1.7e-308"), [(0, "a", 1e308), (0, "b", -1.7e-308)]),
    "a trailing separator": Case(long("0,a,1,"), "line 2: found 4 fields, expected 3 as in the header"),
    "a trailing separator in every line": Case(long("0,a,1,", header="time,sensor,value,"), [(0, "a", 1.0)]),
    "a long row": Case(long("0,a,1", "1,a,2,3,4"), "line 3: found 5 fields, expected 3", before=1),
    "a short row": Case(long("0,a,1", "1,a"), "line 3: found 2 fields, expected 3", before=1),
    "results: only what was measured": Case(
        long(
            "0,a,1,exact,,readings",
            "0,b,2,bounded,0.5,readings",
            "0,c,3,exact,,overview",
            header="time,sensor,value,quality,bound,query",
        ),
        [(0, "a", 1.0)],
    ),
    "Parquet: long": Case(LONG, BOTH),
    "Parquet: wide": Case(WIDE, [(0, "a", 1.0), (0, "b", 2.0), (S, "b", 3.0)]),
    "Parquet: without times": Case({"a": pa.array([1.0, 2.0])}, [(0, "a", 1.0), (S, "a", 2.0)]),
    "Parquet: a dictionary of sensors": Case(LONG | {"sensor": LONG["sensor"].dictionary_encode()}, BOTH),
    "Parquet: large texts": Case(LONG | {"sensor": LONG["sensor"].cast("large_string")}, BOTH),
    "Parquet: sensors that are numbers": Case(LONG | {"sensor": pa.array([7, 8])}, [(0, "7", 1.5), (S, "8", -2.0)]),
    "Parquet: decimals": Case(LONG | {"value": pa.array([Decimal("1.50"), Decimal("-2.00")])}, BOTH),
    "Parquet: whole numbers": Case(LONG | {"value": pa.array([1, None])}, [(0, "a", 1.0)], missing=1),
    "Parquet: int64 extremes": Case(
        LONG | {"value": pa.array([1, 2**63 - 1])}, "row 1 or below: value: Integer value 9223372036854775807"
    ),
    "Parquet: 1e308": Case(LONG | {"value": pa.array([1e308, -2.0])}, [(0, "a", 1e308), (S, "b", -2.0)]),
    "Parquet: NaN and null": Case(LONG | {"value": pa.array([math.nan, None])}, [], missing=2),
    "Parquet: -999": Case(LONG | {"value": pa.array([-999, 1])}, [(S, "b", 1.0)], {"missing": ("-999",)}, missing=1),
    "Parquet: texts as values": Case(
        LONG | {"value": pa.array(["1", "2"])}, "column 'value': found a column of string, expected numbers"
    ),
    "Parquet: no name of a sensor": Case(
        LONG | {"sensor": pa.array(["a", None])}, "row 1 or below, column 'sensor': found nothing"
    ),
    "Parquet: milliseconds": Case(LONG | {"time": pa.array([0, 1000])}, BOTH, {"time_unit": "ms"}),
    "Parquet: nanoseconds": Case(LONG | {"time": pa.array([0, 10**9 + 7])}, BOTH, {"time_unit": "ns"}),
    "Parquet: seconds with fractions": Case(LONG | {"time": pa.array([0.0, 1.0])}, BOTH),
    "Parquet: ISO texts, mixed zones": Case(
        LONG | {"time": pa.array(["1970-01-01T00:00:00Z", "1970-01-01T01:00:01+01:00"])}, BOTH
    ),
    "Parquet: timestamps in ns, another zone": Case(
        LONG | {"time": pa.array([0, S], UTC).cast(pa.timestamp("ns", tz="Asia/Tokyo"))}, BOTH
    ),
    "Parquet: no zone": Case(
        LONG | {"time": pa.array([0, S], pa.timestamp("us"))}, "found timestamps without a zone, expected them with one"
    ),
    "Parquet: no zone, but one is said": Case(
        LONG | {"time": pa.array([0, S], pa.timestamp("us"))}, BOTH, {"time_zone": "UTC"}
    ),
    "Parquet: the hour that clocks show twice": Case(
        {"time": pa.array([AUTUMN_US + 7200 * S], pa.timestamp("us")), "a": pa.array([1.0])},
        "row 1 or below: time: Timestamp doesn't exist in timezone|is ambiguous",
        {"time_zone": "Europe/Berlin"},
    ),
    "Parquet: no time": Case(LONG | {"time": pa.array([0, None], UTC)}, "row 1 or below: time: found nothing"),
    "Parquet: no rows": Case({name: column[:0] for name, column in LONG.items()}, []),
    "Parquet: results": Case(
        LONG
        | {
            "quality": pa.array(["exact", "bounded"]).dictionary_encode(),
            "bound": pa.array([None, 0.5]),
            "query": pa.array(["readings", "readings"]),
        },
        [(0, "a", 1.5)],
    ),
}


def written(tmp_path: Path, case: Case) -> Path:
    content = case.content
    if isinstance(content, Mapping):
        parquet.write_table(pa.table(dict(content)), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"
    (tmp_path / "t.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path / "t.csv"


def read(path: Path, form: Mapping[str, Any]) -> tuple[list[Reading], int, str]:
    """Return readings, the count of missing values, and the error; "" = none."""
    found: list[Reading] = []
    missing = 0
    try:
        table = open_table(path, TableSettings.model_validate(form))
        for block in table.blocks():
            missing += int(block.missing.sum())
            kept = block.chosen(~block.missing & ~block.estimated)
            names = [table.names.names[number] for number in kept.sensors.tolist()]
            found += zip(kept.times_us.tolist(), names, kept.values.tolist(), strict=True)
    except TableError as error:
        return found, missing, str(error)
    return found, missing, ""


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_read_or_refused_by_place(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = written(tmp_path, case)
    found, missing, error = read(path, case.form)
    assert missing == case.missing
    if isinstance(case.expected, str):
        assert any(part in error for part in case.expected.split("|"))
        assert error.startswith(str(path))
        assert len(found) == case.before
        return
    assert error == ""
    assert str(found) == str(case.expected)  # NaN equals itself as a text


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not isinstance(case.content, Mapping)])
def test_small_blocks_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = written(tmp_path, CASES[name])
    whole = read(path, CASES[name].form)
    monkeypatch.setattr(csv_table, "CHUNK_BYTES", 1)
    assert str(read(path, CASES[name].form)) == str(whole)


@pytest.mark.parametrize("kept", [4, 100, 400])
def test_a_truncated_parquet_is_refused(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path, CASES["Parquet: long"])
    path.write_bytes(path.read_bytes()[:kept])
    _, _, error = read(path, {})
    assert error.startswith(f"{path}: cannot be read: ")


def test_a_parquet_with_a_damaged_page_is_refused_by_row(tmp_path: Path) -> None:
    rows = 10_000
    parquet.write_table(
        pa.table(
            {"time": pa.array(range(rows), UTC), "sensor": ["a"] * rows, "value": [float(n) for n in range(rows)]}
        ),
        tmp_path / "t.parquet",
        compression="zstd",
        row_group_size=1000,
    )
    raw = bytearray((tmp_path / "t.parquet").read_bytes())
    half = len(raw) // 2
    raw[half : half + 2000] = bytes(2000)
    (tmp_path / "t.parquet").write_bytes(raw)
    _, _, error = read(tmp_path / "t.parquet", {})
    assert "or below: cannot be read" in error


def test_pyarrow_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    _, _, error = read(tmp_path / "t.parquet", {})
    assert "Parquet needs pyarrow, which is not installed here" in error


def test_the_lines_and_bytes_of_readings_are_those_of_the_file(tmp_path: Path) -> None:
    for text in (long("0,a,1", "1,温,2", "2,a,3"), '#x\ntime,sensor,value\n\n0,"a",1\r\n# no\n1,"温",2\n2,a,3'):
        (tmp_path / "t.csv").write_bytes(text.encode())
        table = open_table(tmp_path / "t.csv", TableSettings())
        (block,) = table.blocks()
        raw = text.encode()
        for row, line, offset in zip(block.rows, block.lines, block.offsets, strict=True):
            begin = raw[offset:].split(b"\n")[0]
            assert begin.startswith(str(row).encode())
            assert raw.split(b"\n")[line - 1] == begin
        assert table.end.offset == len(raw)
        assert table.end.row == 3
