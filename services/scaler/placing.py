"""Which slot each sensor belongs to, as the first placement has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from services.recovery.model import Model, ModelError
from services.recovery.partition import partition
from services.runtime.columns import Sensors
from services.runtime.sensors import SensorTable, place
from services.runtime.settings import Settings


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
