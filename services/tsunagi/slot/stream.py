"""The stream of a slot without lock-step: the typed columns of its batches, and the queries over them.

`CREATE STREAM` says which columns a tuple has beside its key and its time. The key is the sensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from tsunagi.query.definitions import (
    PLAN,
    STREAM_ON_PLAN,
    definitions_of,
    in_order,
    makes_stream,
    read_definitions,
)
from tsunagi.query.encoding import encode_columns
from tsunagi.query.errors import QueryError
from tsunagi.query.form import misfits
from tsunagi.query.planning import Program
from tsunagi.query.tuple_plans import check_tuples, form_of_stream, tuple_program
from tsunagi.query.tuple_runs import QueryFailedError, TupleQueries
from tsunagi.query.values import WIRE, Column, Kind, concatenate
from tsunagi.runtime.messages import Past, Recovered, TupleBatch
from tsunagi.runtime.settings import Settings
from tsunagi.slot.batches import Batches
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.filled import FilledQuery
from tsunagi.slot.frames import Integers, OperatorError, OperatorFailedError, Run, place_of
from tsunagi.slot.packed import PackedRows

_STATE = "stream"
"""The name of the queries' state among those of a chain's operators."""


class Statements:
    """The statements that slots run: those of `[query] files`, as they are now, and those that `plan` has besides.

    Raises:
        QueryError: a statement of a file cannot be understood.
    """

    def __init__(self, settings: Settings) -> None:
        self._aggregates = [item.name for item in settings.query.aggregates]
        self._files = read_definitions(settings.query.files)
        check_tuples(self._files, self._aggregates)

    def texts(self, added: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the statements, each behind those that it reads, and why others are not among them, by name.

        Args:
            added: the statements that `plan` has, by name.
        """
        found = {item.name: item for item in self._files}
        refused: dict[str, str] = {}
        for name, text in added.items():
            try:
                (item,) = definitions_of(text, PLAN)
            except (QueryError, ValueError) as error:
                refused[name] = str(error)
                continue
            if makes_stream(item):
                refused[name] = STREAM_ON_PLAN
            else:
                found.setdefault(name, item)
        _, faults = tuple_program(list(found.values()), self._aggregates)
        refused |= {name: str(error) for name, error in faults.items()}
        return tuple(item.text for item in in_order(found.values()) if item.name not in refused), refused


@lru_cache(maxsize=16)
def _program(statements: tuple[str, ...]) -> Program:
    """Return the program of statements. It is kept, since a slot is restored from many contexts with the same ones."""
    return check_tuples([item for text in statements for item in definitions_of(text, PLAN)])


