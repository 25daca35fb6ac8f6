import numpy as np
import pytest

from tests.bench.recovery.batch import RecoveryBatch
from tests.unit.recovery.literal import random_joint
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model


def models(count: int, n: int, *, diagonal: bool = False) -> list[Model]:
    found = []
    for seed in range(count):
        mean, joint = random_joint(n, np.random.default_rng(seed))
        model = Model.from_joint(mean, joint)
        if diagonal:
            half = Model(
                model.names, model.mean, model.scale, np.full(n, 0.5 + 0.01 * seed), model.Q, model.prior, model.drift
            )
            model = half
        found.append(model)
    return found


@pytest.mark.parametrize("diagonal", [False, True])
def test_agrees_with_each_slot_on_its_own(diagonal):
    rng = np.random.default_rng(9)
    slots = models(7, 12, diagonal=diagonal)
    batch, alone = RecoveryBatch(slots, eps=0.7), [Recovery(model, eps=0.7) for model in slots]
    for step in range(40):
        values = rng.normal(size=(7, 12)) * np.stack([model.scale for model in slots])
        values[rng.random(values.shape) < rng.choice([0.0, 0.1, 0.5, 1.0], size=(7, 1))] = np.nan
        if step == 20:
            values[:] = np.nan
        found = batch.step(values, step)
        for place, (filter_, row) in enumerate(zip(alone, values, strict=True)):
            one = filter_.step(row, step)
            scale = slots[place].scale
            np.testing.assert_allclose((found.mean[place] - one.mean) / scale, 0, atol=1e-8)
            np.testing.assert_allclose(found.sd[place] / scale, one.sd / scale, atol=1e-8)
            np.testing.assert_allclose(found.bound[place] / scale, one.bound / scale, atol=1e-8)
            assert np.array_equal(found.quality[place], one.quality)


def test_nothing_missing_at_all():
    slots = models(3, 5)
    batch = RecoveryBatch(slots)
    values = np.arange(15.0).reshape(3, 5)
    for _ in range(3):
        found = batch.step(values)
        assert np.array_equal(found.mean, values)
        assert not found.sd.any()


def test_refusals():
    with pytest.raises(ModelError, match=r"found models of \[4, 5\] sensors"):
        RecoveryBatch([*models(1, 4), *models(1, 5)])
    twin = Model.from_joint(np.zeros(4), np.ones((4, 4)) + 1e-12 * np.eye(4))
    with pytest.raises(ModelError, match="model 1: found condition number"):
        RecoveryBatch([*models(1, 2), twin])
    with pytest.raises(ValueError, match=r"expected \(1, 4\)"):
        RecoveryBatch(models(1, 4)).step(np.zeros(4))
