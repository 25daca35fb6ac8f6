"""`tsunagi results` in its three forms."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime

import pytest

from tsunagi.local import results
from tsunagi.runtime.results import Row

ROW = Row("readings", "g", 7, datetime(2024, 1, 1, tzinfo=UTC), "s1", "km/h", 1.5, 0.0, "exact", 0.0, 3, 1, 1 / 3)


def written(form: str, row: Row) -> str:
    output = io.StringIO()
    results._writer(form, output)(row)
    return output.getvalue()


def test_csv() -> None:
    (row,) = csv.DictReader(io.StringIO(written("csv", ROW)))
    assert row["time"] == "2024-01-01T00:00:00+00:00"
    assert (row["sensor"], row["value"], row["q1"]) == ("s1", "1.5", "3")


@pytest.mark.parametrize(("value", "expected"), [(1.5, 1.5), (math.nan, None)])
def test_json(value: float, expected: float | None) -> None:
    row = json.loads(written("json", ROW._replace(value=value)))
    assert row["value"] == expected
    assert row["quality"] == "exact"


def test_table() -> None:
    header, line = written("table", ROW).splitlines()
    assert header.split()[:3] == ["time", "group", "sensor"]
    assert line.split() == ["00:00:00.000", "g", "s1", "1.5", "km/h", "exact", "3", "1", "0.333"]
