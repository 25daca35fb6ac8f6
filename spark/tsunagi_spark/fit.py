"""`tsunagi fit` for a history larger than one machine's memory: its second moments in one pass, in Spark.

1. The driver finds structure, shrinkage, profile and calibration by trials with hidden edges, on as many of the last
steps as fit into memory (`estimation.estimate`).
2. In Spark, each task reads a share of the rows, computes their windows and sums their products (`shares`, `sums`). The
sums travel in tiles, and each tile is added up in one place.
3. The driver makes the model of that structure from these moments.

Tasks read the files themselves, so the driver and all workers must see them under the same names.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import (
    FitReport,
    about_of,
    base_of,
    duplicates,
    estimate,
    read_often,
    unfitted,
    units_of,
)
from tsunagi.recovery.fit import HistoryColumns, described, period_of
from tsunagi.recovery.history import list_history
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import GivenMoments
from tsunagi.recovery.numbering import numbered
from tsunagi.recovery.search import HistoryPart
from tsunagi.recovery.shares import HistoryShare, HistorySteps, RowCounts, summed, whole_steps
from tsunagi.recovery.sums import TILE, HistorySums, Tile, Units, tile_places
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.marked import mark
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import ConfigError, Settings, TableSettings
from tsunagi_spark.session import session_options, start_session

SAMPLE_BYTES = 256 * 2**20
"""Bytes of the last steps, as float64, with which the structure is searched."""
LEAST_SAMPLE = 1000
"""The structure is searched with at least this many steps, however many bytes they take."""
SEARCHED = 1600
"""Most sensors with which the structure is searched: the search makes and tries some dozens of models with n^3
operations each."""
TILES_A_PART = 12
"""Tiles that one task adds up, of 2 MB each."""
SCHEMA = "part int, lag int, name string, row int, col int, data binary"
"""Schema of the rows that tasks exchange, in Spark's notation."""
COUNTED, ERROR = "counted", "error"
"""Names of rows that hold no sums: what was counted, and why a share cannot be summed."""

_ARROW = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("lag", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("row", pa.int32()),
        pa.field("col", pa.int32()),
        pa.field("data", pa.binary()),
    ]
)
"""The same schema in Arrow's notation."""

Places = npt.NDArray[np.intp]
Tell = Callable[[str], None]
Batches = Iterator[pa.RecordBatch]


def start(settings: Settings) -> SparkSession:
    """Start Spark for a fit. What it shuffles, up to gigabytes, goes beside the checkpoint, since /tmp may be memory.

    Raises:
        ConfigError: the directory of the checkpoint cannot be made, or `start_session` refuses the settings.
    """
    scratch = settings.spark.checkpoint.absolute()
    try:
        mark(scratch)
    except OSError as error:
        raise ConfigError(f"[spark] checkpoint = {settings.spark.checkpoint}: {error}") from None
    options = {"spark.local.dir": str(scratch)} | settings.spark.options
    own = settings.spark.model_copy(update={"options": options})
    return start_session(settings.model_copy(update={"spark": own}))


