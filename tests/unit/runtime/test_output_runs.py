"""Records with several outputs: each output is found under its own name, and a record that does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.runtime.door import UnusableError, decode
from tsunagi.runtime.messages import VERSION, Recovered
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.ranges import I64, MAX_TIME_US


def ints(*numbers: int) -> bytes:
    return np.array(numbers, dtype=I64).tobytes()


def run() -> Recovered:
    """Outputs 4, 7 and 9 of two rows each."""
    message = Recovered(version=VERSION, slot=1, generation=5, offset=9, epoch=2, step=30, event_time_us=31)
    message.appended_us = 32
    message.run.offset = ints(4, 7, 9)
    message.run.step = ints(10, 20, 30)
    message.run.event_time_us = ints(11, 21, 31)
    message.run.appended_us = ints(12, 22, 32)
    message.run.sensor = np.array([1, 2, 1, 3, 2, 3], dtype="<u4").tobytes()
    message.run.mean = np.array([1.0, 2.0, np.nan, 4.0, 5.0, 6.0]).tobytes()
    return message


def test_each_output_has_its_own_name_times_and_rows() -> None:
    found = outputs_of(decode(Recovered, run().SerializeToString()))
    assert [(item.offset, item.index, item.step, item.event_time_us, item.appended_us) for item in found] == [
        (4, 0, 10, 11, 12),
        (7, 0, 20, 21, 22),
        (9, 0, 30, 31, 32),
    ]
    assert [np.frombuffer(item.sensor, "<u4").tolist() for item in found] == [[1, 2], [1, 3], [2, 3]]
    assert b"".join(item.mean for item in found) == run().run.mean
    assert {(item.slot, item.generation, item.epoch, item.quality) for item in found} == {(1, 5, 2, b"\0\0")}


def test_a_record_of_one_output_is_that_output() -> None:
    message = Recovered(version=VERSION, offset=3)
    assert list(outputs_of(message)) == [message]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("run.offset", ints(4, 7), "run.offset"),
        ("run.offset", b"123", "run.offset"),
        ("run.offset", ints(7, 4, 9), "behind the one before"),
        ("run.offset", ints(-1, 7, 9), "found -1 to 9"),
        ("run.step", ints(MAX_TIME_US + 1, 20, 30), "step: found"),
        ("offset", 8, "expected the record's, 8"),
        ("appended_us", 8, "expected the record's, 8"),
        ("index", 1, "beside it"),
        ("query", "a", "beside it"),
        ("run.mean", bytes(40), "run.sensor"),
    ],
)
def test_what_does_not_fit_is_refused(field: str, value: object, words: str) -> None:
    message = run()
    where, _, name = field.rpartition(".")
    setattr(message.run if where else message, name, value)
    with pytest.raises(UnusableError, match=words):
        outputs_of(decode(Recovered, message.SerializeToString()))


def test_rows_that_cannot_be_divided_and_none_are_refused() -> None:
    message = run()
    message.run.mean, message.run.sensor = message.run.mean[8:], message.run.sensor[4:]
    with pytest.raises(UnusableError, match="5 rows for 3 outputs"):
        outputs_of(message)
    message.run.Clear()
    with pytest.raises(UnusableError, match="0 rows for 0 outputs"):
        outputs_of(message)
