"""The policy and limits of a slot's secondary, as a user changes them while it runs (`StandbyTarget` in `plan`)."""

from __future__ import annotations

from pydantic import ValidationError
from structlog.stdlib import BoundLogger

from tsunagi.runtime.messages import StandbyTarget
from tsunagi.runtime.settings import StandbySettings, Target


def read_target(asked: StandbyTarget, settings: StandbySettings, logger: BoundLogger) -> Target | None:
    """Return the policy and limits that a user asked for; fields that were not set are those of the settings.

    Returns:
        None = all as in the settings. An invalid request counts as this as well, with a line in the process's log: a
        worker must not end because of a request.
    """
    if asked.as_configured:
        return None
    fields = settings.target(asked.slot).model_dump()
    for name in fields:
        if asked.HasField(name):
            fields[name] = getattr(asked, name)
    if asked.HasField("batch_size"):
        fields["batch_size"] = asked.batch_size or "inf"
    try:
        return Target(**fields)
    except ValidationError as error:
        logger.warning("invalid target ignored", slot=asked.slot, detail=str(error))
        return None
