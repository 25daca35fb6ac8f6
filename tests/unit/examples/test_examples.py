"""The papers' applications keep the laws of operators, and say what they should."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import regex, sst, vwap
from examples.files import QUERIES
from tsunagi import Pipeline
from tsunagi.edge.tuple_form import form_of
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import load


def rows(module: Any, query: str, tmp_path: Path, count: int) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return (the tuples that a generator has written, the rows of its query)."""
    module.make(tmp_path, count, np.random.default_rng(1))
    settings = tomllib.loads((tmp_path / "tsunagi.toml").read_text(encoding="utf-8"))
    source = settings.pop("source") | {"repeat": False}
    with Path(source["path"]).open(encoding="utf-8") as file:
        tuples = list(csv.DictReader(file))
    return tuples, [dict(row) for row in Pipeline(source, **settings).run(memory=True).query(query)]


def test_vwap_weighs_the_prices_of_the_last_hundred_trades_by_volume(tmp_path: Path) -> None:
    tuples, found = rows(vwap, "vwap", tmp_path, 2800)
    last: dict[str, deque[tuple[float, int]]] = defaultdict(lambda: deque(maxlen=100))
    wanted: dict[str, list[float]] = defaultdict(list)
    for item in tuples:
        trades = last[item["symbol"]]
        trades.append((float(item["price"]), int(item["volume"])))
        wanted[item["symbol"]].append(sum(price * volume for price, volume in trades) / sum(v for _, v in trades))
    assert max(row["trades"] for row in found) == 100
    for symbol, values in wanted.items():
        assert [row["vwap"] for row in found if row["symbol"] == symbol] == pytest.approx(values)


def test_messages_of_a_kilobyte_are_matched(tmp_path: Path) -> None:
    tuples, found = rows(regex, "quakes", tmp_path, 200)
    assert {len(item["body"]) for item in tuples} == {regex.MESSAGE_BYTES}
    matches = [(item["feed"], match[1]) for item in tuples if (match := re.search("quake (now|again)", item["body"]))]
    assert sorted((row["feed"], row["found"].split()[-1]) for row in found) == sorted(matches)
    assert 0 < len(found) < 200


def test_sst_finds_where_a_series_changes(tmp_path: Path) -> None:
    at = np.arange(200)
    series = np.where(at < 100, np.sin(2 * np.pi * at / 8), np.sin(2 * np.pi * at / 19))
    readings = [{"wave": float(value)} for value in series]
    pipeline = Pipeline(readings, query={"mode": "tuples", "files": [QUERIES / "sst.sql"]})
    found = list(pipeline.run(memory=True).query("changes"))
    assert len(found) == 200 - sst.LENGTH + 1
    scores = {sst.LENGTH - 1 + place: row["score"] for place, row in enumerate(found)}
    assert all(scores[place] == sst.change(series[place - sst.LENGTH + 1 : place + 1]) for place in scores)
    assert max(scores[place] for place in range(60, 100)) < 0.01
    assert max(scores[place] for place in range(100, 140)) > 0.3


@pytest.mark.parametrize("module", [regex, vwap, sst])
def test_a_generator_writes_what_the_system_reads(module: Any, tmp_path: Path) -> None:
    module.make(tmp_path, 30, np.random.default_rng(1))
    settings = load(tmp_path / "tsunagi.toml")
    assert settings.query.mode == "tuples"
    table = read_sensors(settings.sensors)
    lines = settings.source.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 31
    form = form_of(settings)
    if form is None:
        assert lines[0].split(",") == [sensor.name for sensor in table.sensors]
    else:
        assert lines[0].split(",") == [form.key, *form.kinds]
        assert {line.partition(",")[0] for line in lines[1:]} <= {sensor.name for sensor in table.sensors}
