from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tsunagi.query.definitions import catalog_with
from tsunagi.query.planning import make_program
from tsunagi.query.readings import Readings, attribute_kinds
from tsunagi.query.running import Queries
from tsunagi.query.values import Kind
from tsunagi.runtime.messages import BOUNDED, EXACT, UNMODELLED
from tsunagi.runtime.sensors import SensorTable, read_sensors

TABLE = """sensor,edge,group,threshold,site,depth
b,e1,g,2.5,north,3
a,e2,,,south,
c,e1,g,1,,7.5
"""


@pytest.fixture
def table(tmp_path: Path) -> SensorTable:
    path = tmp_path / "sensors.csv"
    path.write_text(TABLE)
    return read_sensors(path)


def test_attributes_are_numbers_where_all_of_them_are(table: SensorTable) -> None:
    assert attribute_kinds(table) == {"site": Kind.TEXT, "depth": Kind.DOUBLE}
    assert {"site", "depth", "value", "quality"} <= set(
        catalog_with(attribute_kinds(table)).streams["readings"].columns
    )


def test_a_query_sees_readings_attributes_and_the_bounds_of_estimates(table: SensorTable) -> None:
    text = """CREATE QUERY q AS SELECT sensor, site, depth, threshold, quality, time, 2 * value AS twice, bound
    FROM readings WHERE depth IS NULL OR depth > 3 OR site = 'north'"""
    queries = Queries(make_program([("q", text)], 1_000_000, catalog_with(attribute_kinds(table))))
    step, sensor = np.array([1, 1, 1, 2]), np.array([0, 1, 2, 1], dtype=np.uint32)
    columns = {
        "mean": np.array([10.0, 11.0, math.nan, 12.0]),
        "sd": np.array([0.0, 0.5, 0.0, 0.0]),
        "bound": np.array([0.0, 1.0, 0.0, 0.0]),
        "quality": np.array([EXACT, BOUNDED, EXACT, UNMODELLED], dtype=np.uint8),
    }
    found = queries.advance({"readings": Readings(table, 1_000_000).rows(step, sensor, columns)}, 0, 2)["q"]
    assert found.columns["sensor"].texts() == ["a", "b", "c", "a"]
    assert found.columns["site"].texts() == ["south", "north", None, "south"]
    assert found.columns["depth"].to_list() == [None, 3.0, 7.5, None]
    assert found.columns["threshold"].to_list() == [None, 2.5, 1.0, None]
    assert found.columns["quality"].texts() == ["bounded", "exact", "exact", "unmodelled"]
    assert found.columns["time"].to_list() == [1_000_000, 1_000_000, 1_000_000, 2_000_000]
    assert found.columns["twice"].to_list() == [22.0, 20.0, None, 24.0]
    spread = found.columns["twice"].spread
    assert spread is not None
    assert (spread.low[0], spread.high[0], spread.sd[0]) == (20.0, 24.0, 1.0)
    assert (spread.low[1], spread.high[1]) == (20.0, 20.0)
