"""The papers' applications keep the laws of operators, and say what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import regex, sst, vwap
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


@pytest.mark.parametrize(
    "operator",
    [
        {"use": "examples.regex:Match", "pattern": "rain t", "idle": 1},
        {"use": "examples.vwap:Vwap", "window": 3},
        {"use": "examples.sst:Sst", "window": 4, "columns": 3, "lag": 3, "rank": 2},
    ],
)
@pytest.mark.parametrize("mode", ["steps", "tuples"])
def test_they_keep_the_laws_of_operators(operator: dict[str, Any], mode: Any) -> None:
    check_operators(operator, mode=mode, count=60)


def test_a_message_has_one_text_of_a_kilobyte() -> None:
    assert len(regex.message(7.0)) == regex.MESSAGE_BYTES
    assert regex.message(7.0) == regex.message(7.0) != regex.message(8.0)
    matched = through(regex.Match(config(), pattern="quake now"), [0] * 200, [float(n) for n in range(200)])
    assert matched == [float(n) for n in range(200) if "quake now" in regex.message(n)]
    assert 0 < len(matched) < 200


def test_vwap_weighs_prices_by_volume() -> None:
    trades = [vwap.pack_trade(1000, 1), vwap.pack_trade(2000, 3), vwap.pack_trade(500, 4)]
    assert vwap.unpack_trade(trades[1]) == (2000, 3)
    operator = vwap.Vwap(config(), window=2)
    assert through(operator, [0, 1, 0, 0], [trades[0], trades[0], trades[1], trades[2]]) == pytest.approx(
        [(1000 + 6000) / 4 * 0.01, (6000 + 2000) / 7 * 0.01]
    )
    assert [vwap.unpack_trade(value) for value in (0.0, -1.0, 0.5, float("inf"), float(vwap.VOLUMES))] == [None] * 5
    with pytest.raises(ValueError, match="found 0 ticks"):
        vwap.pack_trade(0, 1)


def test_sst_finds_where_a_series_changes() -> None:
    at = np.arange(200)
    series = np.where(at < 100, np.sin(2 * np.pi * at / 8), np.sin(2 * np.pi * at / 19))
    scores = through(sst.Sst(config(), rank=2), [0] * 200, series.tolist())
    first = 200 - len(scores)
    by_place = {first + place: value for place, value in enumerate(scores)}
    assert max(by_place[place] for place in range(60, 100)) < 0.01
    assert max(by_place[place] for place in range(100, 140)) > 0.3


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (regex.Match, {"pattern": "("}, "match: pattern"),
        (regex.Match, {"idle": -1}, "match: idle"),
        (vwap.Vwap, {"window": 0}, "vwap: window"),
        (sst.Sst, {"rank": 30}, "sst: found"),
    ],
)
def test_options_that_cannot_be_are_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        make(config(), **options)


@pytest.mark.parametrize("module", [regex, vwap, sst])
def test_a_generator_writes_what_the_system_reads(module: Any, tmp_path: Path) -> None:
    module.make(tmp_path, 30, np.random.default_rng(1))
    settings = load(tmp_path / "tsunagi.toml")
    assert settings.query.mode == "tuples"
    table = read_sensors(settings.sensors)
    lines = settings.source.path.read_text(encoding="utf-8").splitlines()
    assert lines[0].split(",") == [sensor.name for sensor in table.sensors]
    assert len(lines) == 31
