"""Which slot each sensor belongs to, as the first placement has it, and whether a slot's step then fits its time."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.model import Model
from tsunagi.recovery.partition import partition
from tsunagi.runtime.columns import Sensors
from tsunagi.runtime.sensors import SensorTable, place
from tsunagi.runtime.settings import Settings

BUDGET_SHARE = 0.5
"""Of a step's length that its recovery may take: a worker has other slots too, and must catch up after a takeover."""
MISSING_SHARE = 0.1
MEASURED_STEPS = 5
MEASURED_AT_MOST = 2000
"""Sensors of a slot whose step is measured at the start; the filter of more takes seconds to make."""


def place_sensors(settings: Settings, table: SensorTable) -> Sensors:
    """Return uint32[n], slot by sensor id, as `[slots] placement` wants it.

    "spread" deals each edge's sensors out evenly, so that a dead edge leaves every slot much to recover from.
    "proposed-swap" goes by the recovery model's correlations (`tsunagi.recovery.partition`): sensors of different edges
    that tell of each other come together. Sensors that the model does not know are spread.

    Raises:
        ModelError: the method goes by a model, and there is none, or it knows fewer sensors than there are slots.
    """
    count, method = settings.slots.count, settings.slots.placement
    placed = place(table, count)
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
    prior = model.prior[np.ix_(known, known)]
    size = np.sqrt(np.diag(prior))
    ids = [rows[model.names[number]] for number in known]
    edges = [table.sensors[sensor].edge for sensor in ids]
    placed = placed.copy()
    placed[ids] = partition(prior / np.outer(size, size), edges, count).astype(np.uint32)
    return placed


def step_seconds(model: Model) -> float:
    """Return what the recovery of these sensors takes a step on this machine, a tenth missing, others at every step."""
    recovery, draw, taken = Recovery(model), np.random.default_rng(0), []
    for _ in range(MEASURED_STEPS):
        values = np.where(draw.random(len(model)) < MISSING_SHARE, np.nan, model.mean)
        began = time.perf_counter()
        recovery.step(values)
        taken.append(time.perf_counter() - began)
    return min(taken)


def sized(settings: Settings, table: SensorTable) -> Settings:
    """Return the settings with so many slots that a step of each fits its time, within `[slots] count` and `most`.

    As few as that allows, since few slots recover better. For topics that are not made yet.
    """
    slots = settings.slots
    if not slots.grow or not settings.recovery.model:
        return settings
    while True:
        over = _over_budget(settings, place_sensors(settings, table), table)
        if over is None or settings.slots.count >= slots.most:
            return settings
        count = min(max(_enough(settings.slots.count, over.ratio), settings.slots.count + 1), slots.most)
        settings = settings.model_copy(update={"slots": slots.model_copy(update={"count": count})})


class _Over(NamedTuple):
    """A slot whose step takes too long: `ratio` times what it may."""

    slot: int
    sensors: int
    seconds: float
    ratio: float


def _enough(count: int, ratio: float) -> int:
    """Return how many slots would do: the filter's cost goes with the square of a slot's sensors."""
    return math.ceil(count * math.sqrt(ratio))


def _over_budget(settings: Settings, placed: Sensors, table: SensorTable) -> _Over | None:
    """Return the largest slot if its step takes too long, by measured cost."""
    try:
        model = Model.load(Path(settings.recovery.model))
    except ModelError:
        return None  # the workers, who need it, name what is wrong with it
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
    """Return "" if a step of the largest slot fits its time, by measured cost, else what to do.

    Few slots recover better and cheaper (docs/recovery.md), until a step of one takes too long. How many there are is
    settled when the topics are made.
    """
    over = _over_budget(settings, placed, table) if settings.recovery.model else None
    if over is None:
        return ""
    count, slide_ms = settings.slots.count, 1000 * settings.steps.slide_s
    return (
        f"a step of slot {over.slot} ({over.sensors} sensors) takes {1000 * over.seconds:.0f} ms of {slide_ms:.0f} ms; "
        f"make topics with about {_enough(count, over.ratio)} slots ([slots] count, or most) instead of {count}"
    )
