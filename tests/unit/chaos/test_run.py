"""When in a step a fault strikes; what a run says in the end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.unit.audit.flow import Flow
from tsunagi.chaos import run
from tsunagi.chaos.plan import Round
from tsunagi.chaos.run import into_step_s
from tsunagi.chaos.targets import Unit
from tsunagi.runtime.log import Record

STEP_US = 200_000


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.999])
@pytest.mark.parametrize("now_us", [1_000_000_000_000_000, 1_000_000_000_123_456])
def test_a_fault_waits_for_its_place_in_a_step(phase: float, now_us: int) -> None:
    wait_s = into_step_s(phase, STEP_US, now_us)
    assert 0.0 <= wait_s <= STEP_US / 1e6
    assert (now_us + wait_s * 1e6) % STEP_US / STEP_US == pytest.approx(phase, abs=1e-3)


def test_without_steps_it_strikes_at_once() -> None:
    assert into_step_s(0.5, 0, 123) == 0.0


class Fake:
    """A driver that lets something happen as it sets a fault, and a watch that sees nothing else."""

    def __init__(self, happens: Callable[[Flow], Record | None]) -> None:
        self.flow = Flow()
        self.ledger = self.flow.ledger
        self.slots = 1
        self._happens = happens

    def units(self) -> list[Unit]:
        return [Unit("edge-1", "edge"), Unit("gw-1", "gateway")]

    def apply(self, plan: Round, node: str) -> int:
        self.flow.now_us = time.time_ns() // 1000
        record = self._happens(self.flow)
        if record is not None:
            self.ledger.take(record)
        return self.flow.now_us

    def undo(self) -> None:
        pass

    close = undo

    def pump(self, timeout_s: float) -> None:
        pass


def one_round(monkeypatch: pytest.MonkeyPatch, fake: Fake, said: list[str], target: str) -> int:
    """Run a round without waiting for anything; return the exit code."""
    for name in ("_WARM_S", "SETTLED_S"):
        monkeypatch.setattr(run, name, 0.0)
    monkeypatch.setattr(run.Runner, "missing", lambda *_: [])
    runner = run.Runner(fake, fake, said.append)  # type: ignore[arg-type]
    return runner.run([Round(1, target, "kill", 0.0, 0.0, 0.0)], seed=1, asked=1)


@pytest.mark.parametrize(
    ("target", "happens", "code"),
    [
        ("edge", lambda _: None, 0),
        ("edge", lambda flow: flow.ownership(2, "sec-1"), 1),
        ("gateway", lambda flow: flow.ownership(2, "sec-1"), 0),
    ],
    ids=["nothing", "a change of owner without a cause", "its owner was killed"],
)
def test_the_exit_code_tells_of_what_happened_without_a_cause(
    monkeypatch: pytest.MonkeyPatch, target: str, happens: Callable[[Flow], Record | None], code: int
) -> None:
    fake, said = Fake(happens), list[str]()
    assert one_round(monkeypatch, fake, said, target) == code
    assert any("owner changes 1" in line for line in said) == bool(code)


@pytest.mark.parametrize("interrupted", [False, True])
def test_bounds_are_judged_in_the_end_of_a_run_that_is_interrupted_too(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    def happens(flow: Flow) -> None:
        bounds = flow.ledger.judge.bounds
        bounds.began.update({("edge-1", step): 1 for step in range(100)})
        bounds.lost.update(range(100))
        bounds.values, bounds.held = 100, 50
        if interrupted:
            raise run.Interrupted

    fake, said = Fake(happens), list[str]()
    assert one_round(monkeypatch, fake, said, "edge") == (130 if interrupted else 1)
    assert sum("bounds hold for 50.0% of 100 values in 100 outages of a sensor" in line for line in said) == 1
    assert fake.ledger.tally.wrong == {"bounds": 1}
