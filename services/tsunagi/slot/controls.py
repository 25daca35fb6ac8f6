"""What the control records of a slot's log tell an operator (architecture, "Recovery").

Each takes effect for the frames that follow its record in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsunagi.recovery.factors import Factors
from tsunagi.recovery.model import Model
from tsunagi.slot.config import SlotConfig


@dataclass(frozen=True, slots=True)
class BoundsControl:
    """New settings that differ from the last ones only in eps, delta and the treatment of unbounded values."""

    config: SlotConfig


@dataclass(frozen=True, slots=True)
class RefitControl:
    """A refit: a model made from the slot's newer data that replaces the model in force.

    Attributes:
        model: the new model.
        step: the last step that has closed.
    """

    model: Model
    step: int


@dataclass(frozen=True, slots=True)
class FactorsControl:
    """Factors for the bounds of the slot's sensors. The owner has measured how wide bounds must be."""

    factors: Factors


@dataclass(frozen=True, slots=True)
class DistrustControl:
    """From now on the readings of a sensor count as missing, or no longer do so if `out` is false."""

    sensor: int
    out: bool


@dataclass(frozen=True, slots=True)
class HelpersControl:
    """The helpers from now on: sensors of other slots whose readings the recovery uses. They replace earlier helpers.

    Attributes:
        sensors, names: the helpers' ids and names.
        step: the last step that has closed.
    """

    sensors: Sequence[int]
    names: Sequence[str]
    step: int


Control = BoundsControl | RefitControl | FactorsControl | DistrustControl | HelpersControl
