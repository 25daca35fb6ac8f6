"""`Pipeline`: a source, operators and settings, given in Python. It runs on Kafka, or in this process."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tsunagi.edge.tuple_form import form_of
from tsunagi.kafka_run import RunningResults, is_played
from tsunagi.local.queries import program_with
from tsunagi.local.up import System
from tsunagi.memory import run_in_memory
from tsunagi.operator_names import Given, PipelineError, importable, tables_of
from tsunagi.pipeline_files import Readings, Scan, rows_named, scan, write_events, write_readings, write_sensors
from tsunagi.query.definitions import definitions_of, read_definitions
from tsunagi.results import Results
from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.marked import mark
from tsunagi.runtime.moving import SensorSlots
from tsunagi.runtime.sensors import SensorTable, place, read_sensors
from tsunagi.runtime.settings import SecuritySettings, Settings, make
from tsunagi.runtime.times import LATEST_US
from tsunagi.runtime.toml_text import to_toml
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import build_chain
from tsunagi.system import processes

ORIGIN = "Pipeline"
"""Messages about settings that are given in Python name this as the place, instead of a file."""
FOLDER = "pipeline"
"""The directory below `state` into which the readings, the sensors table and the configuration of a pipeline are
written, for the services to read."""
QUERIES = "queries.cql"
"""The file of that folder with the queries that were given in Python."""
_DAY_US = 86_400_000_000
"""A day, in microseconds. Rows must have times at least a day after 1970: the lead and the windows before the first row
then have times after 1970 as well."""


class Pipeline:
    """Sends readings of sensors through operators, and gives ordered results.

    >>> from tsunagi import Operator, Pipeline
    >>> class Fahrenheit(Operator):
    ...     def process(self, frame):
    ...         return [frame.replace(mean=32 + 1.8 * frame.mean, sd=1.8 * frame.sd, bound=1.8 * frame.bound)]
    >>> rows = [{"in": 20.0, "out": 10.0}, {"in": 21.0}, {"in": 22.0, "out": 12.0}]
    >>> pipeline = Pipeline(rows, operators=[Fahrenheit], steps={"window": 1, "slide": 1})
    >>> for row in pipeline.run(memory=True):
    ...     print(f"{row.time:%H:%M:%S} {row.sensor} {row.value:.1f}")
    22:13:21 in 69.8
    22:13:22 in 71.6
    22:13:22 out 53.6

    Args:
        source: one of three things. A CSV or Parquet file (docs/howto/sources.md describes both). Rows in the order of
            time: each is a mapping of sensors to numbers (None means no reading), and may have a `time` (as in a CSV,
            or a datetime with a zone). Or a mapping with the keys of the table `[source]`, as live sources need it.
        operators: the operators, first to last: names (`"recover"`, `"module:Class"`), your own classes, or mappings of
            `use` (a name or a class) and options. The default is that of `[query] operators`.
        sensors: the sensors table: a file, or rows as mappings of its columns. By default each column of the readings
            is a sensor, and all sensors belong to one edge.
        settings: sections of the configuration, such as `steps={"window": 1, "slide": 1}`, and its plain keys, such as
            `state="out/plant"` (tsunagi.toml.example lists all). Environment variables override them. Without
            `[steps] interval_s`, the median time between two rows is used. A mapping of settings is given as
            `Pipeline(source, **settings)`.

    Raises:
        ConfigError: a setting cannot be used; the message names it, what was found and what was expected.
        PipelineError: the source or an operator is of a kind that cannot be used.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]],
        operators: Iterable[Given] | None = None,
        *,
        sensors: str | Path | Iterable[Mapping[str, Any]] | None = None,
        **settings: Any,  # noqa: ANN401 - `make` checks each section against its model
    ) -> None:
        self._tables: dict[str, Any] = {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()
        }
        self._readings: Path | Readings | None = None
        if isinstance(source, Mapping):
            self._tables["source"] = dict(source)
            if source.get("kind", "csv") == "csv":
                if not source.get("path"):
                    raise PipelineError(f"source: found {source!r}, expected a path, or the kind of a live source")
                self._readings = Path(source["path"])
        elif isinstance(source, str | Path):
            self._readings = Path(source)
        elif isinstance(source, Iterable):
            self._readings = list(source)
        else:
            raise PipelineError(f"source: found {source!r}, expected a file, rows, or a mapping of [source]")
        self._sensors = Path(sensors) if isinstance(sensors, str) else sensors
        if self._sensors is not None and not isinstance(self._sensors, Path):
            self._sensors = [dict(row) for row in self._sensors]
        if operators is not None:
            query = self._tables.setdefault("query", {})
            if isinstance(query, dict):  # `make` refuses anything else below
                query["operators"] = tables_of(operators)
        make(self._tables, ORIGIN)
        self._queries: list[str] = []
        self._events: dict[str, Path | list[dict[str, Any]]] = {}

    def query(self, text: str) -> Self:
        """Add queries in CQL (docs/reference/cql.md). `Results.query` gives their rows.

        >>> pipeline = Pipeline([{"in": 20.0}, {"in": 22.0}], steps={"window": 1, "slide": 1})
        >>> _ = pipeline.query("CREATE QUERY mean AS SELECT AVG(value) AS mean FROM readings [RANGE 1 MINUTE]")
        >>> [row["mean"] for row in pipeline.run(memory=True).query("mean")]
        [22.0]

        Args:
            text: statements, which semicolons separate. They may also stand in the files of `[query] files`.

        Returns:
            The pipeline.

        Raises:
            QueryError: the text is not CQL. Names of columns are checked when the pipeline is run.
        """
        definitions_of(text, ORIGIN)
        self._queries.append(text)
        return self

    def events(self, stream: str, events: str | Path | Iterable[Mapping[str, Any]]) -> Self:
        """Replay events beside the readings, for queries (CREATE STREAM, with lock-step).

        >>> pipeline = Pipeline([{"in": 20.0}] * 3, steps={"window": 1, "slide": 1})
        >>> _ = pipeline.query("CREATE STREAM doors (open BOOLEAN); CREATE QUERY n AS SELECT COUNT(*) AS n FROM doors")
        >>> _ = pipeline.events("doors", [{"time": 0.5, "open": True}, {"time": 0.7, "open": False}])
        >>> [row["n"] for row in pipeline.run(memory=True).query("n")]
        [2, 0]

        Args:
            stream: the stream's name.
            events: a CSV with a column `time`, or mappings of the stream's columns and `time`, in the order of time. If
                the readings have no times, times of events are seconds since the first row of the readings.

        Returns:
            The pipeline.
        """
        given = Path(events) if isinstance(events, str | Path) else [dict(row) for row in events]
        self._events[stream] = given
        return self

    def run(self, *, memory: bool = False, tell: Callable[[str], None] = lambda _line: None) -> Results:
        """Run the pipeline, and return its results. They end when the source ends; a live source does not end.

        On Kafka, the pipeline starts processes on this machine as `tsunagi up` does: a broker if a local one is
        configured and none answers, then workers, Spark and edges. They are stopped when the results end or are closed.
        A caller that does not read to the end closes them, for example by ``with pipeline.run() as results:``. A file
        is replayed once, as if its sensors reported now: its rows get times that begin now. To replay the file again,
        give another `state` and another `[kafka] prefix`. Other processes import your operators, so a script must run a
        pipeline under ``if __name__ == "__main__":``.

        With `memory`, everything runs in this process on a log in memory, in virtual time, and has ended when this
        method returns. It needs no broker and no Java, and keeps all results in memory. Edges and slots run the code of
        the services; the functions of the Spark job order and count the results (q1 to q3, window aggregates). Rows
        keep their times. Rows without times begin at 2023-11-14T22:13:20Z, `[steps] interval_s` apart. No process dies
        in such a run. Live sources and ``[source] repeat`` need Kafka.

        Results begin with the first whole window and end with the last one. With a recovery model, estimated results
        begin up to `[steps] max_skew_s` before the first window. `Results.counts` says what was left out.

        Args:
            memory: whether to run in this process instead of on Kafka.
            tell: called with a line for each thing that is started or waited for.

        Raises:
            QueryError: a query cannot be understood.
            PipelineError, SourceError, SensorsError, ModelError: the input cannot be used, for example because the time
                of its rows runs backwards.
            OperatorError: an operator cannot be made from its options.
            OperatorFailedError: in memory, an operator raised an exception; the message names the operator and the row.
                On Kafka the worker dies of the exception. After two deaths the record is set aside and counted.
            ProcessError, BrokerError, LogError: on Kafka, a process has died, or the broker does not answer.
        """
        return self._run_in_memory() if memory else self._run_on_kafka(tell)

    def _run_in_memory(self) -> Results:
        with tempfile.TemporaryDirectory(prefix="tsunagi-") as name:
            directory = Path(name)
            settings, table, found = self._prepare(copy.deepcopy(self._tables), directory)
            if found is None or settings.source.repeat:
                kind = "repeat = true" if settings.source.repeat else f"kind = {settings.source.kind!r}"
                raise PipelineError(f"source: found {kind}; expected a file or rows, which end, for a run in memory")
            first_us = ManualClock().now_us() if found.first_us is None else found.first_us
            if not _DAY_US <= first_us < LATEST_US:
                raise PipelineError(
                    f"source: time: found {first_us / 1e6:.15g} s since 1970 in the first row, expected a day or more"
                )
            source = settings.source.model_copy(
                # In virtual time nothing is late, so every reading is sent.
                update={"origin_us": settings.source.origin_us or first_us, "when_behind": "send"}
            )
            changes = {
                "state": directory / "run",
                "source": source,
                "security": SecuritySettings(),
                "recovery": settings.recovery.model_copy(update={"store": directory / "models"}),
                "results": settings.results.model_copy(update={"format": "blocks"}),
            }
            settings = settings.model_copy(update=changes)
            log, unusable = run_in_memory(settings, table)
            return Results(settings, log=log, unusable=unusable)

    def _run_on_kafka(self, tell: Callable[[str], None]) -> Results:
        tables = copy.deepcopy(self._tables)
        if "operators" in tables.get("query", {}):
            tables["query"]["operators"] = importable(tables["query"]["operators"])
        before = make(tables, ORIGIN)
        state = before.state
        running = [process.node for process in processes.list_processes(state) if processes.alive(process)]
        if running:
            raise PipelineError(
                f"state = {state}: found running processes ({', '.join(running)}), expected none; stop them, or name "
                "another state and another [kafka] prefix"
            )
        if self._readings is not None and before.source.when_behind == "skip" and is_played(state):
            raise PipelineError(
                f"state = {state}: found that a file was replayed from here before, and its times are over; expected "
                "another state, and another [kafka] prefix"
            )
        mark(state)
        directory = state / FOLDER
        directory.mkdir(exist_ok=True)
        settings, _, found = self._prepare(tables, directory)
        config = directory / "tsunagi.toml"
        config.touch(mode=0o600)  # the file may contain a password
        config.write_text(to_toml(tables), encoding="utf-8")
        return RunningResults(System(settings, config, tell), ends=found is not None and not settings.source.repeat)

    def _prepare(self, tables: dict[str, Any], directory: Path) -> tuple[Settings, SensorTable, Scan | None]:
        """Write the files that the services read, enter their paths into the tables of settings, and check everything.

        Returns:
            The settings, the sensors table, and what was found in the readings. The last one is None for a live source.
        """
        data = None if self._readings is None else write_readings(self._readings, directory)
        if data is not None:
            tables.setdefault("source", {})["path"] = data
        for stream, events in self._events.items():
            source = tables.setdefault("source", {})
            source["events"] = source.get("events", {}) | {stream: write_events(stream, events, directory)}
        sensors = self._sensors if isinstance(self._sensors, Path) else write_sensors(self._sensors, data, directory)
        tables["sensors"] = sensors.absolute()
        if self._queries:
            written = directory / QUERIES
            written.write_text(";\n".join(self._queries), encoding="utf-8")
            query = tables.setdefault("query", {})
            query["files"] = [*query.get("files", ()), written.absolute()]
        settings = make(tables, ORIGIN)
        with rows_named(directory):
            table = read_sensors(settings.sensors)
            lacking = bool(settings.source.events)
            found = None if data is None else scan(data, table, form_of(settings), lacking=lacking)
        if found is not None and found.interval_s is not None and "interval_s" not in tables.setdefault("steps", {}):
            tables["steps"]["interval_s"] = found.interval_s / settings.source.speed
            settings = make(tables, ORIGIN)
        program_with(settings, read_definitions(settings.query.files))
        build_chain(SlotConfig.make(settings, table, SensorSlots.fixed(place(table, 1)), 0), None)
        return settings, table, found
