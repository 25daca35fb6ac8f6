"""What a world is made of, by its seed: sensors, edges, slots and workers, their settings, and their network."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import numpy as np

from tests.simulation import poison
from tsunagi.recovery.model import Model
from tsunagi.runtime import log as topics
from tsunagi.runtime.log import Record
from tsunagi.runtime.messages import Recovered
from tsunagi.runtime.names import Name, unpack_key
from tsunagi.runtime.output_runs import outputs_of
from tsunagi.runtime.sensors import Sensor, SensorTable, place
from tsunagi.runtime.settings import (
    OperatorSettings,
    PaperSettings,
    QuerySettings,
    RecoverySettings,
    ScalerSettings,
    Settings,
    SlotsSettings,
    StandbySettings,
    StepsSettings,
)
from tsunagi.runtime.testing import Network

EDGES = 4
SENSORS = 3
SLOTS = 2
WORKERS = ("gw-1", "gw-2", "sec-1", "idle-1")
LAYOUT = dict.fromkeys(topics.TOPICS, 1) | dict.fromkeys((topics.TUPLES, topics.RECOVERED, topics.CONTEXTS), SLOTS)
"""Partitions of each topic."""

BATCHES: tuple[int | str, ...] = (1, 20, 100, "inf")
LIMITS: tuple[dict[str, Any], ...] = (
    {"policy": "model", "max_bandwidth": 900.0, "max_recovery_s": 0.01},
    {"max_bandwidth": 1200.0, "priority": "bandwidth"},
)
"""B of the secondaries, by seed; in one run of eight it is to be kept within limits, in one they speculate. Half of the
runs with limits keep them by algorithm 3."""

WITH_STEPS: tuple[dict[str, Any], ...] = ({"use": "recover"}, {"use": "aggregate", "function": "sum", "window": 3})
"""What is computed in the other runs: a frame a step."""

WITHOUT_STEPS: tuple[dict[str, Any], ...] = (
    {"use": "select", "share": 0.9},
    {"use": "aggregate", "function": "sum", "window": 7, "slide": 2},
)
"""What is computed in one run of eight, each tuple as it comes."""

ASKED = Path(__file__).with_name("tuples.sql")
"""Queries that slots run behind the operators in half of those runs."""

EPS = 1.12
"""Tolerated error in a run with a model. With an edge down a slot cannot keep it by itself; with sensors of the other
slot it can."""

MEMORY = Path("/dev/shm")
"""Models are stored here where it exists: a store syncs every file, and a schedule writes twenty."""

PART_BYTES = 300
"""Size of a record of `contexts` at most in one run of nine: every context is larger, and is written in parts."""

UNEVEN = (0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1)
"""The sensors' edges in a run with a model: the last has one sensor, in one slot, and helps the other from outside."""


def options_of(seed: int) -> dict[str, Any]:
    """Return the options of a seed's `World`: how the secondaries stand by, and what is computed."""
    limits = LIMITS[seed % 2] if seed % 16 >= 14 else {}
    speculates = seed % 8 == 7 or seed % 32 >= 16
    batch = BATCHES[(seed // 8 if speculates else seed) % len(BATCHES)]  # by eights, so that each B speculates
    parts = {"context_bytes": PART_BYTES} if seed % 9 == 4 else {}
    options = {
        "standby": {"batch_size": batch, "speculate": speculates, **limits, **parts},
        "poisonous": seed % 5 in (2, 4),
    }
    if seed % 8 == 6:
        return {**options, "operators": () if seed % 32 == 6 else WITHOUT_STEPS, "mode": "tuples"}
    return {**options, "modelled": seed % 8 in (3, 5)}


def make_settings(
    seed: int,
    standby: dict[str, Any],
    operators: Sequence[dict[str, Any]],
    mode: Literal["steps", "tuples"],
    *,
    modelled: bool,
    poisonous: bool,
) -> Settings:
    """Return the settings of a world.

    Args:
        modelled: values are recovered by a model, which is refitted as it goes.
        poisonous: two of the operators have bugs (`tests.simulation.poison`).
    """
    chain = (*operators[:1], *poison.OPERATORS, *operators[1:]) if poisonous else operators
    return Settings(
        steps=StepsSettings(interval_s=0.1, window=10, slide=2, grace_s=0.5),
        slots=SlotsSettings(count=SLOTS),
        standby=StandbySettings(**standby, context_s=0.5),
        scaler=ScalerSettings(workers=len(WORKERS), launcher="none"),
        paper=PaperSettings(batch_steps=seed % 16 == 15),
        query=QuerySettings(
            mode=mode,
            operators=tuple(OperatorSettings(**options) for options in chain),
            files=(ASKED,) if mode == "tuples" and seed % 16 == 6 else (),
        ),
        recovery=_recovery() if modelled else RecoverySettings(),
    )


def make_table(*, modelled: bool) -> SensorTable:
    """Return the sensors of all edges."""
    edge_of = UNEVEN if modelled else [i % EDGES for i in range(EDGES * SENSORS)]
    return SensorTable(tuple(Sensor(i, f"s{i}", f"edge-{edge + 1}") for i, edge in enumerate(edge_of)))


def sensors_by_slot(table: SensorTable) -> dict[str, dict[int, list[int]]]:
    """Return each edge's sensors, by slot."""
    slot_of = place(table, SLOTS)
    found: dict[str, dict[int, list[int]]] = {edge: {} for edge in table.edges}
    for sensor in table.sensors:
        found[sensor.edge].setdefault(slot_of[sensor.id], []).append(sensor.id)
    return found


def make_network(seed: int) -> Network:
    """Return the network of a world.

    A third of the runs are on a slow one, the others have outputs that are slow alone: much is on its way whenever
    something breaks.
    """
    slow = seed % 3 == 0
    return Network(
        produce_s=(0.0005, 0.12 if slow else 0.004),
        produce_to_s={} if slow else dict.fromkeys((topics.RECOVERED, topics.LATE), (0.01, 0.6)),
        ack_s=(0.0005, 0.08 if slow else 0.003),
        fetch_s=(0.0, 0.01),
        reconnect_s=(0.02, 0.4),
        ghost=0.8,
    )


@cache
def _recovery() -> RecoverySettings:
    """Write the model of a process's runs; return the settings that go by it. Refits come often."""
    directory = Path(mkdtemp(prefix="tsunagi-simulation-", dir=MEMORY if MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    n = EDGES * SENSORS
    prior = 0.4 * np.eye(n) + 0.6
    zeros = np.zeros(n, dtype=np.float64)
    structure = {"transition": "diagonal", "shrinkage": 0.1, "persistence": 0.9, "lag": 0}
    about = {"steps": 100, "structure": structure}
    names = tuple(f"s{sensor}" for sensor in range(n))
    scale = zeros + 1.0
    model = Model(
        names, 10.0 * np.arange(n, dtype=np.float64), scale, zeros + 0.9, 0.19 * prior, prior, zeros, about=about
    )
    model.save(directory / "model.bin")
    return RecoverySettings(
        model=str(directory / "model.bin"),
        store=directory / "models",
        eps=EPS,
        calibrate=False,
        refit=True,
        refit_s=2.0,
    )


def outputs_in(record: Record) -> list[tuple[Name, bytes]]:
    """Return (name, value) of each output of a record, as it would stand in a record of its own."""
    message = Recovered.FromString(record.value or b"")
    if not message.HasField("run"):
        return [(unpack_key(record.key)[2], record.value or b"")]
    return [(Name(item.offset, item.index), item.SerializeToString()) for item in outputs_of(message)]
