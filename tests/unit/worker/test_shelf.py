"""Models are read and made ready beside the loop, which asks again until they are there."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.unit.hashes import OTHER_SHA, SHA
from tests.unit.slot.small_slot import FLEET
from tsunagi.recovery import forms
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import PendingError
from tsunagi.worker.shelf import AGAIN_S, KEPT, Shelf

WAIT_S = 10.0
NAMES = (*FLEET.names[:3], "unknown to the model")


class Store:
    """Reads when it may; without a model it fails."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.models: dict[str, Model] = {SHA: FLEET}
        self.reads: list[str] = []
        self.now = 0.0

    def __call__(self, sha256: str) -> Model:
        assert self.may.wait(WAIT_S)
        self.reads.append(sha256)
        if sha256 not in self.models:
            raise ModelError(f"no {sha256}")
        return self.models[sha256]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def shelf(store: Store) -> Shelf:
    return Shelf(store, clock=lambda: store.now)


def awaited(shelf: Shelf, sha256: str, names: tuple[str, ...] = NAMES) -> Model:
    """Ask as a slot does: again when what it was told to wait for is there."""
    try:
        return shelf.get(sha256, names)
    except PendingError as error:
        error.ready.wait(WAIT_S)
    return shelf.get(sha256, names)


def test_in_virtual_time_it_is_there_at_once(store: Store) -> None:
    at_once = Shelf(store, clock=lambda: store.now, at_once=True)
    assert at_once.get(SHA, NAMES) is FLEET
    assert at_once.prepare(SHA, NAMES) is None


def test_whoever_asks_before_it_is_there_is_told_to_wait(shelf: Shelf, store: Store) -> None:
    store.may.clear()
    for _ in range(3):
        with pytest.raises(PendingError) as told:
            shelf.get(SHA, NAMES)
    store.may.set()
    assert told.value.ready.wait(WAIT_S)
    assert shelf.get(SHA, NAMES) is FLEET
    assert store.reads == [SHA]


def test_the_part_and_its_form_are_made_with_it(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    model = awaited(shelf, SHA)
    monkeypatch.setattr(forms, "_examine", None)  # the loop makes no inverse
    part = model.select(FLEET.names[:3])
    assert part is model.select(list(FLEET.names[:3]))
    first, second = Recovery(part), Recovery(part)
    readings = part.mean.copy()
    readings[0] = np.nan
    first.step(readings, 0)
    second.step(np.roll(readings, 1), 0)
    fresh = Recovery(FLEET.select(FLEET.names[:3]), choice=second.choice)
    np.testing.assert_array_equal(fresh.step(readings, 0).mean, first.step(readings, 0).mean)


def test_the_part_of_another_slot_is_made_of_the_model_that_is_there(shelf: Shelf, store: Store) -> None:
    model = awaited(shelf, SHA)
    assert awaited(shelf, SHA, FLEET.names[2:]) is model
    assert store.reads == [SHA]


def test_one_that_is_asked_for_in_advance_is_there_at_once(shelf: Shelf) -> None:
    ready = shelf.prepare(SHA, NAMES)
    assert ready is not None
    assert ready.wait(WAIT_S)
    assert shelf.get(SHA, NAMES) is FLEET
    assert shelf.prepare(SHA, NAMES) is None


def test_one_that_was_read_anyhow_is_not_read_again(shelf: Shelf, store: Store) -> None:
    shelf.put("cc", FLEET)
    assert awaited(shelf, "cc") is FLEET
    assert not store.reads


def test_one_that_cannot_be_read_is_tried_again_after_a_while(shelf: Shelf, store: Store) -> None:
    for _ in range(2):
        with pytest.raises(ModelError, match="no bb"):
            awaited(shelf, OTHER_SHA)
    assert store.reads == [OTHER_SHA]
    store.models[OTHER_SHA] = FLEET
    store.now += AGAIN_S
    assert awaited(shelf, OTHER_SHA) is FLEET


def test_few_are_kept(shelf: Shelf, store: Store) -> None:
    store.models = {str(number): FLEET for number in range(KEPT + 1)}
    for sha256 in store.models:
        awaited(shelf, sha256)
    awaited(shelf, "1")
    assert len(store.reads) == KEPT + 1
    awaited(shelf, "0")
    assert len(store.reads) == KEPT + 2
