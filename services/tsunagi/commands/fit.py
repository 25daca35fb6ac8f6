"""`tsunagi fit`: fits a recovery model, in memory or through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tsunagi.commands.options import FILE, TABLE, Number, OutputFile

if TYPE_CHECKING:
    from tsunagi.recovery.estimation import FitReport
    from tsunagi.recovery.model import Model
    from tsunagi.recovery.progress import Tell
    from tsunagi.runtime.sensors import SensorTable
    from tsunagi.runtime.settings import Settings, TableSettings

_PERIOD = "Period of the profile, such as 144 or 24h; auto looks for one. A profile stays only if it predicts better."
"""Help text of --period."""
_SAMPLE = "Steps at the end on which Spark searches the structure [default: 256 MiB of them]."
"""Help text of --sample."""
IN_MEMORY_TIMES = 7
"""A fit in memory takes at most this many times the memory of its readings."""


@click.command()
@click.argument("history", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--from-log", is_flag=True, help="Fit to what the edges of the running system have sent.")
@click.option("--last", metavar="LENGTH", help="With --from-log: how long back, such as 90m or 24h [default: all].")
@click.option("--sensors", type=FILE, help="Sensors table [default: the configured one].")
@click.option(
    "--rows", default=1.0, type=Number(0, 1, min_open=True), help="Share of the rows, from the first, to fit to."
)
@click.option("--period", default="auto", metavar="STEPS|DURATION|auto|none", help=_PERIOD)
@click.option(
    "--spark/--in-memory",
    default=None,
    help="Where to fit [default: Spark past 512 MiB of readings of up to 5000 sensors].",
)
@TABLE
@click.option("--sample", type=click.IntRange(12, 10**9), metavar="STEPS", help=_SAMPLE)
@click.option("--out", type=OutputFile(), required=True, help="File to which the model is written.")
def fit(
    history: Path | None,
    from_log: bool,
    last: str | None,
    sensors: Path | None,
    rows: float,
    period: str,
    spark: bool | None,
    keys: tuple[str, ...],
    sample: int | None,
    out: Path,
) -> None:
    """Fit a recovery model to past readings.

    HISTORY is a CSV or Parquet file, or a directory of such files. A wide one has a column for each sensor, where an
    empty cell or null means no reading, and may have a column `time` (ISO 8601 or timestamps with a zone, or epoch
    seconds). A long one has a row a reading, in any order, with columns such as time, sensor and value. [results] files
    are such tables, and only their measured rows count. If the times are about [steps] interval_s apart, the profile of
    the model is in phase with the running system, and gaps count as missing steps. Spark ([spark] master) sums a wide
    history in one pass; its workers must see the same files and [spark] checkpoint. More: docs/howto/recovery.md

    With --from-log it takes no HISTORY, but what the edges of the running system have sent, as its log holds it.

    \b
    tsunagi fit --from-log --last 24h --out out/models/first.bin
    tsunagi fit data/guangzhou.csv --rows 0.4 --out out/model.bin
    tsunagi fit /history --period 24h --out out/model.bin
    tsunagi fit log.csv --table sensor=tag --table time_unit=ms --out m.bin
    docker-compose run --rm --no-deps spark \\
      fit data/history --spark --out /models/model.bin
    """
    from tsunagi.local.logged import read_logged
    from tsunagi.recovery.fit import fit_steps, summary
    from tsunagi.runtime.sensors import read_sensors
    from tsunagi.runtime.settings import load
    from tsunagi.runtime.times import read_length_us

    def tell(line: str) -> None:
        click.echo(line, err=True)

    if (history is None) != from_log:
        raise click.UsageError("Expected either a HISTORY or --from-log.")
    if last is not None and not from_log:
        raise click.UsageError("--last goes with --from-log; of a HISTORY take --rows.")
    length_us = None if last is None else read_length_us(last)
    if last is not None and length_us is None:
        raise click.BadParameter(
            f"found {last!r}, expected a length of time such as 90s, 30m, 24h or 7d", param_hint="--last"
        )
    settings = load()
    if history is None:
        if rows != 1.0 or spark or sample is not None or keys or sensors is not None:
            raise click.UsageError(
                "--from-log fits in memory, to all that --last names, by the sensors table in force: expected no "
                "--rows, --spark, --sample, --table, --sensors."
            )
        found, table = read_logged(settings, length_us, tell)
        model, report = fit_steps(found, table, settings.steps, period, tell=tell)
    else:
        form = settings.source.table.changed(keys)
        table = read_sensors(sensors or settings.sensors)
        model, report = fit_anywhere(
            settings, history, table, rows, period, spark=spark, sample=sample, form=form, tell=tell
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"{out}: {len(model)} sensors, sha256 {model.save(out)}")
    for line in summary(model, report, settings.steps):
        click.echo(line)


def fit_anywhere(
    settings: Settings,
    path: Path,
    table: SensorTable,
    rows: float,
    period: str,
    *,
    spark: bool | None = None,
    sample: int | None = None,
    form: TableSettings | None = None,
    tell: Tell = lambda _line: None,
) -> tuple[Model, FitReport]:
    """Fit a model in memory, or through Spark.

    Args:
        settings: the settings of the system that will use the model.
        path: the history: a file, or a directory of files.
        table: the sensors.
        rows: the share of the rows to fit to, from the first, in (0, 1].
        period: the period of the profile, as for --period.
        spark: whether to fit through Spark. None does so if the readings take more than `IN_MEMORY_BYTES` and a model
            of so many sensors has whole matrices: what Spark sums are such matrices.
        sample: as for `tsunagi_spark.fit.fit_history`.
        form: how the files are read, if they do not tell by themselves; None = as [source.table] says.
        tell: called with each line of progress.

    Raises:
        ModelError: the history cannot be used (the message names file and line, what was found and what was expected),
            or Spark is not installed.
    """
    from tsunagi.installation import missing
    from tsunagi.recovery.errors import ModelError
    from tsunagi.recovery.estimation import WHOLE_AT_MOST
    from tsunagi.recovery.fit import IN_MEMORY_BYTES, fit_history, fit_steps
    from tsunagi.recovery.history import list_history
    from tsunagi.recovery.table_history import has_long, read_tables

    form = settings.source.table if form is None else form
    if has_long(path, form):
        if spark or sample is not None:
            raise ModelError(f"{path}: found a long table, which is fitted in memory: expected no --spark, --sample")
        found = read_tables(path, table, settings.steps, form, rows, tell=tell)
        return fit_steps(found, table, settings.steps, period, tell=tell)
    files = list_history(path, form)
    size, sensors = files.size_bytes * rows, len(files.names)
    if sensors > WHOLE_AT_MOST and (spark or sample is not None):
        raise ModelError(
            f"{path}: found {sensors} sensors, expected at most {WHOLE_AT_MOST} with --spark or --sample; "
            f"--in-memory takes about {IN_MEMORY_TIMES * size / 2**30:.1f} GiB"
        )
    if spark is False or (spark is None and (size <= IN_MEMORY_BYTES or sensors > WHOLE_AT_MOST)):
        return fit_history(path, table, settings.steps, rows, period, form=form, tell=tell)
    try:
        from tsunagi_spark.fit import fit_history as through_spark
    except ImportError as error:
        raise ModelError(
            f"{path}: about {size / 2**20:.0f} MiB of readings are fitted through Spark, but Python's module "
            f"{error.name} is not installed here; {missing('spark')}, or use the image tsunagi-spark"
        ) from None
    return through_spark(settings, path, table, share=rows, period=period, sample=sample, form=form, tell=tell)
