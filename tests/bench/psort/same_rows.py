"""q1 to q3 of `examples/queries` against the job's own: the same rows, to the last bit, over the paper's day?

    python -m tests.bench.psort.same_rows --out FILE

The day has 130 sensors on 21 machines, here a reading every 1.5 s of each (7,488,000), or readings at rates that differ
(`--zipf`). Both work through it in the same batches. One JSON object comes out: how many rows were compared, and how
many differ in their value, q1, q2 or q3.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import outcome
from tests.bench.psort.day import DAY_US, GROUP_OF, MACHINES, RANGE_US, SENSORS, Day, make_day, read_rows, zipf
from tsunagi.query.catalog import READINGS
from tsunagi.query.definitions import read_definitions
from tsunagi.query.readings import Readings, attribute_kinds
from tsunagi.query.relations import Rows
from tsunagi.runtime.sensors import Sensor, SensorTable
from tsunagi_spark.blocks import Counters, SlotBlock
from tsunagi_spark.frontier import SlotMark
from tsunagi_spark.kway import block_order
from tsunagi_spark.merge import CoreTask, Ordered, advance, grown
from tsunagi_spark.queries import QueryReadings
from tsunagi_spark.query_core import QueryCore
from tsunagi_spark.query_program import QueryProgram

SLIDE_US = 1_500_000
"""Length of a step, microseconds: a minute is a whole number of them."""
BATCHES = 40
FILES = [Path(__file__).parents[3] / "examples" / "queries" / f"q{number}.sql" for number in (1, 2, 3)]


def compare(day: Day, batches: int) -> dict[str, int]:
    """Work through a day in both ways; return how many rows there were, and how many of them differ."""
    thresholds = np.where(np.arange(SENSORS) % 7 == 0, np.nan, 0.5)
    groups = [f"machine-{group}" for group in range(len(MACHINES))]
    table = SensorTable(
        tuple(
            Sensor(number, f"s{number}", f"edge-{group}", groups[group], threshold=float(thresholds[number]))
            for number, group in enumerate(GROUP_OF)
        )
    )
    layout = day.layout(1, "basic")
    layout.threshold[:] = thresholds
    kinds = attribute_kinds(table)
    program = QueryProgram(1, tuple(read_definitions(FILES)), kinds, SLIDE_US)
    core = QueryCore(program, frozenset({"q3"}))
    readings = Readings(table, SLIDE_US, kinds)
    state, marks, kept = grown(None, layout), dict[int, SlotMark](), dict[int, QueryReadings]()
    span = -(-RANGE_US // SLIDE_US)
    found = {"rows": 0, "different": 0}

    def read(batch: int, low: int, high: int) -> QueryReadings:
        held = kept[batch]
        return held.take(slice(*np.searchsorted(held.step, (low, high), side="right").tolist()))

    ends = np.linspace(0, day.steps, batches + 1).round().astype(int).tolist()
    for number, (low, high) in enumerate(pairwise(ends)):
        rows = read_rows(day, low, high)
        steps = np.arange(low + 1, high + 1)
        mark = SlotMark(1, high, 0, high, 1, high)
        blocks = []
        for slot in range(layout.slots):
            mine = rows.take(layout.slot_of[rows.sensor] == slot)
            blocks.append(SlotBlock(0, slot, mark, Counters(), steps, steps, mine))
        task = CoreTask(number, 0, layout, marks, frozenset(), SLIDE_US, span)
        advanced = advance(state, task, blocks, read)
        state, kept[number] = advanced.state, advanced.keep
        marks = dict.fromkeys(range(layout.slots), mark)
        columns = {name: getattr(rows, name) for name in ("mean", "sd", "bound", "quality")}
        came = readings.rows(rows.step, rows.sensor, columns, core.queries.named(READINGS))
        given = core.queries.advance({READINGS: came}, low, high)["q3"]
        assert not core.queries.faults
        found["rows"] += len(advanced.ordered.rows)
        found["different"] += _different(advanced.ordered, given)
    return found


def _different(own: Ordered, given: Rows) -> int:
    """Return how many rows differ; all do if there are not as many."""
    if len(own.rows) != len(given):
        return max(len(own.rows), len(given))
    sensor = np.array([int(name[1:]) for name in given.columns["sensor"].pool] or [0])[given.columns["sensor"].values]
    one, other = block_order(own.rows.step, own.rows.sensor), block_order(given.step, sensor)
    pairs: list[tuple[Any, Any]] = [
        (own.rows.step, given.step),
        (own.rows.sensor.astype(np.int64), sensor),
        (own.rows.mean.view(np.int64), given.columns["value"].values.view(np.int64)),
        (own.counted.q1, given.columns["q1"].values),
        (own.counted.q2, given.columns["q2"].values),
        (own.counted.q3.view(np.int64), given.columns["q3"].values.view(np.int64)),
    ]
    differ = np.zeros(len(given), dtype=np.bool_)
    for mine, theirs in pairs:
        differ |= mine[one] != theirs[other]
    return int(differ.sum())


def main() -> int:
    """Compare, and write the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent of the sensors' rates; 0 = all alike")
    parser.add_argument("--out", type=Path, required=True, help="file for the JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rates = zipf(options.zipf)
        day = make_day(Path(directory), round(DAY_US // SLIDE_US * rates.sum()), options.zipf)
        found = compare(day, BATCHES)
    outcome.write({"bench": "same_rows", "zipf": options.zipf, **found}, options.out)
    return int(found["different"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
