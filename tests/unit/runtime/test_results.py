from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.columns import pack_floats, pack_octets, pack_sensors
from tsunagi.runtime.log import RESULTS, LogError, OffsetLostError
from tsunagi.runtime.messages import ResultBlock
from tsunagi.runtime.results import ResultsReader, Row
from tsunagi.runtime.sensors import read_sensors
from tsunagi.runtime.settings import ResultsSettings as ResultsSection
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryLog

US = 2_000_000


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(ManualClock(), {RESULTS: 2})


def settings(form: str) -> Settings:
    return Settings(results=ResultsSection(format=form))


def a_block(group: str, step: int, count: int = 3) -> ResultBlock:
    values = np.arange(count) + step
    return ResultBlock(
        version=1,
        query="readings",
        group=group,
        step=step,
        event_time_us=step * US,
        appended_us=step * US + 5,
        sensor=pack_sensors(np.arange(count)),
        mean=pack_floats(values),
        sd=pack_floats(values * 0),
        quality=pack_octets([n % 4 for n in range(count)]),
        bound=pack_floats(values * 0 + 0.25),
        q1=pack_sensors(np.arange(count) + 4),
        q2=pack_sensors(np.arange(count)),
        q3=pack_floats(np.arange(count) / (np.arange(count) + 4)),
    )


def write(log: MemoryLog, partition: int, block: ResultBlock) -> None:
    key = f"readings/{block.group}/{block.step}".encode()
    log.append(RESULTS, partition, key, block.SerializeToString())


def write_rows(log: MemoryLog, partition: int, group: str, step: int, ids: list[int]) -> None:
    for number in ids:
        row = {
            "version": 1, "query": "readings", "group": group, "step": step, "time": "", "time_us": step * US,
            "appended_us": 9, "sensor": f"s{number}", "id": number, "unit": "K", "value": number / 2, "sd": None,
            "quality": "bounded", "bound": 0.5, "q1": 2, "q2": 1, "q3": 0.5,
        }  # fmt: skip
        log.append(RESULTS, partition, b"", json.dumps(row).encode())


def test_blocks_come_in_order_and_repeats_are_dropped(log: MemoryLog) -> None:
    for step in (1, 2, 3, 2, 3, 4, 1):
        write(log, 0, a_block("g", step))
    for step in (3, 4):
        write(log, 1, a_block("h", step))
    with ResultsReader(log, settings("blocks")) as results:
        found = list(results.blocks())
        assert [block.step for block in found if block.group == "g"] == [1, 2, 3, 4]
        assert [block.step for block in found if block.group == "h"] == [3, 4]
        assert results.duplicates == 3
        assert results.duplicates_of == {"g": 3}
        assert list(results.blocks()) == []
        write(log, 1, a_block("h", 5))
        assert [block.step for block in results.blocks()] == [5]


def test_rows_are_named_by_the_table(log: MemoryLog, tmp_path: Path) -> None:
    path = tmp_path / "sensors.csv"
    path.write_text("sensor,edge,unit\nfirst,e,K\nsecond,e,V\n")
    write(log, 0, a_block("g", 10))
    with ResultsReader(log, settings("blocks"), read_sensors(path)) as results:
        rows = list(results.rows())
    assert [row.sensor for row in rows] == ["first", "second", "2"]
    assert [row.unit for row in rows] == ["K", "V", ""]
    assert [row.quality for row in rows] == ["exact", "bounded", "unbounded"]
    assert rows[1] == Row("readings", "g", 10, rows[0].time, "second", "V", 11.0, 0.0, "bounded", 0.25, 5, 1, 0.2)
    assert rows[0].time.isoformat() == "1970-01-01T00:00:20+00:00"


def test_latency_is_by_the_readers_clock(log: MemoryLog) -> None:
    write(log, 0, a_block("g", 10))
    with ResultsReader(log, settings("blocks"), now_us=lambda: 10 * US + 5 + 750_000) as results:
        assert [block.latency_s for block in results.blocks()] == [0.75]


def test_from_the_end_and_following(log: MemoryLog) -> None:
    write(log, 0, a_block("g", 1))
    with ResultsReader(log, settings("blocks"), start="end") as results:
        for step in (2, 3):
            write(log, 0, a_block("g", step))
        seen: list[int] = []
        for block in results.blocks(follow=True, stopping=lambda: len(seen) == 3):
            seen.append(block.step)
            if block.step == 3:
                write(log, 0, a_block("g", 4))
    assert seen == [2, 3, 4]


