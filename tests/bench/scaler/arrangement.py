"""What is compared, and with which machines.

The paper's local machine takes 1,600 tuples/s, its small and medium ones 40 and 90. A slot is the least share of the
stream that can be moved here, so small and medium are ten times as large, at the paper's prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tsunagi.scaler.policy import WorkerType

LOCALS = 2
SLOTS = 16
LIMITS = {"local": 800.0, "small": 400.0, "medium": 900.0}
"""Tuples/s that one worker keeps itself to."""
TOLD = 0.85
"""A policy is told this share of it: slots are dealt out by whole ones, to within 15 % of a worker's share."""
PRICES = {"small": 0.095, "medium": 0.19}
BOOT_S = 100.0
SLOT_S = 300.0
HOUR_S = 3600.0
"""The paper's times, in its own seconds."""
ALWAYS_ON = {"small": 1, "medium": 2}
MOST = 3
"""Workers of a type at once: they are all processes of one machine."""
FIXED = "fixed"


class Scenario(NamedTuple):
    """A line of the figures: the policy, and which workers of the cloud there are all the time."""

    name: str
    label: str
    policy: str
    cloud: Mapping[str, int]

    @property
    def elastic(self) -> bool:
        """A policy decides how many workers there are."""
        return self.policy != FIXED


SCENARIOS = (
    Scenario("local", "Local", FIXED, {}),
    Scenario("always-on", "Local+Cloud", FIXED, ALWAYS_ON),
    Scenario("elasticstream", "ElasticStream", "elasticstream", {}),
    Scenario("ours", "ours (lookahead)", "lookahead", {}),
)


def types(share: float = 1.0) -> tuple[WorkerType, ...]:
    """Return what can be launched, by the paper's clock, with this share of what a worker takes."""
    return tuple(
        WorkerType(name, share * LIMITS[name], price, boot_s=BOOT_S, limit=MOST) for name, price in PRICES.items()
    )


def local_rate(share: float = 1.0) -> float:
    """Return what the local workers take together, tuples/s."""
    return share * LOCALS * LIMITS["local"]
