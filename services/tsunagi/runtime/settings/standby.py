"""[standby] of the configuration: batch sizes and limits of standbys, heartbeats, acknowledgements and contexts."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tsunagi.runtime.settings.section import Bytes, Limit, Seconds, Section

EDGE_BEATS = 3
"""Number of heartbeats that an edge sends in the time after which a silent one counts as dead."""

Batch = Annotated[int, Field(ge=1, le=10**12)] | Literal["inf"]


class Target(Section):
    """What a slot's secondary aims at (A-SAS, algorithm 3)."""

    batch_size: Batch = Field(
        100,
        description="B in tuples: the secondary reads the log when it holds B; 1 = active standby, inf = never before",
    )
    policy: Literal["model", "fixed"] = Field(
        "model",
        description="how B is kept within the limits: model (the best B by the measured costs), fixed (it is not)",
    )
    max_bandwidth: Limit = Field(math.inf, description="limit of what a slot's secondary reads, bytes/s")
    max_recovery_s: Limit = Field(math.inf, description="limit of the recovery time, detection not counted")
    priority: Literal["recovery", "bandwidth"] = Field(
        "recovery", description="which limit is kept where both cannot be: recovery or bandwidth"
    )

    @property
    def batch_tuples(self) -> float:
        """The batch size B in tuples; infinity for upstream backup."""
        return float(self.batch_size)

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return math.isfinite(self.max_bandwidth) or math.isfinite(self.max_recovery_s)


class SlotTarget(Section):
    """The settings of one slot that differ from those of all slots; None is as for all."""

    batch_size: Batch | None = None
    policy: Literal["model", "fixed"] | None = None
    max_bandwidth: Limit | None = None
    max_recovery_s: Limit | None = None
    priority: Literal["recovery", "bandwidth"] | None = None


class StandbySettings(Target):
    """A-SAS: how the slots' secondaries stand by."""

    cost_period_s: Seconds = Field(2.0, description="period over which the costs are measured")
    slots: dict[Annotated[int, Field(ge=0, lt=100_000)], SlotTarget] = Field(
        default_factory=dict, description="slots that have batch_size, policy, limits or priority of their own"
    )
    heartbeat_s: Seconds = Field(0.1, description="interval of heartbeats; that of edges is a third of detect_s")
    detect_s: Seconds = Field(0.75, description="silence of the primary after which it counts as dead")
    cells: int = Field(
        0,
        ge=0,
        le=10_000,
        description="groups of slots, each with heartbeats of its own, when the topics are made; 0 = one for 32 slots",
    )
    speculate: bool = Field(
        default=True,
        description="write an owner's outputs before it is known to be dead; repeats are dropped by name",
    )
    speculate_s: Seconds = Field(
        0.25, description="silence of the primary after which its secondary does so, if no connection tells it sooner"
    )
    ack_s: Seconds = Field(0.25, description="interval of Level-0- and Level-1-Acks")
    context_s: Seconds = Field(1.0, description="least time between two contexts of a slot")
    context_bytes: Bytes = Field(262_144, description="a context above this size is written in parts of this size")
    poll_s: Seconds = Field(0.05, description="how often a secondary asks for the log's end when no heartbeat tells it")

    @property
    def edge_heartbeat_s(self) -> float:
        """Interval of an edge's heartbeats. Edges are many.

        An edge counts as silent once it has missed three, and a batch of it is a sign of life as well.
        """
        return max(self.heartbeat_s, self.detect_s / EDGE_BEATS)

    def target(self, slot: int) -> Target:
        """Return the target of a slot: its own settings, and for the others those of all slots."""
        common = {name: getattr(self, name) for name in Target.model_fields}
        own = self.slots.get(slot)
        return Target(**common | ({} if own is None else own.model_dump(exclude_none=True)))

    @model_validator(mode="after")
    def _detectable(self) -> StandbySettings:
        if self.detect_s < 3 * self.heartbeat_s:
            raise ValueError(f"detect_s = {self.detect_s} is less than three heartbeats of {self.heartbeat_s} s")
        return self
