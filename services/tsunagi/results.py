"""`Results`: reads results from Python in order, a row at a time, and drops repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from tsunagi.local.results import blocks_of
from tsunagi.query.outputs import open_query
from tsunagi.query.results import QueryRow
from tsunagi.runtime.log import DEAD_LETTERS, LATE, RESULTS, Log, LogError
from tsunagi.runtime.outputs import open_results
from tsunagi.runtime.results import Block, ResultsReader, Row
from tsunagi.runtime.settings import Settings, load
from tsunagi.system.fleet_table import TableFollower
from tsunagi.system.topics import tool_log


class Results(Iterator[Row]):
    """An iterator of rows in the order of (time, group, sensor). Repeats are dropped by name.

    A row has `time` (a datetime with a zone: the end of the reading's window), `sensor`, `value`, `bound`, `quality`
    and more (docs/howto/results.md). Rows are read up to the present end, or with `follow` until `close`. With `[query]
    mode = "tuples"`, rows that are followed come in the order of each slot's log.

    >>> from tsunagi import Pipeline
    >>> pipeline = Pipeline([{"in": 20.0}, {"in": 21.0}, {"in": 22.0}], steps={"window": 1, "slide": 1})
    >>> with pipeline.run(memory=True) as results:
    ...     [(row.time.second, row.sensor, row.value, row.q1) for row in results]
    [(21, 'in', 21.0, 1), (22, 'in', 22.0, 2)]

    Args:
        settings: the settings of the system, or its configuration file. None finds the file as `tsunagi results` does.
        follow: whether to wait for more rows at the end.
        from_now: whether to leave out the results that are there already.
        groups: the groups whose rows are read; empty means all.
        log: the log to read from, such as a log in memory. None means the Kafka that the settings name.
        unusable: how many readings the edges left out, by reason; `counts` adds them.

    Raises:
        ConfigError, SensorsError: the configuration or the sensors table cannot be used.
        LogError: the log does not answer, or has no results.
    """

    def __init__(
        self,
        settings: Settings | Path | str | None = None,
        *,
        follow: bool = False,
        from_now: bool = False,
        groups: Sequence[str] = (),
        log: Log | None = None,
        unusable: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._closed = False
        self._counted: dict[str, int] = {}
        self._unusable = unusable
        self.settings = settings if isinstance(settings, Settings) else load(settings)
        self._log = tool_log(self.settings, "results") if log is None else log
        self._followed = TableFollower(self._log, self.settings)
        self._reader: ResultsReader = open_results(self._log, self.settings, self._followed.table, from_now=from_now)
        self._asides = self._log.reader()
        self._begun = {topic: self._asides.range(topic, 0)[1] if from_now else 0 for topic in (LATE, DEAD_LETTERS)}
        self._follow = follow
        ends = {place: self._asides.range(RESULTS, place)[1] for place in range(self._log.partitions(RESULTS))}
        self._at = ends if from_now else dict.fromkeys(ends, 0)
        self._rows = self._read(follow=follow, groups=groups)

    def _read(self, *, follow: bool, groups: Sequence[str]) -> Iterator[Row]:
        # Tuples of several slots have no common order, so a reader that follows them does not wait to merge them.
        merged = not (follow and self.settings.query.mode == "tuples")
        stopping: Callable[[], bool] = lambda: self._closed  # noqa: E731
        for block in blocks_of(self._reader, follow=follow, merged=merged, groups=groups, stopping=stopping):
            yield from self._of(block)

    def _of(self, block: Block) -> Iterator[Row]:
        self._reader.table = table = self._followed.poll()
        return block.rows(table)

    def query(self, name: str) -> Iterator[QueryRow]:
        """Return the rows of a query, in the order of time within each combination of its ORDER WITHIN columns.

        The query is one in CQL, or a window aggregate (`[query] aggregates`), whose rows have an order in each group.

        They are read from where these results begin, up to the present end, or with `follow` until `close`. A row is a
        mapping of the query's columns to values: ``row["mean"]``.
        """
        with open_query(self._log, self.settings, self._followed.table, (name,), at=self._at) as found:
            for block in found.blocks(follow=self._follow, stopping=lambda: self._closed):
                found.table = self._followed.poll()
                yield from block.rows

    def __next__(self) -> Row:
        return next(self._rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the readers of the log. There are no more rows after this."""
        if not self._closed:
            with contextlib.suppress(LogError):  # a broker that is gone cannot say how many records it has
                self._counted = self.counts
            self._closed = True
            self._rows = iter(())
            self._reader.close()
            self._asides.close()
            self._followed.close()

    @property
    def counts(self) -> dict[str, int]:
        """How much was left out so far, by reason. It is empty if nothing was left out.

        `repeats` counts the records that were dropped by name, and `unreadable` those that are no results. `late` and
        `dead-letters` count the records in these topics (with `from_now` only the new ones). A run in memory adds the
        readings that its edges left out (docs/howto/sources.md).
        """
        if self._closed:
            return self._counted
        found = dict(self._unusable) | {"repeats": self._reader.duplicates, "unreadable": self._reader.unreadable_count}
        found |= {topic: self._asides.range(topic, 0)[1] - begun for topic, begun in self._begun.items()}
        return {reason: count for reason, count in found.items() if count}
