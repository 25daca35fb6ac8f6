"""What is disturbed when: a pure function of the seed, so that a run can be repeated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TARGETS = ("gateway", "edge", "secondary", "spark", "kafka", "scaler")
FAULTS = ("kill", "pause", "restart", "partition", "delay", "cpu", "loss")
ALL = "all"

# Some shorter than it takes to detect a death (0.75 s by default), most longer.
_SECONDS = {
    "kill": (0.0, 0.0),
    "restart": (0.0, 0.0),
    "pause": (0.4, 6.0),
    "partition": (1.0, 6.0),
    "delay": (4.0, 10.0),
    "loss": (4.0, 10.0),
    "cpu": (4.0, 10.0),
}


class PlanError(ValueError):
    """Such a run cannot be planned; the message names the option, what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Round:
    """One disturbance.

    Attributes:
        number: from 1.
        choice: in [0, 1): which of several nodes, or of several slots, is hit.
        phase: in [0, 1): how far into a step it begins.
        seconds: how long it lasts; 0 = it is over at once.
        delay_ms, jitter_ms: what the proxy adds to each direction of a connection.
        loss: share of packets that are dropped.
        cpus: processors left to the target.
    """

    number: int
    target: str
    fault: str
    choice: float
    phase: float
    seconds: float
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    cpus: float = 0.0

    def pick(self, names: Sequence[str]) -> str:
        """Return one of these."""
        return sorted(names)[int(self.choice * len(names))]


def rounds(targets: Sequence[str], faults: Sequence[str], count: int, seed: int) -> Iterator[Round]:
    """Yield the rounds of a run.

    Every pair of target and fault comes once, in an order drawn from the seed, before any comes again; so a run covers
    as many of them as its length allows.

    Raises:
        PlanError: a target or fault that there is not, or a count below 1.
    """
    pairs = list(itertools.product(_names("--target", targets, TARGETS), _names("--fault", faults, FAULTS)))
    if count < 1:
        raise PlanError(f"--count: found {count}, expected at least 1")
    chance = random.Random(seed)
    deck: list[tuple[str, str]] = []
    for number in range(1, count + 1):
        if not deck:
            deck = chance.sample(pairs, len(pairs))
        target, fault = deck.pop()
        low, high = _SECONDS[fault]
        yield Round(
            number=number,
            target=target,
            fault=fault,
            choice=chance.random(),
            phase=chance.random(),
            seconds=round(chance.uniform(low, high), 3),
            delay_ms=round(chance.uniform(20.0, 150.0), 1) if fault == "delay" else 0.0,
            jitter_ms=round(chance.uniform(5.0, 50.0), 1) if fault == "delay" else 0.0,
            loss=round(chance.uniform(0.1, 0.2), 3) if fault == "loss" else 0.0,
            cpus=round(chance.uniform(0.05, 0.2), 3) if fault == "cpu" else 0.0,
        )


def _names(option: str, asked: Sequence[str], known: Sequence[str]) -> list[str]:
    if not asked:
        raise PlanError(f"{option}: found none, expected {', '.join(known)} or {ALL}")
    for name in asked:
        if name != ALL and name not in known:
            raise PlanError(f"{option}: found {name!r}, expected {', '.join(known)} or {ALL}")
    return list(known) if ALL in asked else list(dict.fromkeys(asked))
