from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tsunagi_spark.queries import QueryReadings, above_threshold, count_minute, shift_counts, span_steps

SENSORS = 4
GROUP_OF = np.array([0, 0, 1, 1])


def readings(rows: list[tuple[int, int, bool]]) -> QueryReadings:
    return QueryReadings(
        np.array([row[0] for row in rows], dtype=np.uint32),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.bool_),
    )


@pytest.mark.parametrize(
    ("range_s", "slide_us", "span"),
    [(60, 2_000_000, 30), (60, 7_000_000, 9), (1, 2_000_000, 1), (2, 2_000_000, 1), (0.3, 100_000, 3)],
)
def test_span_is_the_half_open_minute(range_s: float, slide_us: int, span: int) -> None:
    assert span_steps(range_s, slide_us) == span
    alive = [j for j in range(100) if (100 - j) * slide_us < range_s * 1e6]
    assert len([*alive, 100]) == span


@pytest.mark.slow
@hypothesis_settings(max_examples=80, deadline=None)
@given(
    rows=st.sets(st.tuples(st.integers(0, SENSORS - 1), st.integers(1000, 1030)), max_size=70),
    flags=st.integers(0, 2**32),
    cuts=st.lists(st.tuples(st.integers(1000, 1031), st.integers(1000, 1031)), max_size=6),
    span=st.integers(1, 12),
)
def test_counts_over_batches_are_the_plain_ones(rows, flags, cuts, span) -> None:
    all_rows = [(sensor, step, bool(flags >> (sensor * 7 + step) % 32 & 1)) for sensor, step in sorted(rows)]
    ends = [np.maximum.accumulate(column) for column in np.array([(0, 0), *cuts, (1031, 1031)]).T]
    count, above = np.zeros(SENSORS, dtype=np.int64), np.zeros(SENSORS, dtype=np.int64)
    kept = readings([])
    before = np.array([NOTHING, NOTHING])
    for end in zip(*ends, strict=True):
        now = np.maximum(np.array(end), before)
        new = readings([row for row in all_rows if before[GROUP_OF[row[0]]] < row[1] <= now[GROUP_OF[row[0]]]])
        out = kept.step <= now[GROUP_OF[kept.sensor]] - span
        expired = QueryReadings(kept.sensor[out], kept.step[out], kept.above[out])
        counts, highs, shares = count_minute(new, expired, count, above, span)
        for sensor, step, q1, q2, q3 in zip(new.sensor, new.step, counts, highs, shares, strict=True):
            alive = [flag for s, k, flag in all_rows if s == sensor and step - span < k <= step]
            assert (q1, q2) == (len(alive), sum(alive))
            assert q3 == sum(alive) / len(alive)
        count, above, alive_new = shift_counts(count, above, new, expired, now[GROUP_OF], span)
        kept = QueryReadings(
            np.concatenate((kept.sensor[~out], new.sensor[alive_new])),
            np.concatenate((kept.step[~out], new.step[alive_new])),
            np.concatenate((kept.above[~out], new.above[alive_new])),
        )
        assert count.tolist() == np.bincount(kept.sensor, minlength=SENSORS).tolist()
        assert above.tolist() == np.bincount(kept.sensor[kept.above], minlength=SENSORS).tolist()
        before = now


def test_what_expires_of_one_group_may_be_newer_than_what_is_new_of_another() -> None:
    new = readings([(1, 100, True)])
    expiring = readings([(0, 101, True)])
    found = count_minute(new, expiring, np.array([1, 0]), np.array([1, 0]), 5)
    assert (found.q1.tolist(), found.q2.tolist()) == ([1], [1])


NOTHING = -(2**61)


def test_no_threshold_is_never_passed() -> None:
    found = above_threshold(np.array([1.0, 1.0, np.nan, 2.0]), np.array([np.nan, 1.0, 0.0, 1.0]))
    assert found.tolist() == [False, False, False, True]
