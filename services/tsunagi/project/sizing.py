"""Proposes how large a system should be for a fleet and a machine (`tsunagi plan`). Each number has its rule in `plan`.

The rules rest on figures of docs/measured and deploy/README.md, or on assumptions that say so. On other machines they
are where to begin.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import psutil

from tsunagi.runtime.sensors import SensorTable
from tsunagi.runtime.settings import Settings

MB = 1_000_000
"""Bytes in a megabyte, as containers' limits count them here."""
_SENSORS_A_SLOT = 500
"""Sensors for each slot, beyond the two slots that there are at least."""
_MOST_SLOTS = 16
"""More slots than these are left to the user: each is work for every edge."""
_TUPLE_S = 4e-3 / 2500
"""Seconds of a core for a tuple of a slot: a slot of 2,500 sensors took 4 ms a step (docs/measured/main-job.md)."""
_SLOT_STEP_S = 2e-3
"""Seconds of a core for a step of a slot beside its tuples: reading, writing and acknowledging records. It is an
assumption on the safe side; no measurement separates it."""
_BUSY = 0.6
"""A worker's core may be busy for this share of the time: a takeover has to catch up on top of what comes."""
_ROWS_A_CORE = 50_000
"""Rows a second for each P-SORT core: half of what a core takes at most (deploy/README.md, "How many workers")."""
_BATCH = 100
"""B of the standbys where a step has fewer tuples, the default of [standby] batch_size."""
_EDGE_MB, _EDGE_SENSOR_MB = 96, 0.002
"""Memory of an edge's container, and for each of its sensors: twice what was measured, 46 MB with 37 sensors and 51 MB
with 5,000 (docs/measured/containers.md)."""
_WORKER_MB = 256
"""Least memory of a worker's container, as in docker-compose.yml: four times what one with a small slot uses."""
_SPARK_MB, _SPARK_CORE_MB = 1024, 256
"""Memory of Spark's container, and for each core: a heap of 512 MB, the JVM's own, and a Python process a core."""
_LEARNER_MB, _LEARNER_MATRICES = 1024, 12
"""Memory of the learner's container: its history and what a fit makes of that, and so many matrices of all sensors."""
_BROKER_MB, _OTHER_MB = 1024, 256
"""Memory of the broker's container, and of each of scaler and Prometheus."""


class Machine(NamedTuple):
    """What the services run on."""

    cores: int
    memory_mb: int


class FleetSize(NamedTuple):
    """What decides on sizes.

    Attributes:
        largest_edge: sensors of the edge that has most.
        step_s: seconds between two steps.
        readings_s: readings a second of all sensors, as they usually come.
    """

    sensors: int
    edges: int
    largest_edge: int
    step_s: float
    readings_s: float

    @staticmethod
    def of(table: SensorTable, settings: Settings) -> FleetSize:
        """Return the fleet of a sensors table."""
        usual_s = settings.steps.interval_s
        intervals = (usual_s if math.isnan(sensor.interval_s) else sensor.interval_s for sensor in table.sensors)
        largest = max(len(table.of_edge(edge)) for edge in table.edges)
        step_s = settings.steps.slide * usual_s
        return FleetSize(len(table), len(table.edges), largest, step_s, sum(1 / interval_s for interval_s in intervals))


class Proposal(NamedTuple):
    """A number, and why.

    Attributes:
        setting: where the number goes: a section and key of tsunagi.toml, or what a container is given.
    """

    name: str
    value: int
    setting: str
    why: str


class Sizes(NamedTuple):
    """What `plan` proposes; memory is that of each container, in megabytes."""

    slots: Proposal
    gateways: Proposal
    secondaries: Proposal
    spare: Proposal
    spark_cores: Proposal
    batch_size: Proposal
    edge_mb: Proposal
    worker_mb: Proposal
    spark_mb: Proposal
    learner_mb: Proposal
    total_mb: Proposal


def slots_for(sensors: int) -> int:
    """Return a number of slots: each has its worker's time, and enough sensors that lost ones can be estimated."""
    return min(_MOST_SLOTS, max(2, -(-sensors // _SENSORS_A_SLOT)))


def this_machine() -> Machine:
    """Return what this process may use of the machine."""
    return Machine(len(os.sched_getaffinity(0)), round(psutil.virtual_memory().total / MB))


def plan(fleet: FleetSize, machine: Machine, slots: int | None = None) -> Sizes:
    """Propose sizes.

    Args:
        slots: how many slots there are already; None = not yet decided.
    """
    count = slots_for(fleet.sensors) if slots is None else slots
    rate = fleet.sensors / fleet.step_s
    busy = rate * _TUPLE_S + count / fleet.step_s * _SLOT_STEP_S
    primaries = min(count, max(2, math.ceil(busy / _BUSY)))
    a_slot = -(-fleet.sensors // count)
    hosted = -(-2 * count // (2 * primaries))  # a worker's slots, as owner or as standby
    matrices_mb = 2 * 8 * a_slot**2 * 2 * hosted / MB  # twice as many while a takeover moves slots
    worker_mb = _round_up(max(_WORKER_MB, 80 + 2 * matrices_mb))
    cores = min(max(2, math.ceil(rate / _ROWS_A_CORE)), max(machine.cores, 1))
    edge_mb = _round_up(_EDGE_MB + _EDGE_SENSOR_MB * fleet.largest_edge)
    spark_mb = _SPARK_MB + _SPARK_CORE_MB * cores
    learner_mb = _round_up(_LEARNER_MB + _LEARNER_MATRICES * 8 * fleet.sensors**2 / MB)
    services_mb = spark_mb + learner_mb + _BROKER_MB + 2 * _OTHER_MB
    total = fleet.edges * edge_mb + (2 * primaries + 1) * worker_mb + services_mb
    fits = "this machine has" if total <= machine.memory_mb else "MORE than this machine has:"
    return Sizes(
        Proposal("slots", count, "[slots] count", f"{a_slot:,} sensors in each; {_SENSORS_A_SLOT} at most are planned"),
        Proposal(
            "gateways",
            primaries,
            "containers gateway-N",
            f"slots take {100 * busy:.1f} % of a core; {100 * _BUSY:.0f} % of one a worker leaves time for a takeover",
        ),
        Proposal("secondaries", primaries, "containers secondary-N", "each slot has a standby on another worker"),
        Proposal("spare workers", 1, "containers worker-N", "takes the standby's place after a takeover"),
        Proposal(
            "Spark cores",
            cores,
            "[spark] cores",
            f"{rate:,.0f} rows/s, {_ROWS_A_CORE:,} a core; at least two, to grow; {machine.cores} are here",
        ),
        Proposal(
            "standby B",
            max(_BATCH, a_slot),
            "[standby] batch_size",
            f"a step of a slot is {a_slot:,} tuples, which come at once",
        ),
        Proposal("edge, MB", edge_mb, "limit", f"the largest edge has {fleet.largest_edge:,} sensors"),
        Proposal("worker, MB", worker_mb, "limit", f"{hosted} slots with two matrices of {a_slot:,} x {a_slot:,} each"),
        Proposal("Spark, MB", spark_mb, "limit", f"JVM with a heap of 512 MB, and {cores} Python processes"),
        Proposal("learner, MB", learner_mb, "limit", f"fits models of {fleet.sensors:,} sensors"),
        Proposal("in all, MB", total, "limits", f"{fits} {machine.memory_mb:,} MB"),
    )


def _round_up(megabytes: float) -> int:
    """Return a limit in steps of 32 MB."""
    return 32 * math.ceil(megabytes / 32)
