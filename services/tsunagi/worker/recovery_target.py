"""The settings of the recovery that a user has changed while the system runs (`RecoveryTarget` in `plan`)."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from structlog.stdlib import BoundLogger

from tsunagi.runtime.messages import RecoveryTarget
from tsunagi.runtime.settings import RecoverySettings, Settings

FIELDS = ("eps", "delta", "helpers", "unbounded")
"""The settings of the recovery that `tsunagi recovery set` may change while the system runs."""


def merged(settings: RecoverySettings, fields: dict[str, Any]) -> RecoverySettings:
    """Return the settings with other values in these fields.

    Raises:
        ValidationError: a value is not allowed.
    """
    return RecoverySettings(**settings.model_dump() | fields)


def with_target(settings: Settings, asked: RecoveryTarget | None, logger: BoundLogger | None = None) -> Settings:
    """Return the settings that are in force with this target; None = there is no target.

    An invalid target counts as none, with a line in the process's log: a worker must not end because of a request.
    """
    if asked is None or asked.as_configured:
        return settings
    fields = {name: getattr(asked, name) for name in FIELDS if asked.HasField(name)}
    try:
        return settings.model_copy(update={"recovery": merged(settings.recovery, fields)})
    except ValidationError as error:
        if logger is not None:
            logger.warning("invalid target ignored", detail=str(error))
        return settings
