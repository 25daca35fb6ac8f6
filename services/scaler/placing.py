"""Which slot each sensor belongs to, as the first placement has it, and whether a slot's step then fits its time."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np

from services.recovery.filter import Recovery
from services.recovery.model import Model, ModelError
from services.recovery.partition import partition
from services.runtime.columns import Sensors
from services.runtime.sensors import SensorTable, place
from services.runtime.settings import Settings

BUDGET_SHARE = 0.5
"""Of a step's length that its recovery may take: a worker has other slots too, and must catch up after a takeover."""
MISSING_SHARE = 0.1
MEASURED_STEPS = 5
MEASURED_AT_MOST = 2000
"""Sensors of a slot up to which its step is measured at the start; the filter of more takes seconds to make."""


def place_sensors(settings: Settings, table: SensorTable) -> Sensors:
    """Return uint32[n], slot by sensor id, as `[slots] placement` wants it.

    "spread" deals each edge's sensors out evenly, so that a dead edge leaves every slot much to recover from. The
    other methods go by the recovery model's correlations (`services.recovery.partition`): sensors of different edges
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
    placed[ids] = partition(prior / np.outer(size, size), edges, count, method).astype(np.uint32)
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


def budget_warning(settings: Settings, table: SensorTable, placed: Sensors) -> str:
    """Return "" if a step of the largest slot fits its time, by measured cost, else what to do.

    Few slots recover better and cheaper (docs/recovery.md), until a step of one takes too long. How many there are is
    settled when the topics are made.
    """
    if not settings.recovery.model:
        return ""
    try:
        model = Model.load(Path(settings.recovery.model))
    except ModelError:
        return ""  # the workers, who need it, name what is wrong with it
    known = set(model.names)
    largest = int(np.bincount(placed).argmax())
    names = [row.name for row in table.sensors if placed[row.id] == largest and row.name in known]
    if not 0 < len(names) <= MEASURED_AT_MOST:
        return ""
    seconds, slide_s = step_seconds(model.select(names)), settings.steps.slide_s
    if seconds <= BUDGET_SHARE * slide_s:
        return ""
    wanted = math.ceil(settings.slots.count * math.sqrt(seconds / (BUDGET_SHARE * slide_s)))
    return (
        f"a step of slot {largest} ({len(names)} sensors) takes {1000 * seconds:.0f} ms of {1000 * slide_s:.0f} ms; "
        f"make topics with about {wanted} slots ([slots] count) instead of {settings.slots.count}"
    )
