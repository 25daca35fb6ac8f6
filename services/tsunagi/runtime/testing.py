"""The log in memory under a virtual clock, for tests and for the simulator; the same services run on it.

What makes a simulated log worth having is what real clients do and a list in memory does not
(`tsunagi.runtime.memory_clients`): records wait in producers' queues and drain after a reconnect in any order between
producers; requests in flight when a connection breaks may or may not have been appended; fetches lag behind the end.
All of it is off until `Network` says otherwise, and all of it hangs on one seeded generator and one clock, so that a
run replays from its seed. Nothing ever sleeps: a call returns at once with what is there at the present virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tsunagi.runtime.clock import Clock
from tsunagi.runtime.memory_clients import MemoryClient, MemoryProducer, MemoryReader
from tsunagi.runtime.memory_cluster import Cluster, Network

__all__ = ["MemoryClient", "MemoryLog", "MemoryProducer", "MemoryReader", "Network"]


class MemoryLog(Cluster, MemoryClient):
    """The broker, and itself the view of a client named "test"; its arguments are those of `Cluster`."""

    def __init__(
        self,
        clock: Clock,
        partitions: Mapping[str, int],
        *,
        network: Network | None = None,
        rng: random.Random | None = None,
    ) -> None:
        Cluster.__init__(self, clock, partitions, network=network, rng=rng)
        MemoryClient.__init__(self, self, "test")

    def client(self, client_id: str) -> MemoryClient:
        """Return the log as that node sees it, so that it can be cut off alone."""
        return MemoryClient(self, client_id)
