"""What a node would compute for a slot if it owned the slot, and what the plan wishes for the slot."""

from __future__ import annotations

from dataclasses import dataclass

from tsunagi.runtime.sensors import SensorTable
from tsunagi.slot.config import SlotConfig


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wished for one slot. It is made from the settings, the placement of sensors and the slot's assignment.

    Attributes:
        config: the slot's configuration.
        model_sha256: SHA-256 of the recovery model; "" = no model.
        owner: the node that the plan names as owner.
        move: the plan wishes that `owner` takes over although the present owner lives.
        groups: the group of each of the slot's sensors; empty = all are in one group.
        table: the table of all sensors, from which helpers may be chosen; None = no helpers may be asked for.
        helpers: the most helpers that the slot may have.
        requested: the helpers that the slot has asked for, as the topic `plan` says.
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
        """How many tuples a batch has on average: the slot's sensors, divided by its edges."""
        return max(1.0, len(self.config.sensors) / max(1, len(set(self.config.edges))))
