"""Whether what is above the forecast stays, and which smoothing tells."""

from __future__ import annotations

import numpy as np
import pytest

from tsunagi.scaler.persistence import GAINS, Persistence

SLOTS = 400
STEPS = 30


def learn(rates: np.ndarray, said: float) -> Persistence:
    found = Persistence(100.0, 300.0)
    for slot in rates.reshape(-1, STEPS):
        found.add(slot, 10.0, said)
    return found


def test_calm_steps_are_believed_at_once() -> None:
    """The rate doubles for six slots, now and then."""
    draw = np.random.default_rng(1)
    high = np.repeat(draw.random(SLOTS // 6 + 1) < 0.3, 6)[:SLOTS]
    found = learn(np.repeat(np.where(high, 200.0, 100.0), STEPS), 100.0)
    assert found.gain == 1.0
    assert found.share > 0.7
    assert found.difference == pytest.approx(found.share, abs=0.05)


def test_noisy_steps_are_smoothed() -> None:
    draw = np.random.default_rng(2)
    level = np.repeat(np.where(np.repeat(draw.random(SLOTS // 6 + 1) < 0.3, 6)[:SLOTS], 140.0, 100.0), STEPS)
    found = learn(np.maximum(level + draw.normal(0.0, 60.0, len(level)), 0.0), 100.0)
    assert found.gain in GAINS[2:]


def test_an_excess_that_goes_again_does_not_last() -> None:
    rates = np.full((SLOTS, STEPS), 100.0)
    rates[::3, 5] = 300.0
    assert learn(rates, 100.0).share < 0.1


def test_the_reaction_is_what_could_be_known_then() -> None:
    found = Persistence(100.0, 300.0)
    found.add(np.full(STEPS, 100.0), 10.0, 100.0)
    seen = found.add(np.full(STEPS, 300.0), 10.0, 100.0)
    assert seen.near.shape == (STEPS,)
    assert seen.near[0] > 100.0
    assert seen.near[-1] == pytest.approx(300.0, rel=0.05)
    assert seen.share == 1.0  # nothing had shown yet that anything goes again
