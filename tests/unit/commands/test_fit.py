"""`tsunagi fit` fits in memory what is small, and says what is missing for the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tsunagi.commands.fit import fit_anywhere
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.fit import fit_history
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi.runtime.settings import Settings


@pytest.mark.slow
def test_large_histories_go_through_spark_and_it_is_said_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    values = 20 + np.cumsum(rng.normal(size=(120, 1)), axis=0) + 0.3 * rng.normal(size=(120, 3))
    file = tmp_path / "small.csv"
    file.write_text("a,b,c\n" + "".join(",".join(f"{cell:.3f}" for cell in row) + "\n" for row in values))
    table = SensorTable(tuple(Sensor(i, name, f"e{i % 2}", unit="K") for i, name in enumerate("abcd")))
    settings = Settings()
    plain, _ = fit_anywhere(settings, file, table, 1.0, "none")
    assert plain.identity == fit_history(file, table, settings.steps)[0].identity
    monkeypatch.setattr("tsunagi.recovery.fit.IN_MEMORY_BYTES", 100)
    monkeypatch.setitem(sys.modules, "tsunagi_spark.fit", None)
    with pytest.raises(
        ModelError, match=r"small\.csv: about 0 MiB .* through Spark, but .* tsunagi_spark.fit .* `make"
    ):
        fit_anywhere(settings, file, table, 1.0, "none")
    assert fit_anywhere(settings, file, table, 1.0, "none", spark=False)[0].identity == plain.identity
    monkeypatch.setattr("tsunagi.recovery.estimation.WHOLE_AT_MOST", 2)
    assert fit_anywhere(settings, file, table, 1.0, "none")[0].identity == plain.identity
    with pytest.raises(ModelError, match=r"found 3 sensors, expected at most 2 with --spark or --sample; --in-memory"):
        fit_anywhere(settings, file, table, 1.0, "none", spark=True)
