"""The newest result of each sensor, edges by quality, and rates."""

from __future__ import annotations

import numpy as np

from tsunagi.console.values import RATE_S, Values
from tsunagi.runtime.messages import BOUNDED, EXACT, QUALITY_NAMES
from tsunagi.runtime.results import Block
from tsunagi.runtime.sensors import Sensor, SensorTable

TABLE = SensorTable(tuple(Sensor(n, f"s{n}", f"e{n % 2}") for n in range(4)))
SECOND = 1_000_000


def block(second: int, qualities: dict[int, int], query: str = "readings") -> Block:
    ids = sorted(qualities)
    count = len(ids)
    return Block(
        query=query, group="g", step=second, event_time_us=second * SECOND, appended_us=0, read_us=second * SECOND,
        partition=0, offset=second, sensor=np.array(ids, np.uint32), mean=np.array(ids, np.float64) + second,
        sd=np.zeros(count), quality=np.array([qualities[n] for n in ids], np.uint8), bound=np.full(count, 0.5),
        q1=np.zeros(count, np.uint32), q2=np.zeros(count, np.uint32), q3=np.zeros(count),
    )  # fmt: skip


def test_edges_count_their_sensors_by_the_newest_quality_and_say_since_when_one_is_not_exact() -> None:
    values = Values(TABLE)
    values.add([block(1, dict.fromkeys(range(4), EXACT)), block(2, {0: EXACT, 1: BOUNDED, 3: BOUNDED})])
    values.add([block(3, {1: BOUNDED, 3: EXACT})])

    found = values.edges()

    assert found["e0"] == {"sensors": 2, "since_us": None} | dict.fromkeys((*QUALITY_NAMES, "missing"), 0) | {
        "exact": 2
    }
    assert (found["e1"]["exact"], found["e1"]["bounded"], found["e1"]["since_us"]) == (1, 1, 2 * SECOND)
    newest = values.newest(1)
    assert newest is not None
    assert (newest.value, newest.bound, newest.quality, newest.since_us) == (4.0, 0.5, "bounded", 2 * SECOND)


def test_sensors_without_a_result_are_missing_and_those_that_were_removed_are_not_counted() -> None:
    values = Values(TABLE)
    values.add([block(1, {0: EXACT})])
    values.follow(SensorTable((*TABLE.sensors[:3], Sensor(3, "s3", "", before="e1"), Sensor(4, "s4", "e2"))))

    found = values.edges()

    assert {edge: (item["sensors"], item["exact"], item["missing"]) for edge, item in found.items()} == {
        "e0": (2, 1, 1), "e1": (1, 0, 1), "e2": (1, 0, 1),
    }  # fmt: skip
    assert values.qualities() == ["exact", "missing", "missing", "", "missing"]
    assert values.newest(4) is None
    assert values.newest(99) is None


def test_other_queries_and_sensors_that_no_table_knows_change_nothing() -> None:
    values = Values(TABLE)
    values.add([block(1, {0: EXACT}, query="hourly"), block(1, {2**32 - 1: EXACT, 7: EXACT})])
    assert values.qualities() == ["missing"] * 4


def test_the_rate_is_a_mean_over_whole_seconds_and_forgets() -> None:
    values = Values(TABLE)
    values.add([block(second, dict.fromkeys(range(4), EXACT)) for second in range(1, 31)])
    assert values.rate(31 * SECOND) == 4.0
    assert values.rate((31 + RATE_S // 2) * SECOND) == 2.0
    assert values.rate((31 + RATE_S) * SECOND) == 0.0


def test_sensors_are_selected_by_text_edge_and_quality() -> None:
    values = Values(
        SensorTable((*TABLE.sensors, Sensor(4, "Ofen", "", "Halle Süd"), Sensor(5, "ofen 2", "e1", "HALLE")))
    )
    values.add([block(1, {0: EXACT, 1: BOUNDED})])
    assert values.select("", "", "") == [0, 1, 2, 3, 5]
    assert values.select("OFEN", "", "") == values.select("halle", "", "") == [5]
    assert values.select("s", "e1", "") == [1, 3]
    assert values.select("", "", "bounded") == [1]
    assert values.select("", "e0", "missing") == [2]
    assert values.select("", "none", "") == values.select("", "", "none") == []
    assert [values.quality(n) for n in (0, 1, 2)] == ["exact", "bounded", "missing"]
