import csv
import importlib.util
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tsunagi.recovery.fit import read_history
from tsunagi.runtime.sensors import read_sensors

DATA = Path(__file__).parents[3] / "data"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_guangzhou", DATA / "make_guangzhou.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readings_and_table_belong_together():
    history, table = read_history(DATA / "guangzhou.csv"), read_sensors(DATA / "guangzhou-sensors.csv")
    assert history.names == tuple(sensor.name for sensor in table.sensors)
    assert history.values.shape == (500, 214)
    assert np.isfinite(history.values).all()
    assert history.times_us is not None
    ends = [datetime.fromtimestamp(int(at) / 1e6, UTC).isoformat() for at in history.times_us[[0, -1]]]
    assert ends == ["2016-07-31T16:00:00+00:00", "2016-08-04T03:10:00+00:00"]
    low, high = (np.array([getattr(s, key) for s in table.sensors]) for key in ("minimum", "maximum"))
    assert ((history.values >= low) & (history.values <= high)).all()
    assert (DATA / "guangzhou.csv").stat().st_size < 1_000_000


def test_time_is_the_axis_whose_neighbours_correlate():
    values = read_history(DATA / "guangzhou.csv").values
    values = values - values.mean(axis=0)
    assert (values[1:] * values[:-1]).sum() / (values**2).sum() > 0.85


def test_every_group_is_spread_over_the_edges():
    table = read_sensors(DATA / "guangzhou-sensors.csv")
    edges: defaultdict[str, set[str]] = defaultdict(set)
    sizes: Counter[str] = Counter()
    for sensor in table.sensors:
        edges[sensor.group].add(sensor.edge)
        sizes[sensor.group] += 1
    assert len(edges) == 20
    assert len(set(sizes.values())) > 10
    assert all(found == set(table.edges) for found in edges.values())
    assert table.edges == ("edge-1", "edge-2", "edge-3", "edge-4")


def test_the_script_makes_the_files(tmp_path):
    with (DATA / "guangzhou.csv").open(encoding="utf-8") as file:
        columns = list(zip(*list(csv.reader(file))[1:], strict=True))[1:]
    source = tmp_path / "source.txt"
    source.write_text("\n".join(" ".join(column) for column in columns) + "\n")
    maker().main(source, tmp_path)
    for name in ("guangzhou.csv", "guangzhou-sensors.csv"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
    source.write_text("1 2 3\n")
    with pytest.raises(SystemExit, match="found 1 rows"):
        maker().main(source, tmp_path)
