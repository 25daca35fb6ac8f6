"""CSV as people write it, read alike by everybody: the edge, `fit`, the demo's checker and the tables."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tsunagi.audit.truth import read_readings
from tsunagi.demo.inputs import prepare
from tsunagi.edge.csv_file import CsvFile, check_csv
from tsunagi.recovery.history import read_history
from tsunagi.runtime.csv_text import CsvError, read_header, read_table, row_writer
from tsunagi.runtime.naming import sensor_fault, text_fault
from tsunagi.runtime.sensors import Sensor, SensorTable, read_sensors

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
FORMS = {
    "plain": "time,a,b\n0,1,\n1,2,3\n",
    "mark": "\ufefftime,a,b\n0,1,\n1,2,3\n",
    "windows line ends": "time,a,b\r\n0,1,\r\n1,2,3\r\n",
    "no end of the last line": "time,a,b\n0,1,\n1,2,3",
    "blank lines": "\n\ntime,a,b\n\n0,1,\n   \n1,2,3\n\n",
    "annotated": "#group,false,false\n# exported by somebody\ntime,a,b\n0,1,\n# a pause\n1,2,3\n#end\n",
    "Time": "Time,a,b\n0,1,\n1,2,3\n",
    "TIMESTAMP": "TIMESTAMP,a,b\n0,1,\n1,2,3\n",
    "spaces": " time , a, b\n0 , 1 ,  \n1, 2, 3 \n",
    "quotes": '"time","a","b"\n"0","1",""\n"1","2","3"\n',
    "quotes after spaces": '"time", "a", "b"\n0, "1", ""\n1, "2", "3"\n',
    "moments": "time,a,b\n1970-01-01T00:00:00Z,1,\n1970-01-01T01:00:01+01:00,2,3\n",
}
TABLE = SensorTable((Sensor(0, "a", "e"), Sensor(1, "b", "e")))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_three_readers_find_the_same_in_every_form(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, FORMS[form])
    expected = [[1.0, math.nan], [2.0, 3.0]]
    history = read_history(path)
    assert history.names == ("a", "b")
    assert history.times_us is not None
    assert history.times_us.tolist() == [0, 1_000_000]
    np.testing.assert_array_equal(history.values, expected)
    checked = read_readings(path, TABLE, origin_us=0, interval_us=1)
    assert checked.times_us.tolist() == [0, 1_000_000]
    np.testing.assert_array_equal(checked.values, expected)
    summary = check_csv(path, TABLE)
    assert (summary.rows, summary.readings, summary.unknown) == (2, 3, ())
    file = CsvFile(path, TABLE, TABLE.sensors)
    first, second = file.next_row(), file.next_row()
    assert first is not None
    assert second is not None
    assert (first.time_us, first.places.tolist(), first.values.tolist()) == (0, [0], [1.0])
    file.seek(second.place)
    again = file.next_row()
    assert again is not None
    assert again.values.tolist() == [2.0, 3.0]
    file.close()


def test_in_a_file_of_one_column_two_quotes_are_a_row_without_a_reading(tmp_path: Path) -> None:
    path = written(tmp_path, 'a\n1\n""\n\n2\n')
    table = SensorTable((Sensor(0, "a", "e"),))
    expected = [[1.0], [math.nan], [2.0]]
    np.testing.assert_array_equal(read_history(path).values, expected)
    np.testing.assert_array_equal(read_readings(path, table, origin_us=0, interval_us=1).values, expected)
    assert check_csv(path, table).rows == 3


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_again(tmp_path: Path, rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    write = row_writer(text)
    for row in rows:
        write(row)
    assert [line.cells for line in read_table(written(tmp_path, text.getvalue()))] == rows


@given(st.lists(NAMES, min_size=4, max_size=6, unique_by=str.strip))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_sensor_is_called_the_demo_finds_it(tmp_path: Path, names: list[str]) -> None:
    names = [name.strip() for name in names]
    text = io.StringIO(newline="")
    write = row_writer(text)
    write(names)
    for row in range(80):
        write([row] * len(names))
    path = written(tmp_path, text.getvalue())
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    if any(not name or sensor_fault(name) for name in names):
        with pytest.raises(ValueError, match=r"found|empty") as caught:
            prepare(path, 2, None, out)
        assert type(caught.value).__module__.startswith("tsunagi.")
        return
    inputs = prepare(path, 2, None, out)
    assert [sensor.name for sensor in read_sensors(inputs.sensors).sensors] == names
    assert read_history(path).names == tuple(names)
    assert check_csv(path, inputs.table).readings == 80 * len(names)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_file_it_is_read_or_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    refusals = []
    names: tuple[str, ...] = ()
    try:
        list(read_table(path))
    except CsvError as error:
        refusals.append(error)
    try:
        with path.open("rb") as file:
            names = read_header(file, path).names
    except CsvError as error:
        refusals.append(error)
    assert not [name for name in names if text_fault(name)]
    assert all(str(error).startswith(str(path)) for error in refusals)


def test_rows_are_known_by_the_line_on_which_they_begin(tmp_path: Path) -> None:
    path = written(tmp_path, '# about\na,b\n\n"1\n2",3\n4,5\n')
    assert [line.number for line in read_table(path)] == [2, 4, 6]
