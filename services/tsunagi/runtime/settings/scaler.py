"""[scaler] of the configuration: how many workers there are, of which types, and who starts them."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from tsunagi.runtime.settings.section import Bytes, Few, NotNegative, Positive, Seconds, Section

SPARE = 2
"""Number of workers beyond one for each slot, by default. When a worker dies, each slot still has a secondary."""
A_CORE = 5
"""Most workers for each core of the scaler's machine, by default. A worker reads and sends the same heartbeats however
many slots it has, so many workers cost more than a few. But a worker that dies takes all of its slots down. 20,000
sensors in 16 slots were tried on two cores with 18, 10 and 6 workers: the median latency of results was 1.7, 1.4 and
1.1 s, and the median silence of a dead worker's slot .30, .24 and .44 s (docs/measured/fleet.md)."""
LEAST_WORKERS = 4
"""Number of workers that `A_CORE` leaves at least, on a machine of one core too: two owners and two secondaries."""
LOCAL = "local"
"""The type of the workers that no type of the settings describes: they run on this machine, or somebody else starts
them."""


class SizeSettings(Section):
    """One type of worker; its name is its key in `[scaler.sizes]`, and "local" is that of this machine's own."""

    rate: Positive | None = Field(None, description="tuples/s that one can process (`tsunagi scaler capacity`)")
    limit: Positive | None = Field(None, description="tuples/s that a local one keeps itself to: a smaller machine")
    price_h: NotNegative = Field(0.0, description="price of an hour")
    price_gb: NotNegative = Field(0.0, description="price of a gigabyte sent to it")
    boot_s: Seconds | None = Field(None, description="from launch to ready; none = as [scaler] boot_s")
    most: Few | None = Field(None, description="so many at once at most; none = as many as wanted")
    cpus: Positive = Field(1.0, description="processors that a container of it may use")
    memory_bytes: Bytes = Field(1 << 30, description="memory that a container of it may use")


class ContainersSettings(Section):
    """Workers as containers that the scaler starts (launcher = "docker")."""

    url: str = Field("unix:///var/run/docker.sock", description="Docker Engine's API: unix://FILE or tcp://HOST:PORT")
    image: str = Field("tsunagi-services", description="image of the workers; it is not pulled")
    network: str = Field("", description="network that they join; empty = Docker's default")
    volumes: tuple[str, ...] = Field((), description="what they see of others: VOLUME-OR-DIRECTORY:PATH[:ro]")
    environment: dict[str, str] = Field(default_factory=dict, description="variables of theirs, as TSUNAGI_CONFIG")
    project: str = Field("tsunagi", description="label by which this system's containers are told from another's")
    like: str = Field(
        "",
        description="node of the compose project `project` whose container they are to be like: its image, network, "
        "volumes and environment, instead of those above; only command and limits differ",
    )


class ScalerSettings(Section):
    """How many workers, and who starts them."""

    workers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        description="workers kept alive: primaries, secondaries and idle ones; 0 = two more than there are slots, but "
        "five for each core of the scaler's machine at most",
    )
    launcher: Literal["none", "local", "docker"] = Field(
        "local", description="who starts a worker that is missing: none, local (a process), docker (a container)"
    )
    boot_s: Seconds = Field(
        20.0,
        description="a launched worker that has not reported by then is started again; twice as long after each that "
        "was not in time",
    )
    dead_s: Seconds = Field(2.0, description="silence after which the scaler plans without a worker")
    sizes: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=40)], SizeSettings] = Field(
        default_factory=dict, description="types of workers, each with rate, price_h, boot_s, limit, most, ..."
    )
    containers: ContainersSettings = Field(ContainersSettings(), description="workers as containers")
    policy: Literal["fixed", "lookahead", "elasticstream", "threshold"] = Field(
        "fixed",
        description="how many workers: fixed (`workers`, `tsunagi scaler scale`), or a policy (docs/howto/elastic.md)",
    )
    forecast: str = Field(
        "", description="mixture, sdar, seasonal, ewma, last or module:Class; empty = the policy's own"
    )
    slot_s: Seconds = Field(300.0, description="TimeSlot: how often a policy decides")
    slo_s: Seconds = Field(10.0, description="longest delay of a tuple that a policy promises")
    billing: Literal["hourly", "second"] = Field(
        "hourly", description="hourly: begun hours are paid; second: what is used"
    )
    history: str = Field(
        "", description="CSV file of rates from before (t_s,rate_per_s) that a policy learns at the start; empty = none"
    )
    solver: Literal["marginal", "program"] = Field(
        "marginal", description="policy lookahead: marginal (greedy solution), program (the integer program)"
    )
    solve_s: Seconds = Field(5.0, description="time after which a stated rule stands in for a program's solution")

    def kept(self, slots: int) -> int:
        """Return how many workers are kept alive with so many slots, while nobody asks for another number."""
        return self.workers or min(slots + SPARE, max(LEAST_WORKERS, A_CORE * len(os.sched_getaffinity(0))))

    def boot_of(self, kind: str) -> float:
        """Return how long a worker of a type may take until its first heartbeat, in seconds."""
        size = self.sizes.get(kind)
        return self.boot_s if size is None or size.boot_s is None else size.boot_s
