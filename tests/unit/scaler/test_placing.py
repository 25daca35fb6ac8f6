"""The first placement: spread, or by what the recovery model knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.recovery.splits import Split, split
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.low_rank import LowRank
from tsunagi.recovery.model import Model
from tsunagi.recovery.partition import objective
from tsunagi.runtime.sensors import Sensor, SensorTable, place
from tsunagi.runtime.settings import Settings, SlotsSettings
from tsunagi.scaler import placing
from tsunagi.scaler.placing import budget_warning, place_sensors, sized

N = 24


@pytest.fixture
def table() -> SensorTable:
    return SensorTable(tuple(Sensor(row, f"s{row}", f"e{row % 4}") for row in range(N + 1)))


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """Sensors 0-5, 6-11, ... tell of each other; the model has them backwards, and lacks the last."""
    prior = np.kron(np.eye(4), 0.9 * np.ones((6, 6))) + 0.1 * np.eye(N)
    zeros = np.zeros(N)
    names = tuple(f"s{row}" for row in reversed(range(N)))
    path = tmp_path / "model.bin"
    Model(names, zeros, zeros + 1, zeros + 0.9, 0.19 * prior, prior, zeros).save(path)
    return path


def settings(method: str, model: Path | str = "", slots: int = 4) -> Settings:
    return Settings(slots={"count": slots, "placement": method}, recovery={"model": str(model)})


def test_sensors_that_tell_of_each_other_come_together(table: SensorTable, model_file: Path) -> None:
    placed = place_sensors(settings("proposed-swap", model_file), table)
    assert placed.dtype == np.uint32
    assert np.bincount(placed[:N]).tolist() == [6, 6, 6, 6]
    for first in range(0, N, 6):
        assert len(set(placed[first : first + 6].tolist())) == 1
    assert placed[N] == place(table, 4)[N], "the model does not know it"


def test_a_model_of_low_rank_places_as_its_matrices_would(table: SensorTable, model_file: Path) -> None:
    whole = Model.load(model_file)
    loadings = np.sqrt(0.9) * np.kron(np.eye(4), np.ones((6, 1)))
    known = LowRank(loadings, np.full(N, 0.1))
    assert np.allclose(known.dense(), whole.prior)
    before = place_sensors(settings("proposed-swap", model_file), table)
    whole.with_low_rank(transition=whole.transition, noise=known.times(0.19), known=known).save(model_file)
    assert place_sensors(settings("proposed-swap", model_file), table).tolist() == before.tolist()


@pytest.mark.parametrize("method", ["proposed", "vanilla", "random"])
def test_every_method_is_balanced(table: SensorTable, model_file: Path, method: Split) -> None:
    correlation = Model.load(model_file).prior[::-1, ::-1]
    edges = [f"e{row % 4}" for row in range(N)]
    placed = split(correlation, edges, 4, method)
    assert np.bincount(placed).tolist() == [6, 6, 6, 6]
    best = place_sensors(settings("proposed-swap", model_file), table)[:N].astype(np.intp)
    assert objective(correlation, edges, placed) <= objective(correlation, edges, best)


def test_spread_needs_no_model_and_the_others_do(table: SensorTable, model_file: Path) -> None:
    assert place_sensors(settings("spread"), table).tolist() == place(table, 4).tolist()
    with pytest.raises(ModelError, match="without a"):
        place_sensors(settings("proposed-swap"), table)
    with pytest.raises(ModelError, match=r"found 24 sensors .* 25 or more"):
        place_sensors(settings("proposed-swap", model_file, slots=25), table)


def test_a_slot_whose_step_does_not_fit_is_told_of(
    table: SensorTable, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("spread", model_file, slots=2)
    placed = place_sensors(chosen, table)
    assert budget_warning(chosen, table, placed) == ""
    slide_s = chosen.steps.slide_s
    monkeypatch.setattr(placing, "step_seconds", lambda model: 0.02 * slide_s * len(model) ** 2)
    assert "`tsunagi slots 5` makes that many of 2" in budget_warning(chosen, table, placed)
    assert budget_warning(settings("spread", slots=2), table, placed) == ""


def test_new_topics_get_as_few_slots_as_the_time_of_a_step_allows(
    table: SensorTable, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(least: int, most: int, cost: float) -> int:
        chosen = settings("spread", model_file, slots=least)
        chosen = chosen.model_copy(update={"slots": SlotsSettings(count=least, most=most)})
        monkeypatch.setattr(placing, "step_seconds", lambda model: cost * chosen.steps.slide_s * len(model) ** 2)
        return sized(chosen, table).slots.count

    assert count(2, 8, 0.5 / 12**2) == 2  # 12 sensors just fit
    assert count(2, 8, 0.5 / 6**2) == 4
    assert count(2, 3, 0.5 / 6**2) == 3
    assert count(2, 0, 0.5 / 6**2) == 2
    assert count(6, 8, 0.5 / 12**2) == 6


def test_of_a_large_slot_a_part_is_measured(
    table: SensorTable, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("spread", model_file, slots=1)
    asked: list[int] = []

    def seconds(model: Model) -> float:
        asked.append(len(model))
        return 0.02 * chosen.steps.slide_s

    monkeypatch.setattr(placing, "MEASURED_AT_MOST", 4)
    monkeypatch.setattr(placing, "step_seconds", seconds)
    assert "24 sensors" in budget_warning(chosen, table, place_sensors(chosen, table))  # 36 times what 4 of them take
    assert asked == [4]


def test_a_step_can_be_measured(model_file: Path) -> None:
    assert placing.step_seconds(Model.load(model_file)) > 0
