"""Events of NEXMark: people who register, auctions that they open, and bids on these, by a generator of our own.

Of 50 events one is a person, three are auctions and the others are bids, as in Apache Beam's suite (the benchmark:
Tucker, Tufte, Papadimos, Maier, "NEXMark: a benchmark for queries over data streams", 2002). Most bids go to few
auctions. Prices are multiples of 1/4, so that sums are exact whoever adds them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from tsunagi.query.relations import Rows
from tsunagi.query.values import Array, Column, Ints, Kind

STEP_US = 1000
"""Length of a step, microseconds: the resolution of events' times."""
BEGIN_US = 1_700_000_000_000_000
"""Event time of the first event."""
STATES = ("OR", "ID", "CA", "WA", "NY", "AZ")
CITIES = ("Phoenix", "Palo Alto", "Seattle", "Boise", "Portland", "Bend")
KINDS: Mapping[str, Mapping[str, Kind]] = {
    "person": {"id": Kind.TEXT, "name": Kind.TEXT, "city": Kind.TEXT, "state": Kind.TEXT},
    "auction": {
        "id": Kind.TEXT,
        "seller": Kind.TEXT,
        "category": Kind.BIGINT,
        "initial": Kind.DOUBLE,
        "expires": Kind.TIMESTAMP,
    },
    "bid": {"auction": Kind.TEXT, "bidder": Kind.TEXT, "price": Kind.DOUBLE},
}
"""The columns of each stream, beside `time`."""
_HOT = 0.8
"""Share of bids that go to the newest auctions."""


@dataclass(frozen=True)
class Events:
    """Events of one kind, in the order of time.

    Attributes:
        time_us: int64[n], event times.
        columns: the columns by name; texts as codes.
        pools: the texts of the columns that have texts.
    """

    time_us: Ints
    columns: Mapping[str, Array]
    pools: Mapping[str, tuple[str, ...]]

    def rows(self, kinds: Mapping[str, Kind], low: int, high: int) -> Rows:
        """Return the events of the steps low < step <= high as rows."""
        step = -(-self.time_us // STEP_US)
        part = slice(*np.searchsorted(step, (low, high), side="right").tolist())
        found = {
            name: Column(kind, self.columns[name][part], None, self.pools.get(name, ())) for name, kind in kinds.items()
        }
        found["time"] = Column(Kind.TIMESTAMP, self.time_us[part])
        return Rows(step[part], found)

    def values(self, name: str) -> list[object]:
        """Return a column as Python's values."""
        found = self.columns[name].tolist()
        return [self.pools[name][code] for code in found] if name in self.pools else found


def generate(count: int, seconds: float, seed: int) -> dict[str, Events]:
    """Return so many events, spread over so many seconds, by the name of their stream."""
    chance = np.random.default_rng(seed)
    time_us = BEGIN_US + np.sort(chance.integers(1, round(seconds * 1e6), count))
    place = np.arange(count) % 50
    people, auctions = np.flatnonzero(place == 0), np.flatnonzero((place > 0) & (place < 4))
    bids = np.flatnonzero(place >= 4)
    numbers = tuple(map(str, range(1000, 1000 + max(len(people), len(auctions)))))

    def known(among: Ints, when: Ints) -> Ints:
        """Return the number of one of those that are there already for each event, mostly a new one."""
        there = np.maximum(np.searchsorted(among, when), 1)
        hot = np.maximum(there - 1 - chance.integers(0, 4, len(when)), 0)
        return np.where(chance.random(len(when)) < _HOT, hot, (chance.random(len(when)) * there).astype(np.int64))

    def some(texts: tuple[str, ...], rows: int) -> Ints:
        return chance.integers(0, len(texts), rows)

    names = tuple(f"name {number % 97}" for number in range(97))
    return {
        "person": Events(
            time_us[people],
            {
                "id": np.arange(len(people)),
                "name": some(names, len(people)),
                "city": some(CITIES, len(people)),
                "state": some(STATES, len(people)),
            },
            {"id": numbers, "name": names, "city": CITIES, "state": STATES},
        ),
        "auction": Events(
            time_us[auctions],
            {
                "id": np.arange(len(auctions)),
                "seller": known(people, auctions),
                "category": 10 + chance.integers(0, 5, len(auctions)),
                "initial": chance.integers(4, 400, len(auctions)) / 4,
                "expires": time_us[auctions] + chance.integers(2_000_000, 20_000_000, len(auctions)),
            },
            {"id": numbers, "seller": numbers},
        ),
        "bid": Events(
            time_us[bids],
            {
                "auction": known(auctions, bids),
                "bidder": known(people, bids),
                "price": chance.integers(4, 40_000, len(bids)) / 4,
            },
            {"auction": numbers, "bidder": numbers},
        ),
    }


def database_of(events: Mapping[str, Events], step_us: int) -> duckdb.DuckDBPyConnection:
    """Return a database with the events, each with the step in which its time lies."""
    found = duckdb.connect()
    for name, some in events.items():
        columns = {column: some.values(column) for column in KINDS[name]}
        found.register("arrived", pa.table({**columns, "time": some.time_us, "step": -(-some.time_us // step_us)}))
        found.execute(f"CREATE TABLE {name} AS SELECT * FROM arrived")
    return found
