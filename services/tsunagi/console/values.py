"""The newest result of each sensor, and how good the results of each edge are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tsunagi.runtime.messages import EXACT, QUALITY_NAMES
from tsunagi.runtime.outputs import QUERY as TUPLES_QUERY
from tsunagi.runtime.results import Block
from tsunagi.runtime.sensors import SensorTable

READINGS = frozenset({"readings", TUPLES_QUERY})
"""The queries whose rows are the values of sensors."""
RATE_S = 10
"""Rates are means over so many whole seconds."""
_NEVER = -1
"""Stands for the quality, and the time, of a sensor of which there was no result yet."""
_WORDS = (*QUALITY_NAMES, "missing")
"""The names of qualities, and at last the one of sensors without a result."""


class Newest(NamedTuple):
    """The newest result of a sensor.

    Attributes:
        time_us: its event time.
        since_us: the event time since which results have been of this quality, as far as this process has read.
    """

    time_us: int
    value: float
    sd: float
    bound: float
    quality: str
    since_us: int


class Values:
    """Keeps the newest result of each sensor; may be used by several threads.

    Args:
        table: the sensors table; `follow` replaces it.
    """

    def __init__(self, table: SensorTable) -> None:
        self._lock = threading.Lock()
        self._time_us = np.empty(0, np.int64)
        self._since_us = np.empty(0, np.int64)
        self._numbers = np.empty((0, 3))  # value, sd and bound of each sensor
        self._quality = np.empty(0, np.int8)
        self._counted: deque[tuple[int, int]] = deque()  # (second, results read in it)
        self.follow(table)

    def follow(self, table: SensorTable) -> None:
        """Go by this table from now on; sensors keep their ids."""
        with self._lock:
            more = max(0, len(table) - len(self._quality))
            self._time_us = np.concatenate([self._time_us, np.full(more, _NEVER, np.int64)])
            self._since_us = np.concatenate([self._since_us, np.full(more, _NEVER, np.int64)])
            self._numbers = np.concatenate([self._numbers, np.full((more, 3), np.nan)])
            self._quality = np.concatenate([self._quality, np.full(more, _NEVER, np.int8)])
            self._table = table
            self._edges = table.edges
            number = {edge: place for place, edge in enumerate(self._edges)}
            self._edge_of = np.array([number.get(sensor.edge, _NEVER) for sensor in table.sensors], dtype=np.intp)
            self._there = self._edge_of >= 0
            self._words = [f"{sensor.name}\0{sensor.group}".casefold() for sensor in table.sensors]

    @property
    def table(self) -> SensorTable:
        """The sensors table in force."""
        return self._table

    def add(self, blocks: Sequence[Block]) -> None:
        """Take in results, which come in the order of time within each group."""
        with self._lock:
            for block in blocks:
                if block.query in READINGS:
                    self._add(block)

    def _add(self, block: Block) -> None:
        known = block.sensor < len(self._quality)
        ids = block.sensor[known].astype(np.intp)
        quality = block.quality[known].astype(np.int8)
        changed = ids[self._quality[ids] != quality]
        self._since_us[changed] = block.event_time_us
        self._quality[ids] = quality
        self._time_us[ids] = block.event_time_us
        self._numbers[ids, 0] = block.mean[known]
        self._numbers[ids, 1] = block.sd[known]
        self._numbers[ids, 2] = block.bound[known]
        second = block.read_us // 1_000_000
        if self._counted and self._counted[-1][0] == second:
            self._counted[-1] = second, self._counted[-1][1] + len(ids)
        else:
            self._counted.append((second, len(ids)))
            while self._counted[0][0] < second - RATE_S:
                self._counted.popleft()

    def rate(self, now_us: int) -> float:
        """Return how many results a second have come lately, a mean over `RATE_S` whole seconds."""
        second = now_us // 1_000_000
        with self._lock:
            return sum(count for at, count in self._counted if second - RATE_S <= at < second) / RATE_S

    def newest(self, sensor: int) -> Newest | None:
        """Return the newest result of a sensor, by its id; None = there was none yet."""
        with self._lock:
            if not 0 <= sensor < len(self._quality) or self._quality[sensor] == _NEVER:
                return None
            value, sd, bound = self._numbers[sensor].tolist()
            word = _WORDS[int(self._quality[sensor])]
            return Newest(int(self._time_us[sensor]), value, sd, bound, word, int(self._since_us[sensor]))

    def edges(self) -> dict[str, dict[str, Any]]:
        """Return by edge how many of its sensors have results of each quality, and since when one is not exact.

        Returns:
            {edge: {"sensors": n, "exact": n, ..., "missing": n, "since_us": event time or None}}
        """
        with self._lock:
            words = len(_WORDS)
            here = self._there
            quality = np.where(self._quality[: len(here)] == _NEVER, words - 1, self._quality[: len(here)])[here]
            edge = self._edge_of[here]
            counts = np.bincount(edge * words + quality, minlength=words * len(self._edges)).reshape(-1, words)
            since = np.full(len(self._edges), np.iinfo(np.int64).max)
            other = (quality != EXACT) & (quality != words - 1)
            np.minimum.at(since, edge[other], self._since_us[: len(here)][here][other])
        return {
            name: {"sensors": int(row.sum())}
            | dict(zip(_WORDS, row.tolist(), strict=True))
            | {"since_us": int(at) if at < np.iinfo(np.int64).max else None}
            for name, row, at in zip(self._edges, counts, since, strict=True)
        }

    def select(self, text: str, edge: str, quality: str) -> list[int]:
        """Return the ids of sensors whose name or group contains a text, of one edge and quality if those are given.

        Args:
            quality: the quality of the newest result; "missing" = there was none.
        """
        with self._lock:
            found = self._there.copy()
            if edge:
                found &= self._edge_of == (self._edges.index(edge) if edge in self._edges else len(self._edges))
            if quality:
                number = _WORDS.index(quality) if quality in _WORDS else len(_WORDS)
                found &= self._quality[: len(found)] == (_NEVER if quality == _WORDS[-1] else number)
            words, wanted = self._words, text.casefold()
        ids: list[int] = np.flatnonzero(found).tolist()
        return [sensor for sensor in ids if wanted in words[sensor]] if wanted else ids

    def quality(self, sensor: int) -> str:
        """Return the quality of a sensor's newest result; "missing" = there was none."""
        with self._lock:
            return _WORDS[int(self._quality[sensor])]  # -1, for none, is the last word

    def qualities(self) -> list[str]:
        """Return the quality of each sensor's newest result, by id; "missing" = there was none, "" = it is removed."""
        with self._lock:
            found = self._quality[: len(self._there)].tolist()
            return [
                ("missing" if quality == _NEVER else _WORDS[quality]) if there else ""
                for quality, there in zip(found, self._there.tolist(), strict=True)
            ]
