"""How sensors move to other slots while the system runs: at a step boundary that all slots know beforehand.

A placement that moves sensors says the slots before and after, and an event time: steps that end after it go by the new
slots. It goes through three phases, each a placement with the next serial number:

- `HELD`: the slots concerned write into their logs which sensors come and go, and close no step beyond the boundary.
- `AGREED`: all of them have done so, well before the boundary. Now they may pass it, and edges go by it.
- `DONE`: all of them are past it, and forget what has gone.

So nobody acts on a boundary that another slot does not know, whatever dies in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsunagi.runtime.columns import Sensors, sensors
from tsunagi.runtime.messages import Placement

HELD, AGREED, DONE = "held", "agreed", "done"
"""The phases of a move."""
MOVING = frozenset({HELD, AGREED})
"""The phases in which a move has begun and is not done."""


@dataclass(frozen=True, slots=True)
class SensorSlots:
    """The slot of each sensor, before and after the last move.

    Attributes:
        now: uint32[n], the slots by sensor id, for steps that end after `from_us`.
        before: uint32[n], the slots before the last move; those of `now` if there was none.
        from_us: the boundary, an event time in microseconds; 0 = no sensor has ever moved.
        phase: the phase of the last move; "" = no sensor has ever moved.
    """

    now: Sensors
    before: Sensors
    from_us: int = 0
    phase: str = ""

    @staticmethod
    def of(placement: Placement) -> SensorSlots:
        """Return the slots that a placement says. Sensors that were added after the move have not moved."""
        now = sensors(placement.slot)
        before = now.copy()
        earlier = sensors(placement.before)[: len(now)]
        before[: len(earlier)] = earlier
        return SensorSlots(now, before, placement.from_us, placement.move)

    @staticmethod
    def fixed(now: Sensors) -> SensorSlots:
        """Return slots that no sensor has ever left, uint32[n] by sensor id."""
        return SensorSlots(now, now)

    @property
    def moving(self) -> bool:
        """Whether a move has begun that is not done."""
        return self.phase in MOVING

    @property
    def concerned(self) -> frozenset[int]:
        """The slots that lose or gain sensors by the last move."""
        moved = self.now != self.before
        return frozenset(np.concatenate([self.now[moved], self.before[moved]]).tolist())

    @property
    def sending(self) -> tuple[Sensors, Sensors]:
        """Where edges send sensors in steps that end at `from_us` at the latest, and in those that end later."""
        return self.before, self.before if self.phase == HELD else self.now


def first_step(from_us: int, slide_us: int) -> int:
    """Return the first step that ends after this event time, for steps of `slide_us` microseconds."""
    return from_us // slide_us + 1
