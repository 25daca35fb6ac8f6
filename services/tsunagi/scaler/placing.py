"""Decides in the first placement which slot each sensor belongs to, and how many slots a step's time allows."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import LowRankModel, Model
from tsunagi.recovery.partition import partition, partition_by_causes
from tsunagi.runtime.cells import cells_for
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.sensors import SensorTable, place
from tsunagi.runtime.settings import Settings

BUDGET_SHARE = 0.5
"""Share of a step's time that the recovery of one slot may take. A worker has other slots too, and must catch up after
a takeover."""
MISSING_SHARE = 0.1
"""Share of the sensors that is missing in the measured steps."""
MEASURED_STEPS = 5
"""Number of steps that are measured; the fastest one counts, since the others were disturbed."""
MEASURED_AT_MOST = 2000
"""Most sensors with which the step of a slot is measured: to make the filter of more takes seconds. The time of a
larger slot is extrapolated."""


def place_sensors(settings: Settings, table: SensorTable) -> Sensors:
    """Return uint32[n], the slot of each sensor by id, as `[slots] placement` says.

    "spread" deals the sensors of each edge out over `[slots] per_edge` slots. So each slot has much left to recover a
    dead edge from, and an edge sends few records a step.
    "proposed-swap" follows the correlations in the recovery model (`tsunagi.recovery.partition`): sensors of different
    edges that tell about each other come into one slot. Sensors that the model does not know are spread.

    Raises:
        ModelError: the method needs a model, and there is none, or it knows fewer sensors than there are slots.
    """
    count, method = settings.slots.count, settings.slots.placement
    placed = place(table, count, settings.slots.per_edge, cells_for(count, settings.standby.cells))
    if method == "spread":
        return placed
    file = settings.recovery.model
    if not file:
        raise ModelError(f"[slots] placement: found {method!r} without a [recovery] model, expected one, or spread")
    model = Model.load(Path(file))
    rows = table.ids(list(model.names))
    known = [number for number, name in enumerate(model.names) if name in rows]
    if len(known) < count:
        raise ModelError(f"{file}: found {len(known)} sensors of the sensors table, expected {count} or more")
    ids = [rows[model.names[number]] for number in known]
    placed = placed.copy()
    placed[ids] = _by_model(model, known, [table.sensors[sensor].edge for sensor in ids], count)
    return placed


def _by_model(model: Model, known: list[int], edges: list[str], count: int) -> Sensors:
    """Return the slots of these sensors of a model, uint32[n]."""
    if isinstance(model, LowRankModel):
        return partition_by_causes(model.known.select(np.array(known)), edges, count).astype(np.uint32)
    prior = model.prior[np.ix_(known, known)]
    size = np.sqrt(np.diag(prior))
    return partition(prior / np.outer(size, size), edges, count).astype(np.uint32)


def with_slots(settings: Settings, count: int) -> Settings:
    """Return the settings with this number of slots, if they have fewer."""
    slots = settings.slots
    return settings.model_copy(update={"slots": slots.model_copy(update={"count": max(count, slots.count)})})


def step_seconds(model: Model) -> float:
    """Return the seconds that recovery takes for a step of these sensors here; other sensors miss in each step."""
    recovery, draw, taken = Recovery(model), np.random.default_rng(0), []
    for _ in range(MEASURED_STEPS):
        values = np.where(draw.random(len(model)) < MISSING_SHARE, np.nan, model.mean)
        began = time.perf_counter()
        recovery.step(values)
        taken.append(time.perf_counter() - began)
    return min(taken)


def sized(settings: Settings, table: SensorTable) -> Settings:
    """Return the settings with as many slots as a step's time asks for, within `[slots] count` and `most`.

    It takes the smallest such number, since few slots recover better. It is for topics that have not been made yet.
    """
    slots = settings.slots
    if not slots.grow or not settings.recovery.model:
        return settings
    while True:
        over = _over_budget(settings, place_sensors(settings, table), table)
        if over is None or settings.slots.count >= slots.most:
            return settings
        count = max(_enough(settings.slots.count, over.ratio), settings.slots.count + 1)
        settings = with_slots(settings, min(count, slots.most))


class _Over(NamedTuple):
    """A slot whose step takes too long: `ratio` times its budget."""

    slot: int
    sensors: int
    seconds: float
    ratio: float


def _enough(count: int, ratio: float) -> int:
    """Return how many slots would be enough: the filter's time grows with the square of a slot's sensors."""
    return math.ceil(count * math.sqrt(ratio))


def _over_budget(settings: Settings, placed: Sensors, table: SensorTable) -> _Over | None:
    """Return the largest slot if its step takes longer than its budget, as measured; else None."""
    try:
        model = Model.load(Path(settings.recovery.model))
    except ModelError:
        return None  # the workers need the model, and report what is wrong with it
    known = set(model.names)
    largest = int(np.bincount(placed).argmax())
    names = [row.name for row in table.sensors if placed[row.id] == largest and row.name in known]
    if not names:
        return None
    measured = names[:MEASURED_AT_MOST]
    seconds = step_seconds(model.select(measured)) * (len(names) / len(measured)) ** 2
    ratio = seconds / (BUDGET_SHARE * settings.steps.slide_s)
    return _Over(largest, len(names), seconds, ratio) if ratio > 1 else None


def budget_warning(settings: Settings, table: SensorTable, placed: Sensors) -> str:
    """Return "" if a step of the largest slot fits its budget, as measured; else a text that says what to do.

    Few slots recover better and cost less (docs/explanation/recovery.md), until the step of one takes too long.
    """
    over = _over_budget(settings, placed, table) if settings.recovery.model else None
    if over is None:
        return ""
    count, slide_ms = settings.slots.count, 1000 * settings.steps.slide_s
    return (
        f"a step of slot {over.slot} ({over.sensors} sensors) takes {1000 * over.seconds:.0f} ms of {slide_ms:.0f} ms; "
        f"`tsunagi slots {_enough(count, over.ratio)}` makes that many of {count}"
    )
