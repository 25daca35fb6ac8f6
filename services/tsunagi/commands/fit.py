"""`tsunagi fit`: in memory or through Spark."""

from __future__ import annotations

from pathlib import Path

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import FitReport
from tsunagi.recovery.fit import IN_MEMORY_BYTES, fit_history
from tsunagi.recovery.history import list_history
from tsunagi.recovery.model import Model
from tsunagi.recovery.progress import Tell, silent
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings


def fit_anywhere(
    settings: Settings,
    path: Path,
    table: SensorTable,
    rows: float,
    period: str,
    *,
    spark: bool | None = None,
    sample: int | None = None,
    tell: Tell = silent,
) -> tuple[Model, FitReport]:
    """Fit a model in memory, or through Spark.

    Args:
        rows: share of the rows from the start, in (0, 1].
        spark: where; None = through Spark if the readings take more than `IN_MEMORY_BYTES`.
        sample: see `tsunagi_spark.fit.fit_history`.
        tell: is told how far it is.

    Raises:
        ModelError: naming file and line, what was found and expected; or Spark is not installed.
    """
    size = list_history(path).size_bytes * rows
    if spark is False or (spark is None and size <= IN_MEMORY_BYTES):
        return fit_history(path, table, settings.steps, rows, period, tell=tell)
    try:
        from tsunagi_spark.fit import fit_history as through_spark  # noqa: PLC0415 - pulls in Spark, which a small fit does not need
    except ImportError as error:
        raise ModelError(
            f"{path}: about {size / 2**20:.0f} MiB of readings are fitted through Spark, but {error.name} is not "
            "installed here: use the image tsunagi-spark"
        ) from None
    return through_spark(settings, path, table, share=rows, period=period, sample=sample, tell=tell)
