"""The statements in CQL that are in force: those of `[query] files`, and those that were added to the running system.

A version of them is kept under a number, and it is kept which batch used which version. So a batch that is run again
gives the same rows. A statement of a file counts more than one of the same name on `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np
import structlog

from tsunagi.query.definitions import (
    PLAN,
    STREAM_ON_PLAN,
    Definition,
    check,
    definitions_of,
    makes_stream,
    program_of,
    read_definitions,
)
from tsunagi.query.readings import attribute_kinds
from tsunagi.runtime.messages import QueryChange
from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings
from tsunagi_spark.layout import Ints, Layout
from tsunagi_spark.query_program import QueryProgram
from tsunagi_spark.query_task import program_file
from tsunagi_spark.state import KEPT, Store


class Programs:
    """Decides which statements are in force.

    Args:
        settings: their `[query] files` are read once.
        store: the job's state.

    Attributes:
        refused: why statements are not in force, by name.

    Raises:
        QueryError: a file cannot be read, or has a statement that cannot be understood.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self.refused: dict[str, str] = {}
        self._store = store
        self._step_us = settings.steps.slide_us
        self._files = read_definitions(settings.query.files)
        self._aggregates = [item.name for item in settings.query.aggregates]
        self._current: QueryProgram | None = None
        self._decided: tuple[int, dict[str, QueryChange]] | None = None
        self._layout: Layout | None = None
        self._logger = structlog.get_logger("tsunagi.spark")

    def check(self, table: SensorTable) -> None:
        """Check the statements of files against the sensors table.

        Raises:
            QueryError: one of them cannot be understood.
        """
        check(self._files, self._step_us, attribute_kinds(table), self._aggregates)

    def newest(self, serial: int, added: Mapping[str, QueryChange], layout: Layout) -> int:
        """Return the number of the version for the next batch; a new version is written down first.

        Args:
            serial: the version of the batch before; 0 if there was none.
            added: the statements on `plan`, by name.
            layout: the layout of the next batch.
        """
        if (serial, added) == self._decided and layout is self._layout:  # as in nearly every batch
            return serial
        made = self._decide(serial, added, layout)
        self._decided, self._layout = (made, dict(added)), layout
        return made

    def _decide(self, serial: int, added: Mapping[str, QueryChange], layout: Layout) -> int:
        wanted, refused = self._statements(added)
        kinds = attribute_kinds(layout.table)
        errors = program_of(wanted, self._step_us, kinds, self._aggregates)[1]
        refused |= {name: str(error) for name, error in errors.items()}
        for name in sorted(refused.keys() - self.refused.keys()):
            self._logger.error("query refused", query=name, detail=refused[name])
        self.refused = refused
        usable = tuple(item for item in wanted if item.name not in refused)
        before = self.load(serial)
        if before is None and not usable:
            return 0
        if before is not None and (before.definitions, dict(before.kinds)) == (usable, kinds):
            return serial
        # State of split queries does not move: each group stays where it is once there has been a query.
        places = _cores_of(layout) if before is None else before.places_in(layout)
        made = QueryProgram(serial + 1, usable, kinds, self._step_us, tuple(places.tolist()))
        self._store.write(program_file(made.serial), made.dump())
        if made.serial > KEPT:
            self._store.remove(program_file(made.serial - KEPT))
        self._current = made
        self._logger.info("queries", serial=made.serial, names=[item.name for item in usable])
        return made.serial

    def _statements(self, added: Mapping[str, QueryChange]) -> tuple[list[Definition], dict[str, str]]:
        """Return the statements, and why others cannot be read, by name."""
        found = {item.name: item for item in self._files}
        refused = {}
        for name, change in sorted(added.items(), key=itemgetter(0)):
            if name in found:
                continue
            try:
                (item,) = definitions_of(change.text, PLAN)
                if makes_stream(item):
                    refused[name] = STREAM_ON_PLAN
                else:
                    found[name] = replace(item, from_us=change.from_us)
            except ValueError as error:  # a QueryError, or not one statement
                refused[name] = str(error)
        return list(found.values()), refused

    def load(self, serial: int) -> QueryProgram | None:
        """Return a version of the statements; None if there was none yet (0)."""
        if serial == 0:
            return None
        if self._current is None or self._current.serial != serial:
            self._current = QueryProgram.load(self._store.read(program_file(serial)))
        return self._current


def _cores_of(layout: Layout) -> Ints:
    """Return a P-SORT core that works on each group, int64[groups]."""
    return np.asarray(layout.holds.argmax(axis=1), dtype=np.int64)


def runs_direct(program: QueryProgram | None, before: QueryProgram | None, layout: Layout) -> bool:
    """Return whether each P-SORT core has just the groups of the query core of its number.

    Args:
        program: the statements in force; None = there have been none.
        before: those of the batch before, whose query cores may have to say that queries have ended.
        layout: the layout of the batch.
    """
    if program is None or not program.split:
        return False
    if any(item.whole or item.fills or item.apart or item.summed for item in (program, before or program)):
        return False
    places = program.places_in(layout)
    together = not layout.cut.any() and np.array_equal(places[layout.group_of], layout.sensor_core)
    return together and len(np.unique(places)) == layout.cores


def filled(program: QueryProgram | None, before: QueryProgram | None) -> tuple[str, ...]:
    """Return the queries that are filled from the log, or have been, and those of the batch before, which may end."""
    return tuple(sorted({name for item in (program, before) if item is not None for name in item.fills}))


def sums_up(program: QueryProgram | None, before: QueryProgram | None) -> bool:
    """Return whether rows are added up for queries, or were in the batch before, whose queries may end."""
    return any(item is not None and item.summed for item in (program, before))


def opks_of(program: QueryProgram | None, before: QueryProgram | None) -> tuple[str, ...]:
    """Return the names of the OPKs by which queries are computed apart, and of those of the batch before."""
    return tuple(sorted({name for item in (program, before) if item is not None for name in item.opk_names}))
