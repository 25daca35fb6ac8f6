"""What queries in CQL must give: the same engine in one run over all readings, which are taken from elsewhere.

That the engine is right is shown against DuckDB (tests/unit/query). Here it is shown that batches, cores, kills and
restarts change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.spark.world import World
from tsunagi.query.definitions import check, definitions_of
from tsunagi.query.readings import Readings, attribute_kinds
from tsunagi.query.results import QueryRow
from tsunagi.query.running import Queries
from tsunagi.query.values import Array
from tsunagi.runtime.results import Block
from tsunagi.runtime.sensors import SensorTable

_COLUMNS = ("mean", "sd", "bound", "quality")


@dataclass(frozen=True)
class Truth:
    """All readings, in the order of (step, sensor)."""

    table: SensorTable
    slide_us: int
    step: Array
    sensor: Array
    columns: dict[str, Array]

    @staticmethod
    def of_world(world: World) -> Truth:
        """Return what a small world has written."""
        rows = sorted(world.rows, key=lambda row: (row.step, row.sensor))
        columns = {name: np.array([getattr(row, name) for row in rows]) for name in _COLUMNS}
        step, sensor = (np.array([getattr(row, name) for row in rows]) for name in ("step", "sensor"))
        return Truth(world.table, world.settings.steps.slide_us, step, sensor, columns)

    @staticmethod
    def of_blocks(blocks: Iterable[Block], table: SensorTable, slide_us: int) -> Truth:
        """Return what a reader of results has seen."""
        found = [block for block in blocks if block.query == "readings"]
        step = np.repeat([block.step for block in found], [len(block) for block in found])
        sensor = np.concatenate([block.sensor for block in found])
        order = np.lexsort((sensor, step))
        columns = {name: np.concatenate([getattr(block, name) for block in found])[order] for name in _COLUMNS}
        return Truth(table, slide_us, step[order], sensor[order], columns)

    def answers(self, text: str, query: str, since: int, last: int) -> list[tuple[Any, ...]]:
        """Return the rows of a query for the steps since < step <= last, as `plain` returns those that were read."""
        kinds = attribute_kinds(self.table)
        queries = Queries(check(definitions_of(text, "test"), self.slide_us, kinds))
        some = (self.step > since) & (self.step <= last)
        columns = {name: column[some] for name, column in self.columns.items()}
        columns["quality"] = columns["quality"].astype(np.uint8)
        step, sensor = self.step[some].astype(np.int64), self.sensor[some].astype(np.uint32)
        readings = Readings(self.table, self.slide_us, kinds).rows(step, sensor, columns)
        found = queries.advance({"readings": readings}, since, last)[query].only_taken()
        lists = [column.to_list() for column in found.columns.values()]
        spreads = [(name, column.spread) for name, column in found.columns.items() if column.spread is not None]
        told = []
        for place, at in enumerate(found.step.tolist()):
            ends = [
                (name, (float(spread.low[place]), float(spread.high[place])))
                for name, spread in spreads
                if spread.low[place] != spread.high[place]
            ]
            told.append((at, *(column[place] for column in lists), tuple(sorted(ends))))
        return told


def plain(row: QueryRow) -> tuple[Any, ...]:
    """Return a row that was read as (step, columns, ends)."""
    return row.step, *row.values(), tuple(sorted(row.ends.items()))