class SlotStream:
    """Reads the columns of batches, and runs the queries over them.

    Attributes:
        kinds: the columns of a tuple without key and time.
        typed: whether a tuple has such columns; if not, it is a reading of one number.

    Raises:
        OperatorError: a statement cannot be understood.
    """

    def __init__(self, config: SlotConfig) -> None:
        try:
            program = _program(config.statements)
        except QueryError as error:
            raise OperatorError(f"[query] files: {error}") from None
        published = [plan.name for plan in program.published]
        begins = {name: from_us for name, from_us in config.fills if name in published}
        self._filled = {name: FilledQuery(name, from_us, program, config) for name, from_us in begins.items()}
        others = [name for name in published if name not in begins] if begins else None
        self._queries = TupleQueries(program, config.state_bytes, others)
        stream = self._queries.stream
        form = form_of_stream(stream)
        self.typed = form is not None
        self.kinds: Mapping[str, Kind] = {} if form is None else form.kinds
        self._key = stream.key
        self._sensors = np.array(config.sensors, dtype=np.int64)
        self._names = config.names or ("",)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The size of the state of each query when it was last measured, bytes."""
        return {name: size for queries in self._all for name, size in queries.sizes.items()}

    @property
    def faults(self) -> Mapping[str, str]:
        """Why queries do not run any more, by name."""
        return {name: why for queries in self._all for name, why in queries.faults.items()}

    @property
    def filled(self) -> Sequence[FilledQuery]:
        """The queries that are or were filled with the past."""
        return list(self._filled.values())

    @property
    def _all(self) -> Iterator[TupleQueries]:
        yield self._queries
        yield from (item.queries for item in self._filled.values())

    # ---- columns

    def damaged(self, batch: TupleBatch) -> bool:
        """Return whether a batch's columns do not fit the stream. A column that it lacks is NULL."""
        rows = len(batch.sensor) >> 2
        for item in batch.column:
            kind = self.kinds.get(item.name)
            if kind is not None and (item.kind != kind.value or misfits(item, rows)):
                return True
        return False

    def columns(self, batches: Sequence[TupleBatch]) -> dict[str, Column]:
        """Return the columns of the rows of batches, one after the other."""
        if not self.kinds:
            return {}
        items = [({item.name: item for item in batch.column}, len(batch.sensor) >> 2) for batch in batches]
        found = {}
        for name, kind in self.kinds.items():
            width = WIRE[kind].itemsize
            values, valid, null = [], [], False
            pool: dict[str, int] = {}
            for mine, rows in items:
                item = mine.get(name)
                if item is None:
                    values.append(bytes(rows * width))
                    valid.append(bytes(rows))
                    null = null or rows > 0
                    continue
                if kind is Kind.TEXT:
                    codes = [pool.setdefault(text, len(pool)) for text in item.text] or [0]
                    values.append(np.array([codes[code] for code in _codes(item.value)], WIRE[kind]).tobytes())
                else:
                    values.append(item.value)
                valid.append(item.valid or b"\1" * rows)
                null = null or bool(item.valid)
            array = np.frombuffer(b"".join(values), dtype=WIRE[kind]).astype(kind.dtype)
            there = np.frombuffer(b"".join(valid), dtype=np.uint8) != 0 if null else None
            if kind is Kind.DOUBLE and (missing := np.isnan(array)).any():  # what is no number is NULL
                there, array = ~missing if there is None else there & ~missing, np.where(missing, 0.0, array)
            found[name] = Column(kind, array, there, (tuple(pool) or ("",)) if kind is Kind.TEXT else ())
        return found

    # ---- queries

    def follow(
        self, runs: Sequence[Run], steps: Sequence[int], times: Sequence[int]
    ) -> Iterator[tuple[int, PackedRows]]:
        """Yield (the record's place in the run, the rows of a query), record by record.

        Args:
            runs: what has left the operators.
            steps, times: the number and the event time of each record.

        Raises:
            OperatorFailedError: a function of the user failed.
        """
        run = _together(runs)
        if not len(run.origin) or not (self._queries.published or self._filled):
            return
        columns = self._columns(run)
        made = self._rows(self._queries, run, columns, steps, times)
        for item in self._filled.values():
            if item.done:
                mine = _since(run, item.from_us)
                made += self._rows(item.queries, mine, columns if mine is run else self._columns(mine), steps, times)
        yield from sorted(made, key=lambda item: item[0])

    def keep(self, batches: Sequence[TupleBatch], appended_us: Sequence[int]) -> None:
        """Take in the batches that have just come, for queries that will need them once they have the past."""
        for item in self._filled.values():
            item.keep(batches, appended_us)

    def fill(self, past: Past, offset: int) -> list[PackedRows]:
        """Return the rows of a query for the batches of the past that the record at an offset of the log has.

        Raises:
            OperatorFailedError: a function of the user failed.
        """
        item = self._filled.get(past.query)
        made: list[PackedRows] = []
        if item is None or not item.follows(past):
            return made
        for batches, appended_us in item.take(past, offset):
            columns = Batches(batches)
            _, run = item.book.accept_run(columns, appended_us, self)
            mine = _since(run, item.from_us)
            rows = self._rows(item.queries, mine, self._columns(mine), columns.steps, columns.event_times)
            made += [answer for _, answer in rows]
        return made

    def skip(self, past: Past) -> None:
        """Leave out what a quarantined record has of the past."""
        item = self._filled.get(past.query)
        if item is not None and item.follows(past):
            item.skip(past)

    def _rows(
        self,
        queries: TupleQueries,
        run: Run,
        columns: Mapping[str, Column],
        steps: Sequence[int],
        times: Sequence[int],
    ) -> list[tuple[int, PackedRows]]:
        """Return (the record's place in the run, rows), query by query, for the tuples of a run and their columns."""
        if not len(run.origin) or not queries.published:
            return []
        try:
            found, first = queries.follow(columns, run.origin)
        except QueryFailedError as error:
            cause = error.__cause__ or error
            detail = f"{type(cause).__name__}: {cause}{place_of(cause)}"
            raise OperatorFailedError(f"query {error.query}", run, detail) from cause
        places = np.unique(run.origin)
        made: list[tuple[int, PackedRows]] = []
        for query, rows in found.items():
            if not len(rows):
                continue
            begins = np.flatnonzero(np.diff(rows.step, prepend=-1))
            ends = np.append(begins[1:], len(rows))
            counts, at = (ends - begins).tolist(), places[rows.step[begins] - first].tolist()
            for place, count, data in zip(at, counts, encode_columns(rows, begins, ends, Recovered), strict=True):
                made.append((place, PackedRows(query, steps[place], times[place], count, data)))
        return made

    def _columns(self, run: Run) -> dict[str, Column]:
        """Return what queries see of the tuples of a run."""
        columns = dict(run.columns)
        columns["time"] = Column(Kind.TIMESTAMP, run.time_us)
        columns[self._key] = Column(
            Kind.TEXT, np.searchsorted(self._sensors, run.sensor.astype(np.int64)), None, self._names
        )
        if not self.typed:
            missing = np.isnan(run.mean)
            value = np.where(missing, 0.0, run.mean)
            columns["value"] = Column(Kind.DOUBLE, value, ~missing if missing.any() else None)
        return columns

    # ---- state

    def context(self) -> dict[str, bytes]:
        """Return the state of the queries, by names among those of the chain's operators."""
        filled = {f"{_STATE}/{name}": item.context() for name, item in self._filled.items()}
        return {_STATE: self._queries.context()} | filled

    def restore(self, contexts: Mapping[str, bytes]) -> None:
        """Go on from the states that `context` returned."""
        self._queries.restore(contexts[_STATE])
        for name, item in self._filled.items():
            item.restore(contexts[f"{_STATE}/{name}"])

    def take_over(self, earlier: SlotStream) -> None:
        """Go on with the state of those queries that `earlier` ran, too."""
        self._queries.take_over(earlier._queries)
        for name, item in self._filled.items():
            if name in earlier._filled:
                item.take_over(earlier._filled[name])


def _since(run: Run, from_us: int) -> Run:
    """Return the tuples of a run from an event time on."""
    mine = run.time_us >= from_us
    return run if mine.all() else run.keep(mine)


def _codes(value: bytes) -> list[int]:
    found: list[int] = np.frombuffer(value, dtype=WIRE[Kind.TEXT]).tolist()
    return found


def _together(runs: Sequence[Run]) -> Run:
    """Return runs as one, in the order of records."""
    if len(runs) == 1:
        return runs[0]
    origin: Integers = np.concatenate([run.origin for run in runs])
    order = np.argsort(origin, kind="stable")
    arrays = {
        name: np.concatenate([getattr(run, name) for run in runs])
        for name in ("sensor", "mean", "sd", "quality", "bound", "time_us", "origin")
    }
    columns = {name: concatenate([run.columns[name] for run in runs]) for name in runs[0].columns}
    last = runs[-1]
    return Run(last.step, last.event_time_us, **arrays, columns=columns).keep(order)
