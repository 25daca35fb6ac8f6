import numpy as np
import pytest

from tests.unit.recovery.test_moments import base, walk
from tsunagi.recovery.calibration import LEAST_OUTAGES, SHADOW_STEPS, Calibration, Shadow, Turns
from tsunagi.recovery.factors import Traits
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.moments import Moments, Structure
from tsunagi.runtime.columns import Floats

TABLE = ((0.5, 1.0),)


def model(n: int = 4, table: tuple[tuple[float, float], ...] = ()) -> Model:
    zeros = np.zeros(n)
    names = tuple(f"s{i}" for i in range(n))
    return Model(names, zeros, zeros + 1, zeros + 0.8, 0.36 * np.eye(n), np.eye(n), zeros, calibration=table)


def alike(count: int, age: float = 1.0) -> Traits:
    """Return traits of estimates that differ in nothing."""
    return Traits(np.zeros(count), np.ones(count), np.full(count, age))


def factors(calibration: Calibration, delta: float, traits: Traits | None = None) -> Floats:
    n = len(calibration.group_of)
    return calibration.factors(delta).of(np.arange(n), traits or alike(n), 0.5, model(n, TABLE).inflation(delta))


def feed(calibration: Calibration, ratios: Floats, first: int = 0) -> None:
    for step, row in enumerate(ratios):
        calibration.observe(first + step, np.arange(len(row)), row, alike(len(row)))


def test_the_models_table_stands_until_enough_was_seen():
    calibration = Calibration(model(table=((0.9, 1.7),)))
    assert factors(calibration, 0.9).tolist() == [1.7] * 4
    feed(calibration, np.abs(np.random.default_rng(0).normal(size=(5, 4))))
    assert factors(calibration, 0.9).tolist() == [1.7] * 4
    feed(calibration, np.abs(np.random.default_rng(0).normal(size=(100, 4))), 5)
    assert factors(calibration, 0.9) == pytest.approx([1.0] * 4, abs=0.25)
    assert factors(calibration, 0.999).tolist() == [1.7] * 4
    assert calibration.counts() == [420]


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [False, True])
def test_coverage_is_what_was_asked_for(heavy):
    rng = np.random.default_rng(1)
    draw = 3.0 * (rng.standard_t(3, size=(2500, 4)) if heavy else rng.normal(size=(2500, 4)))
    multiples = {0.8: 1.2816, 0.9: 1.6449, 0.95: 1.96, 0.99: 2.5758}
    calibration, inside = Calibration(model()), dict.fromkeys(multiples, 0)
    for step, row in enumerate(np.abs(draw)):
        if step >= 500:
            for delta, multiple in multiples.items():
                inside[delta] += int((row <= multiple * factors(calibration, delta)).sum())
        calibration.observe(step, np.arange(4), row, alike(4))
    for delta, count in inside.items():
        assert count / 8000 == pytest.approx(delta, abs=0.012)


@pytest.mark.slow
def test_it_follows_a_drift():
    rng = np.random.default_rng(2)
    size = np.repeat([1.0, 3.0, 1.0], 800)
    calibration, inside = Calibration(model()), []
    for step, row in enumerate(np.abs(rng.normal(size=(2400, 4))) * size[:, None]):
        inside.append(float((row <= 1.6449 * factors(calibration, 0.9)).mean()))
        calibration.observe(step, np.arange(4), row, alike(4))
    for part in (slice(300, 800), slice(900, 1600), slice(1700, 2400)):
        assert np.mean(inside[part]) == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
def test_one_jump_does_not_widen_what_follows():
    ratios = np.abs(np.random.default_rng(8).normal(size=(600, 4)))
    calm, jumped = Calibration(model()), Calibration(model())
    feed(calm, ratios)
    ratios[-3, 2] = 20.0
    feed(jumped, ratios)
    wider = factors(jumped, 0.9) / factors(calm, 0.9)
    assert wider.max() < 1.25  # for the whole group, were its square taken as it is: 3
    assert wider.min() > 1.0


