from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tsunagi.runtime.deaths import MOST, SOON_S, no_vain_starts
from tsunagi.runtime.log import LogError
from tsunagi.runtime.settings import ConfigError
from tsunagi.slot.frames import Frame
from tsunagi.slot.operators import OperatorFailedError


class Life:
    """Processes of one name, one after the other."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.now_s = 0.0

    def live(self, error: Exception | None = None, seconds: float = 1.0) -> None:
        with no_vain_starts(self.state, "gw-1", lambda: self.now_s):
            self.now_s += seconds
            if error is not None:
                raise error

    def die(self, times: int, error: Exception, seconds: float = 1.0) -> None:
        for number in range(times):
            with pytest.raises(type(error)):
                self.live(type(error)(f"offset {number}"), seconds)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path / "run")


def test_after_some_deaths_of_one_cause_it_is_not_tried_again_and_says_why(life: Life) -> None:
    life.now_s = 1e6  # the machine has been up for long
    life.die(MOST, OverflowError())
    with pytest.raises(
        ConfigError, match=rf"gw-1: the last {MOST} .* OverflowError at .*test_deaths.py:\d+\. .*delete"
    ):
        life.live()
    (life.state / "deaths" / "gw-1.json").unlink()
    life.live()


def test_other_causes_and_longer_lives_begin_the_count_anew(life: Life) -> None:
    for _ in range(3):
        life.die(MOST - 1, OverflowError())
        life.die(1, KeyError())
    for _ in range(3):
        life.die(MOST - 2, OverflowError())
        life.die(1, OverflowError(), SOON_S + 1)  # which counts as the first
    life.live()  # a clean end, too
    life.die(MOST - 1, OverflowError())
    life.live()


def test_what_is_no_fault_of_the_code_is_not_counted(life: Life) -> None:
    life.die(2 * MOST, LogError())
    life.live()


def test_a_failure_of_an_operator_of_one_s_own_counts_by_where_it_arose(life: Life) -> None:
    nothing = np.zeros(0)
    frame = Frame(1, 0, nothing.astype(np.uint32), nothing, nothing, nothing.astype(np.uint8), nothing)
    try:
        1 / 0  # noqa: B018 - as an operator's bug
    except ZeroDivisionError as bug:
        error = OperatorFailedError("plant:Mine", frame, "ZeroDivisionError")
        error.__cause__ = bug
    for _ in range(MOST):
        with pytest.raises(OperatorFailedError):
            life.live(error)
    with pytest.raises(ConfigError, match=r"ZeroDivisionError at .*test_deaths.py:\d+"):
        life.live()


@pytest.mark.parametrize("kept", ["", "no json", '{"cause": 3}', '{"cause": "a", "count": "b"}', "[]"])
def test_a_damaged_file_is_none(life: Life, kept: str) -> None:
    (life.state / "deaths").mkdir(parents=True)
    (life.state / "deaths" / "gw-1.json").write_text(kept)
    life.live()


def test_where_nothing_can_be_kept_the_cause_is_still_told(life: Life) -> None:
    life.state.write_text("a file in the way")
    life.die(2 * MOST, OverflowError())
