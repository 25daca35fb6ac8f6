"""What an operator is told beside its frames, from where it stands in the slot's log on (architecture, "Recovery")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.slot.config import SlotConfig


@dataclass(frozen=True, slots=True)
class BoundsControl:
    """New settings differ from the last ones in eps, delta and the treatment of unbounded values alone."""

    config: SlotConfig


@dataclass(frozen=True, slots=True)
class RefitControl:
    """A model that follows the data takes the place of the one in force.

    Attributes:
        step: the last step that has closed.
    """

    model: Model
    step: int


@dataclass(frozen=True, slots=True)
class FactorsControl:
    """The owner has measured how wide bounds must be: factors of the slot's sensors."""

    factors: Factors


@dataclass(frozen=True, slots=True)
class DistrustControl:
    """The readings of a sensor count as missing from now on, or (`out` is false) no longer."""

    sensor: int
    out: bool


@dataclass(frozen=True, slots=True)
class HelpersControl:
    """These sensors of other slots help from now on; they replace those before.

    Attributes:
        sensors, names: their ids and names.
        step: the last step that has closed.
    """

    sensors: Sequence[int]
    names: Sequence[str]
    step: int


Control = BoundsControl | RefitControl | FactorsControl | DistrustControl | HelpersControl