@pytest.mark.slow
def test_a_sensor_worse_than_its_group_gets_wider_bounds():
    rng = np.random.default_rng(3)
    calibration = Calibration(model())
    feed(calibration, np.abs(rng.normal(size=(1500, 4))) * [1, 1, 1, 3])
    wide = factors(calibration, 0.9)
    assert wide[3] / wide[0] == pytest.approx(3.0, rel=0.2)


@pytest.mark.slow
def test_groups_are_apart():
    rng = np.random.default_rng(4)
    calibration = Calibration(model(), ["a", "a", "b", "b"])
    feed(calibration, np.abs(rng.normal(size=(1000, 4))) * [1, 1, 4, 4])
    assert calibration.groups == ("a", "b")
    found = factors(calibration, 0.9)
    assert found[:2] == pytest.approx([1, 1], abs=0.2)
    assert found[2:] == pytest.approx([4, 4], rel=0.2)
    with pytest.raises(ValueError, match="found 2 groups for 4 sensors"):
        Calibration(model(), ["a", "b"])


def test_nothing_finite_is_nothing_seen():
    calibration = Calibration(model())
    calibration.observe(0, np.arange(2), np.array([np.nan, np.inf]), alike(2))
    assert calibration.counts() == [0]


@pytest.mark.slow
def test_shadow_failures_tell_how_wrong_a_model_is():
    x = walk(3000, 4)
    fitted = Moments(x[:1000]).model(Structure("innovation", 0.0, 0.8, 1), base(4))
    sure = Model(
        fitted.names, fitted.mean, fitted.scale, fitted.transition, fitted.Q / 4, fitted.prior / 4, fitted.drift
    )
    calibration = Calibration(sure)
    recovery = Recovery(sure, delta=0.9, calibration=calibration)
    shadow = Shadow(recovery, ["a", "b", "a", "b"])
    inside, count = 0, 0
    for step, row in enumerate(x[1000:]):
        hidden = row.copy()
        if step % 40 < 10:  # a real failure now and then
            hidden[[1, 3]] = np.nan
        found = recovery.step(hidden, step)
        calibration.observe(step, *shadow.observe(hidden, step))
        gone = np.isnan(hidden)
        if step > 500:
            inside += int((np.abs(found.mean - row) <= found.bound)[gone].sum())
            count += int(gone.sum())
    assert calibration.factors(0.9).base.mean() == pytest.approx(2.0, abs=0.4)
    assert inside / count == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("edges_out", [1, 3, 4])
def test_what_one_edge_shows_narrows_no_bounds_where_all_edges_are_out(edges_out: int) -> None:
    """The sensors have more in common than the model believes. That shows while others are read, and only then."""
    edges, each, steps = 4, 6, 1500
    n = edges * each
    rng = np.random.default_rng(3)
    together = np.zeros(steps)
    for step in range(1, steps):
        together[step] = 0.8 * together[step - 1] + 0.6 * rng.normal()
    x = together[:, None] + 0.2 * rng.normal(size=(steps, n))
    half = 0.5 * (np.eye(n) + 1)
    zeros = np.zeros(n)
    names = tuple(f"s{i}" for i in range(n))
    modest = Model(names, zeros, zeros + 1, zeros + 0.8, 0.36 * half, half, zeros, calibration=TABLE)
    calibration = Calibration(modest)
    recovery = Recovery(modest, delta=0.9, calibration=calibration)
    edge_of = np.arange(n) % edges
    shadow = Shadow(recovery, edge_of.tolist())
    inside = []
    for step, row in enumerate(x):
        out = (edge_of < edges_out) & (step > 500) & (step % 10 < 3)
        hidden = np.where(out, np.nan, row)
        found = recovery.step(hidden, step)
        calibration.observe(step, *shadow.observe(hidden, step))
        inside.extend((np.abs(found.mean - row) <= found.bound)[out].tolist())
    assert calibration.factors(0.9).base.mean() < 0.6
    assert np.mean(inside) > 0.85


