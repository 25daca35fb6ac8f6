import numpy as np
import pytest

from tests.unit.recovery.fields import paper_field
from tsunagi.recovery.model import Model
from tsunagi.recovery.suspects import PARDON, STRIKES, WARM_STEPS, Suspects
from tsunagi.runtime.columns import Floats

N = 30


def fleet(steps: int, seed: int = 0) -> tuple[Model, Floats]:
    """A model, and readings that it fits."""
    rng = np.random.default_rng(seed)
    correlation, _ = paper_field(N, rng, edge_size=6)
    names = tuple(f"s{place}" for place in range(N))
    model = Model(
        names, np.full(N, 20.0), np.full(N, 2.0), np.full(N, 0.9), 0.19 * correlation, correlation, np.zeros(N)
    )
    factor = np.linalg.cholesky(correlation)
    x = np.zeros((steps, N))
    for step in range(1, steps):
        x[step] = 0.9 * x[step - 1] + np.sqrt(0.19) * factor @ rng.normal(size=N)
    return model, 20 + 2 * x


def run(suspects: Suspects, rows: Floats, truth: Floats, first: int = 0) -> list[tuple[int, int, bool, str]]:
    return [
        (first + step, verdict.sensor, verdict.out, verdict.reason)
        for step, (row, true) in enumerate(zip(rows, truth, strict=True))
        for verdict in suspects.observe(first + step, row, true)
    ]


@pytest.mark.slow
def test_sound_sensors_are_left_alone():
    model, rows = fleet(6000)
    assert run(Suspects(model), rows, rows) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stuck", "offset", "jumping"])
def test_a_sensor_that_fails_alone_is_found_and_taken_back(fault):
    model, truth = fleet(1200)
    rows = truth.copy()
    span = slice(400, 800)
    if fault == "stuck":
        rows[span, 7] = truth[399, 7]
    elif fault == "offset":
        rows[span, 7] += 30.0
    else:
        rows[span, 7] += 40.0 * np.random.default_rng(1).normal(size=400)
    verdicts = run(Suspects(model, limit=4.0 if fault != "offset" else 6.0), rows, truth)
    assert {sensor for _, sensor, _, _ in verdicts} == {7}
    begin, _, out, reason = verdicts[0]
    assert out
    assert 400 + STRIKES - 1 <= begin < 600
    assert reason == ("stuck" if fault == "stuck" else "implausible")
    end, _, out, _ = verdicts[-1]
    assert not out
    assert 800 + PARDON - 1 <= end < 800 + 3 * PARDON


def test_its_neighbours_are_not_blamed():
    model, truth = fleet(500)
    rows = truth.copy()
    rows[300:, 4] += 100.0
    verdicts = run(Suspects(model), rows, truth)
    assert [sensor for _, sensor, _, _ in verdicts] == [4]


def test_when_everything_moves_nobody_is_blamed():
    model, truth = fleet(500)
    rows = truth.copy()
    rows[300:, ::2] += 50.0  # half of the world
    assert run(Suspects(model), rows, rows) == []


def test_missing_readings_neither_accuse_nor_clear():
    model, truth = fleet(900)
    rows = truth.copy()
    rows[300:, 4] += 100.0
    rows[310:600, 4] = np.nan
    verdicts = run(Suspects(model), rows, truth)
    assert [(sensor, out) for _, sensor, out, _ in verdicts] == [(4, True)]


def test_nobody_is_judged_before_it_is_known_what_is_usual():
    model, truth = fleet(WARM_STEPS)
    rows = truth.copy()
    rows[:, 3] += 1000.0
    assert run(Suspects(model), rows, truth) == []
