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
from tsunagi import Pipeline
from tsunagi.edge.tuple_form import form_of
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import load
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.frames import measured_run
from tsunagi.slot.operators import OperatorError
from tsunagi.slot.testkit import check_operators


def config(sensors: int = 2) -> SlotConfig:
    names = tuple(f"s{number}" for number in range(sensors))
    return SlotConfig(
        slot=0,
        sensors=tuple(range(sensors)),
        names=names,
        edges=("e",) * sensors,
        slide_us=1,
        max_ahead_us=1,
        max_skew_steps=1,
        max_gap_steps=1,
        operators=(),
        eps=1.0,
        delta=0.9,
        mode="tuples",
    )


def through(operator: Any, sensors: list[int], values: list[float]) -> list[float]:
    count = len(values)
    ids = np.array(sensors, dtype=np.uint32)
    run = measured_run(1, 1, ids, np.array(values), np.arange(count), np.arange(count))
    return [value for frame in operator.process(run) for value in frame.mean.tolist()]


@pytest.mark.parametrize("mode", ["steps", "tuples"])
def test_sst_keeps_the_laws_of_operators(mode: Any) -> None:
    check_operators({"use": "examples.sst:Sst", "window": 4, "columns": 3, "lag": 3, "rank": 2}, mode=mode, count=60)


def rows(module: Any, query: str, tmp_path: Path, count: int) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return (the tuples that a generator has written, the rows of its query)."""
    module.make(tmp_path, count, np.random.default_rng(1))
    settings = tomllib.loads((tmp_path / "tsunagi.toml").read_text(encoding="utf-8"))
    source = settings.pop("source") | {"repeat": False}
    with Path(source["path"]).open(encoding="utf-8") as file:
        tuples = list(csv.DictReader(file))
    return tuples, [dict(row) for row in Pipeline(source, **settings).run(memory=True).query(query)]


def test_vwap_weighs_the_prices_of_the_last_hundred_trades_by_volume(tmp_path: Path) -> None:
    tuples, found = rows(vwap, "vwap", tmp_path, 4000)
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


def test_sst_finds_where_a_series_changes() -> None:
    at = np.arange(200)
    series = np.where(at < 100, np.sin(2 * np.pi * at / 8), np.sin(2 * np.pi * at / 19))
    scores = through(sst.Sst(config(), rank=2), [0] * 200, series.tolist())
    first = 200 - len(scores)
    by_place = {first + place: value for place, value in enumerate(scores)}
    assert max(by_place[place] for place in range(60, 100)) < 0.01
    assert max(by_place[place] for place in range(100, 140)) > 0.3


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(OperatorError, match="sst: found"):
        sst.Sst(config(), rank=30)


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