def test_json_rows_become_blocks_and_repeats_are_dropped_row_by_row(log: MemoryLog) -> None:
    write_rows(log, 0, "g", 1, [0, 1, 2])
    write_rows(log, 0, "g", 2, [0])
    with ResultsReader(log, settings("json")) as results:
        assert [(block.step, block.sensor.tolist()) for block in results.blocks()] == [(1, [0, 1, 2]), (2, [0])]
        write_rows(log, 0, "g", 2, [0, 1, 2])  # sent again from the beginning of the step
        write_rows(log, 0, "g", 3, [5])
        found = list(results.blocks())
        assert [(block.step, block.sensor.tolist()) for block in found] == [(2, [1, 2]), (3, [5])]
        assert results.duplicates == 1
        assert set(results.last) == {("readings", "g", 0, 0)}
        assert found[0].q1.tolist() == [2, 2]
        assert found[0].mean.tolist() == [0.5, 1.0]
        assert np.isnan(found[0].sd).all()
        assert next(found[0].rows()).quality == "bounded"


@pytest.mark.parametrize("value", [None, b"\xff\xff", b"", ResultBlock(version=2).SerializeToString()])
def test_unreadable_blocks_are_counted_and_passed(log: MemoryLog, value: bytes | None) -> None:
    log.append(RESULTS, 1, b"", value)
    write(log, 1, a_block("g", 1))
    broken = a_block("g", 2)
    broken.mean = broken.mean[:-1]
    write(log, 1, broken)
    with ResultsReader(log, settings("blocks")) as results:
        assert [block.step for block in results.blocks()] == [1]
        assert results.unreadable_count == 2
        assert [(item.partition, item.offset) for item in results.unreadable] == [(1, 0), (1, 2)]
        assert "mean: found a length of 23" in results.unreadable[1].detail


ROW = {"version": 1, "query": "q", "group": "g", "step": 1, "id": 0, "time_us": 1, "q1": 1, "q2": 1}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"version": 1}',
        *(
            json.dumps(ROW | odd).encode()
            for odd in (
                {"time_us": -1},
                {"time_us": 1 << 60},
                {"step": 1 << 70},
                {"id": 1 << 32},
                {"q1": -1},
                {"part": "1"},
                {"value": "x"},
                {"bound": 10**400},
                {"range_us": -1},
                {"range_us": 1, "sum": "x"},
            )
        ),
    ],
)
def test_unreadable_rows_are_counted_and_passed(log: MemoryLog, value: bytes | None) -> None:
    log.append(RESULTS, 0, b"", value)
    write_rows(log, 0, "g", 1, [0])
    with ResultsReader(log, settings("json")) as results:
        assert [len(block) for block in results.blocks()] == [1]
        assert results.unreadable_count == 1


def test_an_empty_step_is_a_block_without_rows(log: MemoryLog) -> None:
    write(log, 0, a_block("g", 1, count=0))
    with ResultsReader(log, settings("blocks")) as results:
        (block,) = results.blocks()
    assert len(block) == 0
    assert list(block.rows()) == []


def test_no_topic_and_lost_records_are_named(log: MemoryLog) -> None:
    with pytest.raises(LogError, match="results"):
        ResultsReader(MemoryLog(ManualClock(), {}), settings("blocks"))
    for step in range(4):
        write(log, 0, a_block("g", step))
    with ResultsReader(log, settings("blocks")) as results:
        log.truncate(RESULTS, 0, 2)
        with pytest.raises(OffsetLostError):
            list(results.blocks())


def two_cores(log: MemoryLog, steps: int, behind: int = 0) -> None:
    for step in range(steps):
        for group in ("a", "c"):
            write(log, 0, a_block(group, step))
        if step < steps - behind:
            write(log, 1, a_block("b", step))


def test_all_cores_as_one_stream(log: MemoryLog) -> None:
    two_cores(log, 30)
    two_cores(log, 10)
    with ResultsReader(log, settings("blocks")) as results:
        found = [(block.step, block.group) for block in results.merged()]
    assert found == [(step, group) for step in range(30) for group in "abc"]


def test_one_stream_waits_for_a_core_that_lags_but_not_for_good(log: MemoryLog) -> None:
    two_cores(log, 9, behind=4)
    now = ManualClock()

    def ticks() -> bool:
        now.sleep(1)
        return False

    with ResultsReader(log, settings("blocks")) as results:
        stream = results.merged(follow=True, wait_s=3, clock=now.monotonic, stopping=ticks)
        first = [next(stream) for _ in range(15)]
        assert [(block.step, block.group) for block in first] == [(step, group) for step in range(5) for group in "abc"]
        since_s = now.monotonic()
        assert [(next(stream).step, next(stream).step) for _ in range(4)] == [(5, 5), (6, 6), (7, 7), (8, 8)]
        assert now.monotonic() - since_s >= 2
        write(log, 1, a_block("b", 5))
        assert (next(stream).step, results.duplicates) == (5, 0)
