"""A model that follows the data comes into force through the log alone, without a break, for everyone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.hashes import OTHER_SHA, SHA
from tests.unit.owner.owner import Owner
from tests.unit.slot.small_slot import NAMES, SLOT, load, make_config, play
from tsunagi.owner import deciders
from tsunagi.owner.deciders import RefitDecider
from tsunagi.owner.refitter import Refitter
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, publish_refit
from tsunagi.replay.compare import compare
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.columns import floats
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.settings import RecoverySettings
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish
from tsunagi.standby import actions as act

CONFIG = make_config({"use": "recover"})
DRIFT = 4.0
WAIT_S = 10.0


def readings(steps: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    draw = np.random.default_rng(seed)
    common = np.zeros(steps)
    for step in range(1, steps):
        common[step] = 0.9 * common[step - 1] + 0.4 * draw.normal()
    return np.asarray(common[:, None] + 0.3 * draw.normal(size=(steps, 5)))


@pytest.fixture(scope="module")
def fitted() -> Model:
    return estimate(readings(400, 1), NAMES, edges=["e1", "e1", "e2", "e3", "e3"])[0]


class Refitting(Owner):
    """An owner with a store of models: what it stores is there at once."""

    READ_BACK = frozenset(("model",))

    def __init__(self, model: Model, *, refit: bool = True) -> None:
        self.models = {SHA: model}
        super().__init__(Wish(CONFIG, SHA), RecoverySettings(refit=refit, refit_s=10.0, helpers=0))

    @property
    def refit(self) -> RefitDecider:
        return self.decider(RefitDecider)

    def load(self, sha256: str) -> Model:
        if sha256 not in self.models:
            raise ModelError(f"{sha256}: no such model")
        return self.models[sha256]

    def run(self, values: np.ndarray[tuple[int, int], np.dtype[np.float64]], *, dead: str = "") -> list[Recovered]:
        return [message for row in values for message in self.step_with(row.tolist(), dead)]

    def carry_out(self, action: act.Action) -> None:
        super().carry_out(action)
        if isinstance(action, act.StoreModel):
            self.models[action.model.identity] = action.model
            self.refit.on_stored(action.model.identity, self.slot)


@pytest.mark.slow
def test_the_model_follows_the_data_and_everyone_with_it(fitted: Model) -> None:
    owner, still = Refitting(fitted), Refitting(fitted, refit=False)
    drifted = readings(1500, 2) + np.where(np.arange(5) == 2, DRIFT, 0.0)  # the sensor of e2 alone
    for each in (owner, still):
        each.run(drifted[:1400])
    assert owner.slot.refit_of == SHA
    assert owner.slot.model_sha256 != SHA
    assert still.slot.model_sha256 == SHA
    errors = []
    for each in (owner, still):
        made = each.run(drifted[1400:1450], dead="e2")
        errors.append(np.abs([floats(message.mean)[2] for message in made] - drifted[1400:1450, 2]).mean())
    assert errors[0] < 0.6
    assert errors[1] > 3 * errors[0]
    standby = Slot(SLOT, owner.load)
    play(standby, owner.writer.records)
    assert standby.context() == owner.slot.context()
    result = compare(recompute(owner.writer.records, owner.load), owner.made)
    assert (result.differences, result.largest_sd) == ([], 0.0)
    assert result.compared == len(owner.made)


def test_in_a_large_slot_it_is_made_beside_the_loop_and_long_refits_are_announced(
    fitted: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = threading.Event()

    def slowly(*given: Any, **more: Any) -> Refitter:
        assert may.wait(WAIT_S)
        return Refitter(*given, **more)

    monkeypatch.setattr(deciders, "AT_ONCE", 3)
    monkeypatch.setattr(deciders, "Refitter", slowly)
    owner = Refitting(fitted)
    assert len(owner.run(readings(5, 2))) == 5
    assert owner.refit.refitter is None
    assert owner.refit._making is not None
    may.set()
    assert owner.refit._making.done.wait(WAIT_S)
    owner.run(readings(60, 3))
    assert owner.refit.refitter is not None
    assert owner.slot.refit_of == SHA
    assert owner.announced == [deciders.REFIT_INVERSES * 5.0**3]
    recover = owner.slot.recover
    assert recover is not None
    assert recover.recovery is not None
    folded = owner.refit.refitter.operations
    assert folded > 0
    assert recover.operations(np.zeros(5)) == recover.recovery.operations(0) + folded


def test_a_model_that_does_not_say_how_it_was_made_stays_as_it_is() -> None:
    owner = Refitting(load(SHA))
    owner.run(readings(200, 3))
    assert owner.slot.model_sha256 == SHA
    assert owner.refit.refitter is not None
    assert "does not say how it was made" in owner.refit.refitter.fault


def test_refits_lie_in_the_store_beside_the_fitted_and_go_when_they_are_old(tmp_path: Path, fitted: Model) -> None:
    sha256 = publish_refit(fitted, tmp_path, kept_s=3600.0)
    assert load_from_store(tmp_path, sha256).identity == fitted.identity
    publish_refit(load(OTHER_SHA), tmp_path, kept_s=3600.0)
    assert load_from_store(tmp_path, sha256).identity == fitted.identity
    publish_refit(load(OTHER_SHA), tmp_path, kept_s=-1.0)
    with pytest.raises(ModelError):
        load_from_store(tmp_path, sha256)
