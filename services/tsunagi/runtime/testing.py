"""The log in memory under a virtual clock, for tests and for the simulator. The same services run on it.

It does what real clients do and a list in memory does not (`tsunagi.runtime.memory_clients`). Records wait in the
queues of producers, which drain after a reconnect in any order between producers. Requests that were on the way when a
connection broke may or may not have been appended. Fetches lag behind the end. All of this is off unless `Network` says
otherwise. It depends on one seeded generator and one clock only, so that a run can be repeated from its seed. Nothing
ever sleeps: a call returns at once with what is there at the present virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tsunagi.runtime.clock import Clock
from tsunagi.runtime.memory_clients import MemoryClient, MemoryProducer, MemoryReader
from tsunagi.runtime.memory_cluster import Cluster, Network

__all__ = ["MemoryClient", "MemoryLog", "MemoryProducer", "MemoryReader", "Network"]


class MemoryLog(Cluster, MemoryClient):
    """The broker, which is also the log as a client named "test" sees it. Its arguments are those of `Cluster`."""

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
        """Return the log as the node with this name sees it. Each node can be cut off alone."""
        return MemoryClient(self, client_id)
