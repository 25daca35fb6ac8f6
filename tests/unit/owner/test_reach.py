"""What can be known at best: computed once for all slots, and beside the steps where it takes long."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.unit.slot.small_slot import FLEET
from tsunagi.owner import reach
from tsunagi.recovery.model import Model

WAIT_S = 10.0


def test_a_small_fleets_is_there_at_once() -> None:
    found = reach.Reach().of(FLEET).precision
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found @ FLEET.prior, np.eye(len(FLEET)), atol=1e-12)


def test_a_large_fleets_comes_later_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    may, made = threading.Event(), []
    make = reach._make

    def slowly(model: Model, found: reach.Known) -> None:
        assert may.wait(WAIT_S)
        made.append(model)
        make(model, found)

    monkeypatch.setattr(reach, "AT_ONCE", 3)
    monkeypatch.setattr(reach, "_make", slowly)
    known = reach.Reach()
    assert known.of(FLEET).precision is None
    assert known.of(FLEET).precision is None
    may.set()
    end = time.monotonic() + WAIT_S
    while known.of(FLEET).precision is None and time.monotonic() < end:
        time.sleep(0.01)
    found = known.of(FLEET).precision
    assert isinstance(found, np.ndarray)
    assert known.of(FLEET).precision is found
    assert len(made) == 1


def test_of_a_singular_one_nothing_is_known() -> None:
    one = np.ones((2, 2))
    model = Model(("a", "b"), np.zeros(2), np.ones(2), np.full(2, 0.5), one, one, np.zeros(2))
    assert reach.Reach().of(model).precision is None


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(reach, "_make", lambda model, _found: made.append(model))
    known = reach.Reach()
    models = [FLEET.select(FLEET.names[:size]) for size in (2, 3, 4)]
    for model in [*models, models[2], models[1], models[0]]:
        known.of(model)
    assert [len(model) for model in made] == [2, 3, 4, 2]
