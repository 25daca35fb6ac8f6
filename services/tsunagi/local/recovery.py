"""`tsunagi recovery set`: changes eps, delta or the number of helpers while the slots run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from tsunagi.runtime.messages import VERSION, Plan, RecoveryTarget
from tsunagi.runtime.settings import Settings
from tsunagi.system.plan import write_plan
from tsunagi.worker.recovery_target import merged


class RecoveryTargetError(ValueError):
    """A value that is asked for is impossible."""


def ask(settings: Settings, fields: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Write the target of the recovery to `plan`; a field that is not given is as the settings say.

    Args:
        fields: fields of `RecoveryTarget`; if empty, all are again as the settings say.

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
    write_plan(settings, {"recovery": Plan(version=VERSION, recovery=target)})
    tell(
        f"eps {aimed.eps:g}, delta {aimed.delta:g}, at most {aimed.helpers} helpers a slot; "
        f"values wider than eps: {aimed.unbounded}"
    )
