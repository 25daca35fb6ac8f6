"""The settings make what asks the policy, with the rates from before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.settings import ScalerSettings, SizeSettings
from tsunagi.scaler.elastic import make_policy_runner, read_history
from tsunagi.scaler.policy_runner import ScalerMeasurement
from tsunagi.scaler.trace import TraceError

SLOT_S = 10.0


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Half a minute and 4 s at 100 tuples/s, the last slot at 300."""
    file = tmp_path / "history.csv"
    rows = [f"{2 * i},{100.0 if i < 12 else 300.0}" for i in range(17)]
    file.write_text("\n".join(["t_s,rate_per_s", *rows]) + "\n", encoding="utf-8")
    return file


def test_a_history_is_the_newest_whole_slots_in_the_policy_s_steps(history: Path) -> None:
    rates = read_history(history, SLOT_S)
    assert rates == pytest.approx(np.repeat([100.0, 300.0], [20, 10]))


def test_a_policy_begins_with_its_history(history: Path) -> None:
    sizes = {"local": SizeSettings(rate=220.0), "small": SizeSettings(rate=50.0, price_h=1.0)}
    launched = {}
    for told in ("", str(history)):
        scaler = ScalerSettings(policy="elasticstream", forecast="ewma", slot_s=SLOT_S, sizes=sizes, history=told)
        runner = make_policy_runner(scaler, 0.0)
        assert runner is not None
        runner.step(ScalerMeasurement(0.0, 0.0, 0.0, 0.0, {}, (), 220.0), 0.0)
        decision = runner.step(ScalerMeasurement(2500.0, 0.0, 0.0, 0.0, {}, (), 220.0), SLOT_S)
        assert decision is not None
        launched[told] = decision.launches.get("small", 0)
    assert launched[""] == 1  # 250 tuples/s, and 220 here
    assert launched[str(history)] == 0  # with what came before the mean is 215


def test_a_history_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    scaler = ScalerSettings(
        policy="lookahead", sizes={"small": SizeSettings(rate=50.0, price_h=1.0)}, history=str(tmp_path / "none.csv")
    )
    with pytest.raises(TraceError, match=r"none\.csv: no such file"):
        make_policy_runner(scaler, 0.0)
