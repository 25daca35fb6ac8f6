"""What the owner measures of its bounds, and how it comes into force: through the log alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.hashes import OTHER_SHA, SHA
from tests.unit.owner.owner import Owner, filter_of
from tests.unit.slot.small_slot import (
    EDGES,
    MODEL,
    SLOT,
    load,
    make_config,
    owned,
    play,
)
from tsunagi.owner.calibrator import EVERY_STEPS, Calibrator
from tsunagi.owner.deciders import CalibrationDecider
from tsunagi.recovery.filter import Recovery as FilterOfSlot
from tsunagi.recovery.model import half_width
from tsunagi.runtime.columns import floats, octets, pack_floats, pack_sensors
from tsunagi.runtime.messages import EXACT, Recovered, TupleBatch
from tsunagi.runtime.settings import RecoverySettings
from tsunagi.slot.slot import Slot
from tsunagi.slot.wish import Wish

CONFIG = make_config({"use": "recover"})
WISH = Wish(CONFIG, SHA, groups=("left", "left", "left", "right", "right"))


class Measuring(Owner):
    """An owner whose readings are `wide` times what the model says of them; `wrong` ones are others."""

    READ_BACK = frozenset(("calibrated", "sensor_out"))

    def __init__(self, wide: float, **recovery: bool) -> None:
        super().__init__(WISH, RecoverySettings(**recovery))
        self.wrong: dict[int, float] = {}
        draw = np.random.default_rng(1)
        mean, joint = MODEL.joint()
        self._noise, self._F = np.linalg.cholesky(joint[:5, :5] * 0.19), 0.9
        self._x, self._draw, self._wide = mean[:5] * 0, draw, wide

    @property
    def calibrator(self) -> Calibrator:
        found = self.decider(CalibrationDecider).calibrator
        assert found is not None
        return found

    def run(self, steps: int, *, dead: str = "") -> list[Recovered]:
        made = []
        for _ in range(steps):
            self._x = self._F * self._x + self._wide * self._noise @ self._draw.normal(size=5)
            told = dict(zip(CONFIG.sensors, self._x.tolist(), strict=True)) | self.wrong
            made += self.step_with(list(told.values()), dead)
        return made

    def late(self, edge: str, step: int, values: dict[int, float]) -> None:
        self.process(self.writer.batch(edge, step, values))

    @property
    def distrusted(self) -> list[int]:
        return [CONFIG.sensors[place] for place in np.flatnonzero(self.calibrator.recovery.distrusted)]

    @property
    def recovery(self) -> FilterOfSlot:
        return filter_of(self.slot)

    @property
    def factors(self) -> list[float]:
        given = self.recovery.given_factors
        return [] if given is None else given.base.tolist()


@pytest.mark.slow
def test_bounds_become_as_wide_as_the_data_are() -> None:
    owner = Measuring(3.0)
    owner.run(1200)
    assert np.mean(owner.factors) == pytest.approx(3.0, rel=0.2)
    assert len(owner.decided) < 1200 / EVERY_STEPS
    calibrator = owner.calibrator
    assert calibrator.groups == ("left", "right")
    seen = calibrator.coverage
    before = seen.truths.copy(), seen.within.copy()
    owner.run(1500)
    share = (seen.within - before[1]).sum() / (seen.truths - before[0]).sum()
    assert share == pytest.approx(0.9, abs=0.03)


@pytest.mark.slow
def test_bounds_become_narrower_than_the_fit_found_for_outages_as_long_as_were_tried() -> None:
    owner = Measuring(0.3)
    owner.run(1200)
    calibrator = owner.calibrator
    assert calibrator.tried_steps().tolist() == [30.0, 30.0]
    table = owner.recovery.model.inflation(CONFIG.delta) * half_width(CONFIG.delta)
    widths = []
    for _ in range(40):
        owner.run(1, dead="e2")
        raw = owner.recovery.traits(np.array([2])).sd[0]
        widths.append(float(owner.recovery.half_widths(CONFIG.delta)[2] / owner.recovery.model.scale[2] / raw))
    assert max(widths[:30]) < 0.6 * table
    assert widths[30:] == pytest.approx([table] * 10), "no outage of this length was tried"
    assert owner.recovery.longest_outage == 40


@pytest.mark.slow
def test_before_outages_enough_were_seen_the_fits_bounds_stand() -> None:
    owner = Measuring(0.3)
    owner.run(60)
    owner.run(1, dead="e2")
    raw = owner.recovery.traits(np.array([2])).sd[0] * owner.recovery.model.scale[2]
    least = half_width(CONFIG.delta) * owner.recovery.model.inflation(CONFIG.delta) * raw
    assert owner.recovery.half_widths(CONFIG.delta)[2] >= least * (1 - 1e-9)


@pytest.mark.slow
def test_nothing_changes_before_it_is_read_back() -> None:
    owner = Measuring(3.0)
    owner.reads_back = False
    owner.run(600)
    assert owner.decided
    assert owner.factors == []


@pytest.mark.slow
def test_measuring_changes_no_output_and_a_standby_computes_the_same() -> None:
    owner = Measuring(2.0)
    owner.run(400)
    owner.run(20, dead="e2")
    standby = Slot(SLOT, load)
    again = [value for topic, _, value in play(standby, owner.writer.records) if topic == "recovered"]
    assert again == [record.value for record in owner.made]
    assert owner.factors
    assert standby.context().SerializeToString(deterministic=True) == owner.slot.context().SerializeToString(
        deterministic=True
    )


@pytest.mark.slow
def test_a_new_owner_keeps_what_is_in_force_until_it_knows_better() -> None:
    owner = Measuring(3.0)
    owner.run(600)
    before, written = owner.factors, len(owner.decided)
    owner.take_over()
    owner.run(2 * EVERY_STEPS)
    assert owner.factors == before
    assert len(owner.decided) == written
    owner.run(400)
    assert len(owner.decided) > written


def test_it_can_be_switched_off() -> None:
    owner = Measuring(3.0, calibrate=False)
    owner.run(300)
    assert not any(isinstance(decider, CalibrationDecider) for decider in owner.deciders)
    assert not owner.decided


def test_after_its_term_an_owner_measures_no_more() -> None:
    owner = Measuring(3.0)
    owner.run(100)
    calibrator = owner.calibrator
    owner.primary.stop(owner.slot)
    truths = calibrator.coverage.truths.sum()
    play(owner.slot, [owner.writer.batch(edge, owner.step) for edge in EDGES])
    assert calibrator.coverage.truths.sum() == truths


def test_readings_that_come_late_are_truths() -> None:
    owner = Measuring(1.0)
    owner.run(5)
    owner.run(1, dead="e2")
    step = owner.step - 1
    calibrator = owner.calibrator
    before = calibrator.coverage.truths.sum()
    owner.late("e2", step, {3: 0.5})
    assert calibrator.coverage.truths.sum() == before + 1
    owner.late("e1", step, {0: 0.5, 2: 0.5})  # was there in time: nothing was estimated
    owner.late("e2", step - 3, {3: 0.5})
    assert calibrator.coverage.truths.sum() == before + 1


def test_a_truth_counts_once_however_often_and_by_whomever_it_is_told() -> None:
    owner = Measuring(1.0)
    owner.run(5)
    owner.run(1, dead="e2")
    owner.run(2)
    step = owner.step - 3
    calibrator = owner.calibrator
    before = calibrator.coverage.truths.sum()
    batch = TupleBatch(edge="e2", step=step, sensor=pack_sensors([3]), value=pack_floats([0.5]))
    stranger = TupleBatch(edge="e1", step=step, sensor=pack_sensors([3]), value=pack_floats([1e6]))
    silent = TupleBatch(edge="e2", step=step, sensor=pack_sensors([3]), value=pack_floats([np.nan]))
    for late in (stranger, silent):
        calibrator.late(late)
        assert calibrator.coverage.truths.sum() == before
    for value in (0.5, 0.5, 1e6):  # the same batch again, and one of the same step with another value
        batch.value = pack_floats([value])
        calibrator.late(batch)
        assert calibrator.coverage.truths.sum() == before + 1


def test_a_new_model_and_new_settings_end_what_was_measured() -> None:
    owner = Measuring(3.0)
    owner.run(400)
    assert owner.factors
    play(owner.slot, [owner.writer.model(""), owner.writer.model(SHA)])
    assert owner.factors == []
    play(owner.slot, [owner.writer.calibrated([2.0] * 5)])
    assert owner.factors == [2.0] * 5
    play(owner.slot, [owner.writer.settings(make_config({"use": "recover"}, eps=0.5, delta=0.8))])
    assert owner.factors == [2.0] * 5, "other bounds are no reason to begin anew"
    play(owner.slot, [owner.writer.settings(make_config({"use": "recover"}, max_gap_steps=21))])
    assert owner.factors == []


@pytest.mark.parametrize(
    ("factors", "model", "epoch"),
    [([2.0] * 4, SHA, 1), ([2.0, 2.0, 0.0, 2.0, 2.0], SHA, 1), ([2.0] * 5, OTHER_SHA, 1), ([2.0] * 5, SHA, 0)],
)
def test_records_that_do_not_count(factors: list[float], model: str, epoch: int) -> None:
    writer = owned(CONFIG)
    writer.model(SHA)
    writer.calibrated([1.5] * 5)
    writer.calibrated(factors, epoch, model)
    slot = Slot(SLOT, load)
    play(slot, writer.records)
    given = filter_of(slot).given_factors
    assert given is not None
    assert given.base == pytest.approx([1.5] * 5)


def test_a_sensor_that_fails_alone_counts_as_missing_until_it_is_plausible_again() -> None:
    owner = Measuring(1.0, suspects=True)
    owner.run(150)
    assert not owner.distrusted
    owner.wrong = {3: 500.0}
    owner.run(40)
    (record,) = [record.sensor_out for record in owner.decided if record.HasField("sensor_out")]
    assert (record.sensor, record.out, record.reason, record.epoch) == (3, True, "stuck", 1)
    assert owner.distrusted == [3]
    (recovered,) = owner.run(1)
    assert abs(floats(recovered.mean)[2]) < 50  # what the others say, and not what it said
    assert octets(recovered.quality)[2] != EXACT
    owner.wrong = {}
    owner.run(60)
    assert not owner.distrusted
    assert octets(owner.run(1)[0].quality)[2] == EXACT
    standby = Slot(SLOT, load)
    play(standby, owner.writer.records)
    assert standby.context().SerializeToString(deterministic=True) == owner.slot.context().SerializeToString(
        deterministic=True
    )
