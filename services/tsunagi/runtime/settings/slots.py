"""[slots] of the configuration: how many slots there are, and which sensor is in which of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tsunagi.runtime.sensors import PER_EDGE
from tsunagi.runtime.settings.section import Few, Section


class SlotsSettings(Section):
    """Units of work: partitions of `tuples`. `tsunagi slots` gives a running system more."""

    count: int = Field(
        2,
        ge=1,
        le=100_000,
        description="slots, and partitions of tuples and recovered, at first; some may have been added since",
    )
    most: int = Field(
        0,
        ge=0,
        le=100_000,
        description="slots at most: more than count are made where a slot's recovery would take longer than half a "
        "step, by measured cost; 0 = count as it is",
    )

    @property
    def grow(self) -> bool:
        """Whether the topics may have been made with more slots than `count`."""
        return self.most > self.count

    placement: Literal["spread", "proposed-swap"] = Field(
        "spread",
        description="the first slot of a sensor: spread (an edge over per_edge slots) or proposed-swap (by the model)",
    )
    per_edge: Few = Field(
        PER_EDGE,
        description="spread: slots of an edge, which sends a record a step to each; more in a fleet of few edges",
    )
