"""Asks DuckDB what a query means, and compares."""

from __future__ import annotations

import math
import random
from collections import Counter

import duckdb
import numpy as np

from tests.unit.query.generator import ROLES, SITES
from tsunagi.query.catalog import READINGS, Catalog, readings_stream
from tsunagi.query.relations import Rows
from tsunagi.query.values import Column, Kind, column, texts

CATALOG = Catalog({READINGS: readings_stream({"site": Kind.TEXT, "role": Kind.TEXT, "count": Kind.BIGINT})})


class Fleet:
    """Sensors with attributes, some NULL, and their readings, some missing."""

    def __init__(self, seed: int, sensors: int, last: int) -> None:
        chance = random.Random(seed)
        self.last = last
        self.names = tuple(f"s{number}" for number in range(sensors))
        self.site = [chance.choice((*SITES, None)) for _ in self.names]
        self.role = [chance.choice(ROLES) for _ in self.names]
        self.threshold = [chance.choice((0.0, 2.5, 5.0, None)) for _ in self.names]
        self.rows: list[tuple[int, int, float | None, int | None]] = []
        for step in range(1, last + 1):
            for sensor in range(sensors):
                if chance.random() < 0.75:
                    value = None if chance.random() < 0.05 else chance.randint(-12, 36) / 4
                    self.rows.append((step, sensor, value, chance.choice((0, 1, 2, 3, None))))

    def stream(self, low: int, high: int) -> Rows:
        """Return the readings of the steps low < step <= high, as the engine gets them."""
        part = [row for row in self.rows if low < row[0] <= high]
        sensor = np.array([row[1] for row in part], dtype=np.int64)
        columns = {
            "sensor": Column(Kind.TEXT, sensor, None, self.names),
            "value": column(Kind.DOUBLE, [row[2] for row in part]),
            "count": column(Kind.BIGINT, [row[3] for row in part]),
            "site": texts([self.site[row[1]] for row in part]),
            "role": texts([self.role[row[1]] for row in part]),
            "threshold": column(Kind.DOUBLE, [self.threshold[row[1]] for row in part]),
            "time": Column(Kind.TIMESTAMP, np.array([row[0] * 1_000_000 for row in part], dtype=np.int64)),
        }
        rest = {
            name: Column(Kind.TEXT, np.zeros(len(part), np.int64), None, ("",))
            for name in ("edge", "group", "unit", "quality")
        }
        rest |= {name: Column(Kind.DOUBLE, np.zeros(len(part))) for name in ("sd", "bound")}
        return Rows(np.array([row[0] for row in part], dtype=np.int64), columns | rest)

    def database(self) -> duckdb.DuckDBPyConnection:
        """Return a database with the readings and the instants."""
        found = duckdb.connect()
        found.execute("SET ieee_floating_point_ops = false")
        found.execute("SET error_on_division_by_zero = false")
        found.execute("SET threads = 1")
        found.execute(
            "CREATE TABLE readings (step BIGINT, rn BIGINT, sensor TEXT, site TEXT, role TEXT, value DOUBLE, "
            "threshold DOUBLE, count BIGINT)"
        )
        rows = [
            (
                step,
                sensor,
                self.names[sensor],
                self.site[sensor],
                self.role[sensor],
                value,
                self.threshold[sensor],
                count,
            )
            for step, sensor, value, count in self.rows
        ]
        found.executemany("INSERT INTO readings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        found.execute(f"CREATE TABLE instants AS SELECT unnest(range(1, {self.last + 1})) AS step")
        return found


def rounded(value: object) -> object:
    """Return a value so that two that differ by rounding alone are equal."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return None
    return 0.0 if number == 0 else float(f"{number:.9g}")


def bag(rows: list[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """Return rows as a bag."""
    return Counter(tuple(rounded(value) for value in row) for row in rows)