def test_a_shadow_masks_only_what_lives():
    filter_ = Recovery(model())
    shadow = Shadow(filter_, ["a", "a", "b", "b"])
    calibration = Calibration(model())
    for step in range(60):
        values = np.array([np.nan, np.nan, 1.0, 2.0])
        filter_.step(values, step)
        calibration.observe(step, *shadow.observe(values, step))
    seen = calibration.counts()
    assert 80 < seen[0] < 120
    calibration.observe(60, *shadow.observe(np.full(4, np.nan), 60))  # nobody lives
    assert calibration.counts() == seen


@pytest.mark.parametrize("gaps", [1.0, 0.9], ids=["dead", "gaps"])
def test_sensors_that_are_not_read_do_not_keep_their_edge_from_being_tried(gaps):
    rng = np.random.default_rng(6)
    edges = np.repeat(["a", "b"], 3)
    filter_, calibration = Recovery(model(6)), Calibration(model(6), edges.tolist())
    shadow = Shadow(filter_, edges.tolist())
    x = np.zeros(6)
    for step in range(400):
        x = 0.8 * x + 0.6 * rng.normal(size=6)  # as the model says
        values = x.copy()
        values[[0, 3]] = np.where(rng.random(2) < gaps, np.nan, values[[0, 3]])
        filter_.step(values, step)
        calibration.observe(step, *shadow.observe(values, step))
    assert min(calibration.counts()) > 300
    assert factors(calibration, 0.9) == pytest.approx([1.0] * 6, abs=0.3)


@pytest.mark.parametrize("edges", [1, 3, 4, 6])
def test_each_edge_fails_for_each_length(edges):
    turns = Turns(range(edges))
    taken = [turns.take(np.ones(edges, dtype=bool)) for _ in range(edges * len(SHADOW_STEPS))]
    found = {(int(turn.sensors[0]), turn.steps) for turn in taken if turn is not None}
    assert found == {(edge, steps) for edge in range(edges) for steps in SHADOW_STEPS}


def test_bounds_are_wider_where_errors_are_greater() -> None:
    """Errors grow with level, with how unsure the model is, and with age; each has its share within all the same."""
    rng = np.random.default_rng(9)
    calibration, n = Calibration(model()), 4
    inside: dict[str, list[bool]] = {}
    for step in range(3000):
        traits = Traits(rng.normal(size=n), np.exp(0.5 * rng.normal(size=n)), np.full(n, rng.choice([1.0, 10, 30])))
        size = np.exp(0.4 * traits.level + 0.4 * np.log(traits.sd) + 0.25 * np.log(traits.age))
        ratios = np.abs(rng.normal(size=n)) * size
        if step > 1000:
            within = ratios <= 1.6449 * factors(calibration, 0.9, traits)
            for name, which in (
                ("high", traits.level > 0.8),
                ("low", traits.level < -0.8),
                ("unsure", traits.sd > 1.5),
                ("sure", traits.sd < 0.66),
                ("old", traits.age == 30),
                ("new", traits.age == 1),
            ):
                inside.setdefault(name, []).extend(within[which].tolist())
        calibration.observe(step, np.arange(n), ratios, traits)
    for name, found in inside.items():
        assert np.mean(found) == pytest.approx(0.9, abs=0.035), name


def test_how_long_outages_were_that_bounds_were_tried_on() -> None:
    calibration = Calibration(model())
    rng = np.random.default_rng(10)
    step, tried = 0, []
    for length in (3, 10, 30) * int(2 * LEAST_OUTAGES):
        for age in range(1, length + 1):
            calibration.observe(step, np.arange(4), np.abs(rng.normal(size=4)), alike(4, age))
            step += 1
        tried.append(float(calibration.factors(0.9).tried[0]))
    assert tried[0] == np.inf, "the table alone has no length"
    assert tried[-1] == 30.0
    known = [steps for steps in tried if np.isfinite(steps)]
    assert known == sorted(known)
