"""What leaves a system without lock-step, as a reader gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import RECOVERED, RESULTS
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import Name, pack_key
from tsunagi.runtime.outputs import Outputs, open_results
from tsunagi.runtime.results import ResultsReader
from tsunagi.runtime.sensors import SensorTable, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog

TUPLES = Settings(query={"mode": "tuples", "operators": ()})


@pytest.fixture
def table(tmp_path: Path) -> SensorTable:
    path = tmp_path / "sensors.csv"
    path.write_text("sensor,edge,group\np,e,x\nq,e,y\nr,e,\n")
    return read_sensors(path)


def write(log: MemoryLog, slot: int, offset: int, ids: list[int], generation: int = 5) -> None:
    message = Recovered(
        version=1,
        slot=slot,
        generation=generation,
        offset=offset,
        step=offset,
        event_time_us=offset * 1000,
        appended_us=offset * 1000 + 7,
        sensor=pack_sensors(ids),
        mean=pack_floats([sensor + 0.5 for sensor in ids]),
        sd=pack_floats([0.0] * len(ids)),
        quality=pack_octets([0] * len(ids)),
        bound=pack_floats([0.0] * len(ids)),
    )
    log.append(RECOVERED, slot, pack_key(generation, slot, Name(offset, 0)), message.SerializeToString())


def test_outputs_come_by_group_and_repeats_are_dropped_by_name(table: SensorTable) -> None:
    log = MemoryLog(ManualClock(), {RECOVERED: 2})
    write(log, 0, 4, [0, 1])
    write(log, 0, 6, [2, 0])
    write(log, 0, 4, [0, 1])
    write(log, 1, 4, [1])
    write(log, 0, 1, [0], generation=6)  # the topic was made anew
    log.append(RECOVERED, 1, b"who", b"knows")
    with Outputs(log.client("test"), TUPLES, table) as outputs:
        rows = [
            (block.partition, row.time.microsecond, row.group, row.sensor, row.value)
            for block in outputs.blocks()
            for row in block.rows(table)
        ]
        assert sorted(rows, key=lambda row: row[0]) == [
            (0, 4000, "x", "p", 0.5),
            (0, 4000, "y", "q", 1.5),
            (0, 6000, "ungrouped", "r", 2.5),
            (0, 6000, "x", "p", 0.5),
            (0, 1000, "x", "p", 0.5),
            (1, 4000, "y", "q", 1.5),
        ]
        assert (outputs.duplicates, outputs.unreadable_count) == (1, 1)


def test_the_mode_says_what_is_read(table: SensorTable) -> None:
    log = MemoryLog(ManualClock(), {RECOVERED: 1, RESULTS: 1})
    with open_results(log.client("test"), TUPLES, table, from_now=True) as tuples:
        assert (type(tuples), tuples.topic) == (Outputs, RECOVERED)
    with open_results(log.client("test"), Settings(), table, from_now=False) as steps:
        assert (type(steps), steps.topic) == (ResultsReader, RESULTS)


def test_outputs_of_one_moment_come_as_one_stream(table: SensorTable) -> None:
    log = MemoryLog(ManualClock(), {RECOVERED: 2})
    for slot, offset in ((0, 4), (1, 4), (0, 5), (1, 6)):
        write(log, slot, offset, [0])
    with Outputs(log.client("test"), TUPLES, table) as outputs:
        assert [block.step for block in outputs.merged()] == [4, 4, 5, 6]