def fit_history(
    settings: Settings,
    path: Path,
    table: SensorTable,
    *,
    share: float = 1.0,
    period: str = "none",
    sample: int | None = None,
    form: TableSettings | None = None,
    tell: Tell = lambda _line: None,
    session: SparkSession | None = None,
) -> tuple[Model, FitReport]:
    """Fit a model: the one that `tsunagi.recovery.fit.fit_history` finds, if the sample is the whole history.

    Args:
        path: as there; every worker must see it too.
        share: share of the rows from the start, in (0, 1].
        period: as there.
        sample: number of last steps for structure, profile and calibration; None means as many as `SAMPLE_BYTES` allow.
        form: how the files are read, if they do not tell by themselves; None = as [source.table] says.
        tell: called with lines that say how far the fit is.
        session: the session to use; None starts one for the pass and stops it afterwards.

    Raises:
        ModelError: the history cannot be used; the message names file and line, what was found and expected.
        ConfigError: Spark cannot be started.
    """
    if session is None:
        session_options(settings)  # a session that cannot be started is reported before the search
    if not 0 < share <= 1:
        raise ModelError(f"{path}: rows: found the share {share}, expected more than 0 and at most 1")
    files = list_history(path, settings.source.table if form is None else form)
    columns = HistoryColumns.of(files, table, settings.steps)
    files = files.part(share)
    work = HistorySteps.of(files, columns, settings.steps)
    most = sample or max(LEAST_SAMPLE, SAMPLE_BYTES // (8 * len(files.names)))
    chosen = work.last_steps(most)
    tell(f"reading the last {chosen.end - chosen.first} of {max(0, work.end - work.first)} steps")
    found: list[tuple[HistorySums, RowCounts]] = []

    def whole(lags: tuple[int, ...], profile: tuple[int, ...]) -> HistoryPart:
        base = base_of(names, searched[:, keep], profile, first_step)
        units = Units(base.mean, base.scale, base.profile)
        if session is None:
            tell(f"starting Spark, {settings.spark.master}")
        used = start(settings) if session is None else session
        tell(f"summing {work.end - work.first} steps")
        try:
            sums, counted = sum_up(used, work, keep, lags, units, settings.spark.checkpoint, tell)
        finally:
            if session is None:
                used.stop()
        found.append((next(iter(sums.values())), counted))
        tell("making the model")
        mean, sd = found[0][0].mean_and_sd()
        scale, _ = units_of(mean, sd)
        waves = None if base.profile is None else base.profile * (base.scale / scale)
        moments = GivenMoments({lag: of.moments(mean, scale) for lag, of in sums.items()})
        return HistoryPart(unfitted(names, mean, scale).around(mean, waves), moments)

    try:
        searched = whole_steps(work, chosen)
        first_step = chosen.first if work.cut.numbered else 0
        keep = np.array(read_often(searched), dtype=np.intp)
        names = tuple(columns.keys[place] for place in keep)
        tried = keep[some_sensors([columns.edges[place] for place in keep], SEARCHED)]
        tell(f"searching for the structure with {len(tried)} of {len(keep)} sensors")
        model, report = estimate(
            searched[:, tried],
            [columns.keys[place] for place in tried],
            edges=[columns.edges[place] for place in tried],
            period=period_of(period, settings.steps, work.cut),
            first_step=first_step,
            whole=whole,
        )
    except ModelError as error:
        raise ModelError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    sums, counted = found[0]
    report = _of_all(report, sums, work, searched, keep)
    about = described(model, columns.sensors, settings.steps, work.cut) | about_of(report)
    about |= {
        "period": [_moment(files.pieces[0].first), _moment(work.newest)] if files.timed else [],
        "rows": [0, counted.rows],
        "outside_range": counted.outside,
        "sample_steps": chosen.end - chosen.first,
    }
    return model.with_words(about=about), report


def _of_all(report: FitReport, sums: HistorySums, work: HistorySteps, searched: Floats, keep: Places) -> FitReport:
    """Return the report with what it says about the whole history and about all sensors."""
    names = [work.files.names[place] for place in keep]
    known = set(names)
    steps = work.end - work.first
    _, constant = units_of(*sums.mean_and_sd())
    return replace(
        report,
        steps=steps,
        sensors=len(names),
        missing_share=round(float(1 - sums.count.sum() / (steps * len(names))), 6),
        left_out=tuple(name for name in work.files.names if name not in known),
        constant=tuple(name for name, stands in zip(names, constant, strict=True) if stands),
        duplicated=duplicates(searched[:, keep], tuple(names), constant),
    )


def some_sensors(edges: Sequence[str], most: int) -> Places:
    """Return the places of `most` sensors at most, ascending: those of whole edges, evenly chosen, then others."""
    if len(edges) <= most:
        return np.arange(len(edges))
    of, order = numbered(edges)
    sizes = np.bincount(of)
    wanted = max(1, int(len(order) * most / len(edges)))
    taken = np.unique(np.linspace(0, len(order) - 1, wanted).round().astype(np.intp))
    fitting = taken[np.cumsum(sizes[taken]) <= most]
    inside = np.isin(of, fitting)
    rest = np.flatnonzero(~inside)
    more = rest[np.unique(np.linspace(0, len(rest) - 1, most - int(inside.sum())).round().astype(np.intp))]
    return np.sort(np.concatenate([np.flatnonzero(inside), more]))


def sum_up(
    session: SparkSession,
    work: HistorySteps,
    keep: Places,
    lags: Sequence[int],
    units: Units,
    scratch: Path,
    tell: Tell,
) -> tuple[dict[int, HistorySums], RowCounts]:
    """Return the sums of a whole history, from one pass over it.

    Args:
        keep: intp[k], the columns that the model has.
        lags, units: as in `HistorySums`.
        scratch: a directory that the driver and all workers see. The sums, up to gigabytes, come to the driver in files
            there, because they would not fit into the heap of Spark's driver.

    Returns:
        the sums by lag, and the counts of rows and implausible readings.

    Raises:
        ModelError: rows cannot be read, or are not in the order of time.
    """
    shares = work.shares(session.sparkContext.defaultParallelism, max(lags))
    total, counted = {lag: HistorySums(len(keep), lag, units) for lag in lags}, RowCounts(0, 0)
    tiles = sum(3 * len(tile_places(of.width, triangle=False)) for of in total.values())
    parts = -(-tiles // TILES_A_PART)
    # A tile has some megabytes, so only a few travel at a time.
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    with tempfile.TemporaryDirectory(prefix="fit-", dir=scratch) as directory:
        frame = (
            session.range(0, len(shares), numPartitions=len(shares))
            .mapInArrow(_summing(work, shares, keep, lags, units, parts), SCHEMA)
            .repartitionById(parts, "part")
            .mapInArrow(_adding(Path(directory).absolute()), SCHEMA)
        )
        with _Progress(session, len(shares), tell):
            rows = frame.collect()
        for row in rows:
            if row["name"] == ERROR:
                raise ModelError(row["data"].decode())
            file = Path(row["data"].decode())
            data = np.fromfile(file)
            file.unlink()
            if row["name"] == COUNTED:
                counted = RowCounts(int(data[0]), int(data[1]))
                continue
            key = row["name"], row["row"], row["col"]
            sums = total[row["lag"]]
            sums.join(Tile(key, _shaped(data, key, sums.width)))
    return total, counted


def _shaped(data: Floats, key: tuple[str, int, int], width: int) -> Floats:
    return data if key[0] == "vectors" else data.reshape(-1, min(TILE, width - key[2] * TILE))


def _summing(
    work: HistorySteps, shares: list[HistoryShare], keep: Places, lags: Sequence[int], units: Units, parts: int
) -> Callable[[Batches], Batches]:
    """Return the stage that sums the shares whose numbers it is given."""

    def stage(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    found, counted = summed(work, shares[number], keep, lags, units)
                except ModelError as error:  # the user's error: Spark would try again and print a stack trace
                    yield _row(0, (0, ERROR, 0, 0), str(error).encode())
                    return
                yield _row(0, (0, COUNTED, 0, 0), np.array(counted, dtype=np.float64).tobytes())
                for place, (lag, sums) in enumerate(found.items()):
                    for tile in sums.tiles():
                        part = (17 * place + 31 * tile.key[1] + tile.key[2]) % parts
                        yield _row(part, (lag, *tile.key), tile.data.tobytes())

    return stage


def _adding(directory: Path) -> Callable[[Batches], Batches]:
    """Return the stage that adds up tiles with the same key, writes them to files and returns the files' names."""

    def stage(batches: Batches) -> Batches:
        found: dict[tuple[int, str, int, int], Floats] = {}
        for batch in batches:
            for row in batch.to_pylist():
                key = row["lag"], row["name"], row["row"], row["col"]
                if row["name"] == ERROR:
                    yield _row(0, key, row["data"])
                    continue
                data = np.frombuffer(row["data"], dtype=np.float64)
                if key in found:
                    found[key] += data
                else:
                    found[key] = data.copy()
        for key, data in found.items():
            file = directory / "-".join(map(str, (*key, uuid.uuid4().hex)))
            data.tofile(file)
            yield _row(0, key, str(file).encode())

    return stage


def _row(part: int, key: tuple[int, str, int, int], data: bytes) -> pa.RecordBatch:
    columns = [[part], *([value] for value in key), [data]]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


class _Progress:
    """Reports how many shares have been summed, while they are."""

    def __init__(self, session: SparkSession, shares: int, tell: Tell, every_s: float = 2.0) -> None:
        self._tracker = session.sparkContext.statusTracker()
        self._shares, self._tell, self._every_s = shares, tell, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        told = 0
        while not self._over.wait(self._every_s):
            stages = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
            done = max(
                (stage.numCompletedTasks for stage in stages if stage and stage.numTasks == self._shares), default=0
            )
            if done > told:
                told = done
                self._tell(f"summed {done} of {self._shares} shares")


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
