"""What one worker of a type can process, measured without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import (
    ConfigError,
    OperatorSettings,
    QuerySettings,
    ScalerSettings,
    Settings,
    SizeSettings,
    SlotsSettings,
)
from tsunagi.scaler.benchmark import _Feed, limited, measure


def settings(tmp_path: Path, mode: str = "tuples", **sizes: SizeSettings) -> Settings:
    sensors = tmp_path / "sensors.csv"
    rows = [f"s{number},edge-{number % 2},g," for number in range(7)]
    sensors.write_text("\n".join(["sensor,edge,group,threshold", *rows]) + "\n", encoding="utf-8")
    return Settings(
        sensors=sensors,
        slots=SlotsSettings(count=2),
        query=QuerySettings(mode=mode, operators=(OperatorSettings(use="select"),)),
        scaler=ScalerSettings(sizes=sizes),
    )


@pytest.mark.parametrize("mode", ["tuples", "steps"])
def test_every_made_up_tuple_is_processed(tmp_path: Path, mode: str) -> None:
    feed = _Feed(settings(tmp_path, mode), _table(tmp_path))
    assert feed.run(0.05) > 100
    slot = feed._slot
    assert slot.position == feed._offset
    assert slot.letters.counts == {}  # nothing was late, ahead or refused
    assert slot.last_name.offset >= feed._offset - 8


def test_tuples_of_several_columns_go_through_their_queries(tmp_path: Path) -> None:
    statements = tmp_path / "trades.sql"
    statements.write_text(
        "CREATE STREAM trades (symbol TEXT KEY, note TEXT, price DOUBLE, open BOOLEAN, paid TIMESTAMP, volume BIGINT);"
        "CREATE QUERY q AS SELECT symbol, note, open, paid, price * volume AS money FROM trades",
        encoding="utf-8",
    )
    asked = settings(tmp_path).model_copy(update={"query": QuerySettings(mode="tuples", files=(statements,))})
    feed = _Feed(asked, _table(tmp_path))
    assert feed.run(0.05) > 100
    assert feed._slot.letters.counts == {}
    assert feed._slot.last_name.offset == feed._offset - 1  # each tuple gives a row


def _table(tmp_path: Path) -> SensorTable:
    return read_sensors(tmp_path / "sensors.csv")


def test_a_size_sets_the_limit_and_a_second_core_adds_nothing() -> None:
    assert limited(1000.0, SizeSettings(cpus=0.5)) == 500.0
    assert limited(1000.0, SizeSettings(cpus=4.0)) == 1000.0
    assert limited(1000.0, SizeSettings(limit=40.0)) == 40.0


@pytest.mark.slow
def test_a_type_is_measured_and_the_progress_told(tmp_path: Path) -> None:
    said: list[str] = []
    assert measure(settings(tmp_path, small=SizeSettings(limit=40.0)), "small", 0.05, said.append) == 40.0
    assert len(said) == 6


def test_a_type_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"huge.*local, small"):
        measure(settings(tmp_path, small=SizeSettings()), "huge", 0.05, print)
