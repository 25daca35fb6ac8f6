"""Follows `results`: the newest value of each sensor."""

from __future__ import annotations

from tsunagi.console.values import Values
from tsunagi.runtime.log import Log
from tsunagi.runtime.outputs import open_results
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import TableFollower

READ_S = 0.2
"""Longest wait of a read, in seconds."""


class ResultsFollower:
    """A follower (`tsunagi.console.following`) of results, from their present end on.

    Raises:
        LogError: the log does not answer, or has no results.
        SensorsError: there is no sensors table.
    """

    def __init__(self, log: Log, settings: Settings, values: Values) -> None:
        self._values = values
        self._followed = TableFollower(log, settings)
        values.follow(self._followed.table)
        self._reader = open_results(log, settings, self._followed.table, from_now=True)

    def turn(self) -> None:
        table = self._followed.poll()
        if table is not self._values.table:
            self._values.follow(table)
            self._reader.table = table
        self._values.add(self._reader.poll(READ_S))

    def close(self) -> None:
        self._reader.close()
        self._followed.close()
