"""What a driver offers: nodes that can be disturbed, whatever they run as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tsunagi.chaos.plan import Round


class ChaosError(RuntimeError):
    """A fault cannot be set or undone, or the system to disturb is not there; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A container or process of ours.

    Attributes:
        node: its name, as in its heartbeats.
        role: edge | gateway | secondary | worker | scaler | spark | kafka (as it was started, not what it holds now).
        trouble: why it is not well ("exited", "paused", "unhealthy", ...); "" = it is.
    """

    node: str
    role: str
    trouble: str = ""


class Driver(Protocol):
    """Sets faults and takes them back. `apply` and `undo` may take seconds; they run beside the reader."""

    faults: tuple[str, ...]
    """Those that it can set."""

    def units(self) -> list[Unit]:
        """Return what there is now."""

    def apply(self, plan: Round, node: str) -> int:
        """Set a fault; return when, microseconds since the epoch.

        Raises:
            ChaosError: it cannot be set. Nothing is left of it then.
        """

    def undo(self) -> None:
        """Take back what is set, and see to it that what was killed runs again; nothing to do is fine.

        Raises:
            ChaosError: it cannot be taken back; the message says what is to be done by hand.
        """

    def close(self) -> None:
        """Take back what is set; let go of what is held."""
