"""`tsunagi recovery set` and `use`: change what the recovery aims at, and its model, while the slots run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.store import publish
from tsunagi.runtime.log import PLAN, Log
from tsunagi.runtime.message_reading import read_message
from tsunagi.runtime.messages import VERSION, ModelTarget, Plan, RecoveryTarget
from tsunagi.runtime.plan import Words
from tsunagi.runtime.settings import Settings
from tsunagi.system.fleet_table import sensors_in_force
from tsunagi.system.plan import Write, write_plan
from tsunagi.system.topics import read_partition, tool_log
from tsunagi.worker.recovery_target import merged


class RecoveryTargetError(ValueError):
    """A value that is asked for is impossible."""


def ask(settings: Settings, fields: dict[str, Any], tell: Callable[[str], None], write: Write | None = None) -> None:
    """Write the target of the recovery to `plan`; a field that is not given is as the settings say.

    Args:
        fields: fields of `RecoveryTarget`; if empty, all are again as the settings say.
        write: writes the record; None = to the log.

    Raises:
        RecoveryTargetError: a value is impossible.
        LogError: the broker does not take the record.
    """
    try:
        aimed = merged(settings.recovery, fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecoveryTargetError(f"--{first['loc'][0]}: found {first['input']!r}: {first['msg']}") from None
    target = RecoveryTarget(as_configured=not fields, **fields)
    (write or write_plan)(settings, {"recovery": Plan(version=VERSION, recovery=target)})
    tell(
        f"eps {aimed.eps:g}, delta {aimed.delta:g}, at most {aimed.helpers} helpers a slot; "
        f"values wider than eps: {aimed.unbounded}"
    )


def use_model(settings: Settings, model_file: Path | None, tell: Callable[[str], None]) -> None:
    """Put a model in force through `plan`; None = the one that the settings name, or that the learner makes next.

    Raises:
        SensorsError: as in `sensors_in_force`.
        ModelError: the file is no model, or knows none of the fleet's sensors.
        LogError: the broker does not take the record.
    """
    if model_file is None:
        write_plan(settings, {"model": Plan(version=VERSION, model=ModelTarget(as_configured=True, by="user"))})
        tell(f"model: as configured ({settings.recovery.model or 'none'})")
        return
    table = sensors_in_force(tool_log(settings, "recovery"), settings)
    sha256, model = publish(model_file, settings.recovery.store)
    known = len(table.ids(list(model.names)))
    if not known:
        raise ModelError(f"{model_file}: found none of the sensors of the table in force in it")
    steps = int(model.about.get("steps", 0))
    target = ModelTarget(sha256=sha256, by="user", sensors=len(model), steps=steps)
    write_plan(settings, {"model": Plan(version=VERSION, model=target)})
    tell(f"model: {model_file}, sha256 {sha256}; it knows {known} of {len(table.present)} sensors")


def model_in_force(source: Log) -> ModelTarget | None:
    """Return the model that `plan` names; None if it names none."""
    words, logger, found = Words(), structlog.get_logger("tsunagi.plan"), None
    for record in read_partition(source, PLAN, 0):
        plan = read_message(Plan, record, logger)
        if plan is not None and words.take(plan, record.offset) and plan.WhichOneof("body") == "model":
            found = None if plan.model.as_configured else plan.model
    return found
