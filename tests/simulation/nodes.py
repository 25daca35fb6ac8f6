"""What the simulator keeps of a worker or the scaler: its clock, and what is left of it after faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tsunagi.runtime.clock import ManualClock
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.testing import MemoryClient
from tsunagi.standby.replica import Replica
from tsunagi.worker.hearing import Hearing
from tsunagi.worker.lifelines import Lifelines

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class NodeClock:
    """A process's own clock: intervals are everybody's; the time of day may be off, and go too fast or too slowly.

    Attributes:
        skew_us: how far the time of day is off, microseconds, at the monotonic time `since_s`.
        drift: seconds by which the time of day gets further off in each second.
    """

    base: ManualClock
    skew_us: int = 0
    drift: float = 0.0
    since_s: float = 0.0

    def monotonic(self) -> float:
        return self.base.monotonic()

    def now_us(self) -> int:
        return self.base.now_us() + self.skew_us + round((self.monotonic() - self.since_s) * self.drift * 1e6)

    def sleep(self, seconds: float) -> None:
        del seconds

    @property
    def right(self) -> bool:
        """Whether it shows the true time."""
        return not self.skew_us and not self.drift

    def set_off(self, skew_us: int, drift: float = 0.0) -> None:
        """Let the time of day jump to this far from the true one, and drift from there."""
        self.skew_us, self.drift, self.since_s = skew_us, drift, self.monotonic()


@dataclass
class Node:
    """A worker (or the scaler): what is left of it after faults.

    Attributes:
        announced_by: it waits until the log has its announcement, or until this time; None = it waits for none.
        settings: that its next process starts with; None = those of the world.
    """

    name: str
    client: MemoryClient
    clock: NodeClock
    made: Any = None
    paused: bool = False
    beat_at: float = 0.0
    turn_at: float = 0.0
    restart_at: float | None = 0.0
    crash_after: int | None = None
    cut_writing: bool = False
    announced_by: float | None = None
    settings: Settings | None = None


class SimLifelines(Lifelines):
    """What a worker hears of the connections to other processes. The kernel tells it at once, or never."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self._world, self._name, self._seen = world, name, len(world.ended)

    def watch(self, replicas: Iterable[Replica], hearing: Hearing, now: float) -> None:
        del replicas
        ended, self._seen = self._world.ended[self._seen :], len(self._world.ended)
        for node, incarnation in ended:
            if not self._world.cut.keys() & {node, self._name}:
                hearing.hint(node, incarnation, now)
