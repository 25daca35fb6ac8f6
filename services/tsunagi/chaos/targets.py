"""The interface of drivers: they disturb nodes, which may be containers or processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tsunagi.chaos.plan import Round


class ChaosError(RuntimeError):
    """A fault cannot be set or undone, or the system to disturb is not there; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A container or process of Tsunagi.

    Attributes:
        node: its name, as in its heartbeats.
        role: edge | gateway | secondary | worker | scaler | spark | kafka. It is the role with which it was started,
            whatever slots it owns now.
        trouble: why it is not well ("exited", "paused", "unhealthy", ...); "" if it is well.
    """

    node: str
    role: str
    trouble: str = ""


class Driver(Protocol):
    """Sets faults and takes them back. `apply` and `undo` may take seconds, so they run in a thread of their own."""

    faults: tuple[str, ...]
    """The faults that this driver can set."""

    def units(self) -> list[Unit]:
        """Return the containers or processes that there are now."""

    def apply(self, plan: Round, node: str) -> int:
        """Set a fault on a node, and return when it was set, in microseconds since 1970.

        Raises:
            ChaosError: the fault cannot be set. Nothing of it is left then.
        """

    def undo(self) -> None:
        """Take the fault back, if one is set, and start again what it has killed.

        Raises:
            ChaosError: the fault cannot be taken back; the message says which one, and why.
        """

    def close(self) -> None:
        """Take the fault back, if one is set, and release connections."""
