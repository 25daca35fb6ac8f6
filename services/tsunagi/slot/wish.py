"""What a node would compute for a slot if it owned it, and what the plan wishes."""

from __future__ import annotations

from dataclasses import dataclass

from tsunagi.runtime.sensors import SensorTable
from tsunagi.slot.config import SlotConfig


@dataclass(frozen=True, slots=True)
class Wish:
    """Made from the settings, the placement and the slot's assignment.

    Attributes:
        model_sha256: "" = no model.
        owner: node that the plan names as owner.
        move: the plan wishes a handover although the present owner lives.
        groups: the group of each of the slot's sensors; empty = all are one.
        table: of all sensors, where helpers may come from; None = none may be asked for.
        helpers: how many at most.
        requested: the sensors that `plan` says the slot wants to see beside its own.
    """

    config: SlotConfig
    model_sha256: str = ""
    owner: str = ""
    move: bool = False
    groups: tuple[str, ...] = ()
    table: SensorTable | None = None
    helpers: int = 0
    requested: tuple[int, ...] = ()

    @property
    def tuples_per_batch(self) -> float:
        """How many tuples a batch of an edge has on average."""
        return max(1.0, len(self.config.sensors) / max(1, len(set(self.config.edges))))
