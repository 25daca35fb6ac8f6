"""Twenty queries at once on the query core: what does a reading cost, beside the slowest five of them?

    python -m tests.bench.query_many --out out/query-many.json

Runs the query core alone, in this process, with encoding of the rows that come out. One JSON object comes out:

    alone_us     CPU microseconds for a reading, of each query alone, median of `--rounds`
    slowest      the five slowest
    five_us      of these five together
    twenty_us    of all twenty together
    ratio        twenty_us / five_us
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.bench import outcome
from tsunagi.query.definitions import definitions_of
from tsunagi.query.readings import Readings
from tsunagi.query.values import Array
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi_spark.complete_rows import CompleteRows
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram

STEP_US = 100_000
FIRST = 1_000_000
VIEW = (
    "CREATE VIEW n AS SELECT sensor, COUNT(*) AS n, AVG(value) AS mean FROM readings [RANGE 1 MINUTE] GROUP BY sensor"
)
SELECTS = (
    "SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE SLIDE 1 SECOND] GROUP BY sensor ORDER WITHIN sensor",
    "SELECT sensor, AVG(value) AS a FROM readings [RANGE 1 MINUTE SLIDE 1 SECOND] GROUP BY sensor ORDER WITHIN sensor",
    "SELECT sensor, MAX(value) AS m FROM readings [RANGE 1 MINUTE SLIDE 1 SECOND] GROUP BY sensor ORDER WITHIN sensor",
    "SELECT sensor, STDDEV(value) AS sd FROM readings [RANGE 1 MINUTE SLIDE 10 SECONDS] GROUP BY sensor",
    "SELECT group, COUNT(*) AS n FROM readings [RANGE 10 SECONDS] GROUP BY group ORDER WITHIN group",
    "SELECT group, AVG(value) AS mean, MIN(value) AS least FROM readings [RANGE 10 SECONDS] GROUP BY group",
    "SELECT group, SUM(value) AS total FROM readings [NOW] GROUP BY group ORDER WITHIN group",
    "SELECT edge, COUNT(*) AS n FROM readings [RANGE 5 MINUTES SLIDE 1 MINUTE] WHERE value > 1 GROUP BY edge",
    "SELECT edge, MAX(value) AS most FROM readings [NOW] GROUP BY edge",
    "SELECT COUNT(*) AS n, AVG(value) AS mean FROM readings [NOW]",
    "SELECT sensor, value FROM readings WHERE value > 3 ORDER WITHIN sensor",
    "SELECT sensor, value FROM readings WHERE value > threshold AND value < threshold + 0.1 ORDER WITHIN sensor",
    "SELECT sensor, value * 1.8 + 32 AS f FROM readings WHERE value > 2 ORDER WITHIN sensor",
    "SELECT r.sensor, r.value - n.mean AS off FROM readings r, n WHERE r.sensor = n.sensor AND r.value > n.mean + 3",
    "SELECT r.sensor, r.value / n.n AS share FROM readings r JOIN n ON r.sensor = n.sensor WHERE r.value > 3",
    "ISTREAM (SELECT sensor, value > threshold AS high FROM readings [NOW] WHERE value > 2.5)",
    "ISTREAM (SELECT group, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] WHERE value > 2 GROUP BY group)",
    "DSTREAM (SELECT edge, COUNT(*) AS n FROM readings [RANGE 5 SECONDS] WHERE value > 3 GROUP BY edge)",
    "SELECT sensor, FIRST(value) AS a, LAST(value) AS z FROM readings [RANGE 1 MINUTE SLIDE 9 SECONDS] GROUP BY sensor",
    "SELECT group, COUNT(DISTINCT sensor) AS n FROM readings [RANGE 10 SECONDS SLIDE 10 SECONDS] GROUP BY group",
)


class Plant:
    """Sensors in lock-step, batch by batch."""

    def __init__(self, sensors: int, machines: int, steps: int) -> None:
        rows = (Sensor(n, f"s{n}", f"edge-{n % 10}", f"machine-{n % machines}", threshold=1.0) for n in range(sensors))
        self.table = SensorTable(tuple(rows))
        self._sensors, self._steps = sensors, steps

    def batch(self, number: int) -> CompleteRows:
        """Return the rows of one batch; the same for the same number."""
        chance = np.random.default_rng(number)
        steps = np.arange(FIRST + number * self._steps, FIRST + (number + 1) * self._steps)
        size = len(steps) * self._sensors
        rows: dict[str, Array] = {
            "step": np.repeat(steps, self._sensors),
            "sensor": np.tile(np.arange(self._sensors, dtype=np.uint32), len(steps)),
            "mean": chance.normal(size=size),
            "sd": np.zeros(size),
            "quality": np.zeros(size, dtype=np.uint8),
            "bound": np.zeros(size),
        }
        return CompleteRows(rows, steps, steps * STEP_US)


def cost_us(plant: Plant, numbers: Sequence[int], batches: int, warm: int) -> float:
    """Return the CPU microseconds for a reading of some of the queries together."""
    text = ";".join([VIEW, *(f"CREATE QUERY q{n} AS {SELECTS[n]}" for n in numbers)])
    program = QueryProgram(1, tuple(definitions_of(text, "bench")), {}, STEP_US)
    core, table = (
        QueryCore(program, frozenset(plan.name for plan in program.compiled.published)),
        Readings(plant.table, STEP_US),
    )
    spent, rows = 0.0, 0
    for number in range(batches):
        came = plant.batch(number)
        began = time.process_time()
        for _ in core.advance(came, int(came.step[0]), int(came.step[-1]), table):
            pass
        core.dump(number, 1 << 40)
        if number >= warm:
            spent += time.process_time() - began
            rows += len(came.rows["step"])
    assert not core.queries.faults, core.queries.faults
    return spent / rows * 1e6


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=2000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100, help="steps in a batch")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warm", type=int, default=7, help="batches before those that are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plant = Plant(options.sensors, options.machines, options.steps)

    def median(numbers: Sequence[int]) -> float:
        costs = [cost_us(plant, numbers, options.batches, options.warm) for _ in range(options.rounds)]
        return round(statistics.median(costs), 3)

    alone = [median([number]) for number in range(len(SELECTS))]
    slowest = sorted(range(len(SELECTS)), key=lambda number: -alone[number])[:5]
    five, twenty = median(slowest), median(range(len(SELECTS)))
    found = {
        "bench": "query_many",
        **{key: value for key, value in vars(options).items() if key != "out"},
        "alone_us": alone,
        "slowest": slowest,
        "five_us": five,
        "twenty_us": twenty,
        "ratio": round(twenty / five, 2),
    }
    outcome.write(found, options.out)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
