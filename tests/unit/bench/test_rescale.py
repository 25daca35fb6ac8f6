"""The bench's judge sees what it is there to see."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.launched import judge_slot, type_of
from tests.bench.rescale import after_kill, latencies
from tsunagi.runtime.columns import pack_floats
from tsunagi.runtime.log import RECOVERED, Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import Name, pack_key


def output(offset: int, *values: int, appended_us: int = 2_000_000) -> Record:
    message = Recovered(offset=offset, appended_us=1_000_000, mean=pack_floats(np.array(values, dtype=np.float64)))
    return Record(RECOVERED, 0, offset, appended_us, pack_key(1, 0, Name(offset, 0)), message.SerializeToString())


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([output(0, 0, 1), output(1, 2, 3)], {}),
        ([output(0, 0, 1), output(0, 0, 1), output(1, 2, 3)], {"repeats_dropped": 1}),
        ([output(0, 0, 1)], {"lost": 2}),
        ([output(0, 0, 1), output(1, 3)], {"lost": 1}),
        ([output(0, 0, 1), output(1, 0, 1), output(2, 2, 3)], {"duplicates": 2, "reordered": 1}),
        ([output(0, 0, 1), output(1, 3, 2)], {"reordered": 1}),
    ],
)
def test_what_is_lost_doubled_or_reordered_is_counted(records: list[Record], wrong: dict[str, int]) -> None:
    found, late = judge_slot(records, 4)
    clean = {"lost": 0, "duplicates": 0, "reordered": 0, "repeats_dropped": 0, "tuples": 4}
    assert found == clean | wrong
    assert {value for _, value in late} == {1.0}


@pytest.mark.parametrize(("name", "kind"), [("worker-3", "local"), ("big-1", "big"), ("high-cpu-12", "high-cpu")])
def test_a_worker_s_name_says_its_type(name: str, kind: str) -> None:
    assert type_of(name) == kind


def test_latencies_around_rescales_stand_against_the_quiet_time() -> None:
    late = [(second * 1_000_000, 3.0 if 40 <= second < 50 else 0.1) for second in range(100)]
    found = latencies(late, [{"began_us": 40_000_000, "ended_us": 48_000_000}], 100_000_000)
    assert found["p99_quiet_s"] == pytest.approx(0.1)
    assert found["p99_rise_most_s"] == pytest.approx(2.9)
    killed = after_kill(late, {"killed_us": 45_000_000})
    assert (killed["lag_back_s"], killed["lag_most_s"]) == (0.0, 3.0)
    slow = [(at, 11.0 if at == 60_000_000 else value) for at, value in late]
    assert after_kill(slow, {"killed_us": 45_000_000})["lag_back_s"] == 15.0
