"""Plans the rounds of a run. The plan is a pure function of the seed, so that a run can be repeated."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TARGETS = ("gateway", "edge", "secondary", "spark", "kafka", "scaler")
"""The kinds of nodes that can be hit. A gateway is the owner of a slot, a secondary its ready standby."""
FAULTS = ("kill", "pause", "restart", "partition", "delay", "cpu", "loss")
"""The faults that can be set; docs/howto/chaos.md describes them."""
ALL = "all"
"""On the command line this means all targets, or all faults."""

# Least and greatest length of each fault, in seconds. Some faults are shorter than it takes to detect a death (0.75 s
# by default), most are longer.
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
    """A run cannot be planned as asked; the message names the option, what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Round:
    """One disturbance.

    Attributes:
        number: the number of the round, from 1.
        target: the kind of node that is hit, one of `TARGETS`.
        fault: the fault that is set, one of `FAULTS`.
        choice: a number in [0, 1) that decides which of several nodes, or of several slots, is hit.
        phase: how far into a step the fault begins, as a share in [0, 1).
        seconds: how long the fault lasts; 0 if it is over at once.
        delay_ms, jitter_ms: the delay that the proxy adds in each direction of a connection, and its variation, both in
            milliseconds.
        loss: the share of packets that are dropped.
        cpus: how many processors the target may use.
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
        """Return one of the names, as `choice` decides."""
        return sorted(names)[int(self.choice * len(names))]


def rounds(targets: Sequence[str], faults: Sequence[str], count: int, seed: int) -> Iterator[Round]:
    """Yield the rounds of a run.

    Every pair of target and fault comes once, in an order drawn from the seed, before any pair comes again. So a run
    covers as many pairs as its length allows.

    Raises:
        PlanError: there is no such target or fault, or the count is below 1.
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
